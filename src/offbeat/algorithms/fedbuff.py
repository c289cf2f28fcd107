"""FedAsync and FedBuff: what is run today for asynchronous horizontal learning, on MAPA's messages and parties.

C. Xie, S. Koyejo and I. Gupta, "Asynchronous Federated Optimization" (2019): FedAsync.
J. Nguyen and others, "Federated Learning with Buffered Asynchronous Aggregation" (2022): FedBuff.

Each edge takes several local steps from the model it pulled and uploads how far it came (pulled - local). The cloud

    FedAsync   x <- x + a(lag) (local - x),  a(lag) = mixing (1 + lag)^-decay          a step for every upload
    FedBuff    x <- x - rate mean_k s(lag_k) (pulled_k - local_k), s(lag) = (1+lag)^-1/2   a step for every `buffer`

There is no clip and no noise: an upload is as revealing as the plain gradients it sums up, and says so.
"""

from dataclasses import dataclass

import numpy as np

from offbeat.algorithms.mapa import MESSAGES, Upload
from offbeat.learning.horizontal import EdgeData, HorizontalModel
from offbeat.party.contract import State
from offbeat.party.memory import Memory
from offbeat.privacy.mechanism import NOT_COUNTED, NOT_PRIVATE
from offbeat.privacy.noise import Stream, fixed_size_sample

__all__ = ["MESSAGES", "BufferedMean", "LocalSteps", "Mixing"]


@dataclass(frozen=True)
class LocalSteps:
    """An edge's work between two messages: `steps` steps of plain stochastic gradient descent."""

    steps: int
    rate: float
    rows_each: int
    strength: float
    warning = f"local steps without noise: {NOT_PRIVATE}."

    @property
    def batch(self) -> float:
        return self.steps * self.rows_each

    def cost(self) -> None:
        return None

    def noise_per_clip(self, dimension: int) -> float:
        return 0.0

    def release(
        self, model: HorizontalModel, parameters: np.ndarray, data: EdgeData, clip: float, stream: Stream
    ) -> tuple[np.ndarray, float]:
        local = np.array(parameters)
        for _ in range(self.steps):
            rows = fixed_size_sample(stream, data.rows, self.rows_each)
            total = model.gradient_sum(local, data, rows)
            local -= self.rate * (total / rows.size + self.strength * local)
        return parameters - local, NOT_COUNTED


class Mixing:
    """FedAsync: mix in what an edge came to, less the later it is.

    The upload is relative to the model its edge pulled, so the cloud keeps the last models that may still be out.
    """

    clip = float("inf")
    stage = 0

    def __init__(self, mixing: float, decay: float, lag_max: int) -> None:
        self.mixing = mixing
        self.decay = decay
        self.lag_max = lag_max
        self.recent: dict[int, np.ndarray] = {}

    def apply(self, parameters: np.ndarray, upload: Upload, lag: int, version: int) -> np.ndarray:
        self.recent[version] = parameters
        local = self.recent[upload.version] - upload.gradient
        weight = self.mixing * (1 + lag) ** -self.decay
        self.recent.pop(version - self.lag_max, None)
        mixed: np.ndarray = parameters + weight * (local - parameters)
        return mixed

    def noise(self, per_clip: float) -> None:
        """There is none."""

    def snapshot(self) -> State:
        return {"versions": list(self.recent), "models": list(self.recent.values())}

    def restore(self, state: State) -> None:
        self.recent = {int(v): np.array(model) for v, model in zip(state["versions"], state["models"], strict=True)}


class BufferedMean(Memory):
    """FedBuff: collect `buffer` uploads, then step by their mean."""

    KEPT = ("total", "held")
    clip = float("inf")
    stage = 0

    def __init__(self, buffer: int, rate: float) -> None:
        self.buffer = buffer
        self.rate = rate
        self.total: np.ndarray | None = None
        self.held = 0

    def apply(self, parameters: np.ndarray, upload: Upload, lag: int, version: int) -> np.ndarray | None:
        weighted = upload.gradient * (1 + lag) ** -0.5
        self.total = weighted if self.total is None else self.total + weighted
        self.held += 1
        if self.held < self.buffer:
            return None
        moved: np.ndarray = parameters - self.rate / self.held * self.total
        self.total, self.held = None, 0
        return moved

    def noise(self, per_clip: float) -> None:
        """There is none."""
