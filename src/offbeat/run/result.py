"""What a finished run leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.families.contract import Part
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Party


@dataclass(frozen=True)
class Result:
    """A finished run.

    record   what it came to
    models   every party's part of the model
    parties  the parties as the run left them
    """

    record: RunRecord
    models: Mapping[str, Part]
    parties: Sequence[Party]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights of a linear model by party."""
        return {name: part.arrays["weights"] for name, part in self.models.items()}

    @property
    def intercept(self) -> float:
        """That of a linear model; 0 without one."""
        return sum(float(part.arrays["intercept"][0]) for part in self.models.values() if "intercept" in part.arrays)

    @property
    def optimum(self) -> float | None:
        """The least objective, or the least one known, where it was looked for."""
        found: float | None = self.record.options["chosen"].get("optimum")
        return found
