"""Options of the linear vertical methods, and what is chosen where the user left something open."""

from dataclasses import dataclass, field
from math import floor, log2, log10

import numpy as np

from offbeat.errors import BadJob, OutOfRange
from offbeat.learning import metric as metrics
from offbeat.learning.blocks import DIRECTIONS, Block
from offbeat.learning.losses import DEBIASED_LOGISTIC, SQUARED, Loss
from offbeat.learning.sparse import SparseBlock
from offbeat.learning.steps import BLOCKS_A_PASS, Steepness, default_batch, default_step
from offbeat.party.masked_sum import SumOptions
from offbeat.party.problem import Problem
from offbeat.privacy.products import ProductPlan

FRACTION_BITS_LEAST = 16  # fewer would round products too coarsely to be worth advising
FEW_STEPS, SGD_SURVEY_PASSES = 0.25, 3.0
ROOM_FOR_LABELS = 16.0  # one party's part of a product may be larger than the product


@dataclass(frozen=True)
class LinearOptions:
    """Options shared by the linear vertical methods. `None` means: choose from what was measured."""

    method: str = "svrg"
    passes: float = 60.0  # the run ends after so many passes and so many seconds, whichever is later,
    seconds: float = 0.0
    target: float | None = None  # or when the certificate is at or below
    step: float | None = None
    batch: int | None = None
    in_flight: int | None = None
    survey_passes: float | None = None  # of steps, from one survey to the next
    leap: bool = True
    by_curvature: bool | None = None  # steps are multiplied by the inverse curvature; None: where that can be known
    zero_start: bool = True  # all parties' blocks; the first survey then needs no sums
    lag_max: int = 0  # products that are older are not used; 0: any
    on_loss: str = "wait"
    sums: SumOptions = field(default_factory=SumOptions)
    products: ProductPlan | None = None  # products are private; rounds over all rows, and nothing else is summed

    asynchronous: bool = True

    constant_metric = 1.0

    def __post_init__(self) -> None:
        if self.method not in DIRECTIONS:
            raise BadJob(f"method must be one of {', '.join(DIRECTIONS)}; got {self.method!r}.")
        if not self.passes > 0:
            raise BadJob(f"passes must be above 0; got {self.passes}.")
        if self.survey_passes is not None and not self.survey_passes >= 0:
            raise BadJob(f"survey_passes must be 0 or more, or left out to be chosen; got {self.survey_passes}.")
        if self.survey_passes == 0 and (self.method == "sgd" or not self.leap):
            raise BadJob(
                "survey_passes = 0 makes no steps between surveys: leaps alone move the model, and only SVRG and SAGA "
                f"leap, with leap = true; got {self.method} with leap = {str(self.leap).lower()}. Use a number above 0."
            )
        if self.step is not None and not self.step > 0:
            raise BadJob(f"step must be above 0, or left out to be chosen; got {self.step}.")
        if not self.seconds >= 0:
            raise BadJob(f"seconds must be 0 or more; got {self.seconds}.")
        if self.by_curvature and self.method == "sgd":
            raise BadJob(
                "by_curvature = true needs SVRG or SAGA, whose steps keep their length; got sgd, whose steps decay. "
                "Use another method or leave by_curvature out."
            )
        for name in ("in_flight", "batch"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise BadJob(f"{name} must be at least 1, or left out to be chosen; got {getattr(self, name)}.")

    def metric_for(self, block: Block, loss: Loss) -> str:
        """Narrow dense blocks step by all of their curvature, wide dense ones by its diagonal; sparse ones by the
        diagonal if the user says so or the loss grows, otherwise plainly."""
        sparse = isinstance(block, SparseBlock)
        plain = self.by_curvature is None and sparse and not loss.grows
        if self.by_curvature is False or self.method == "sgd" or plain:
            return metrics.NONE
        return metrics.DIAGONAL if sparse or block.width > metrics.WHOLE_WIDTH_MOST else metrics.WHOLE

    def spacing(self, found: Steepness, rows: int, trip_rows: float) -> float:
        """How many passes of steps lie between two surveys; `trip_rows`: how many rows a round trip takes.

        Where every block steps by all of its curvature, a few long steps between surveys are enough, and none where
        their round trips would take longer than a survey does. A step or a batch of the user's is there to be used.
        """
        if self.survey_passes is not None:
            return self.survey_passes
        if self.method == "sgd":
            return SGD_SURVEY_PASSES
        if self.step is not None or self.batch is not None or not self.leap or found.plain:
            return 1.0
        return FEW_STEPS if FEW_STEPS * BLOCKS_A_PASS * trip_rows < rows / 2 else 0.0

    def choose(self, found: Steepness, rows: int, trip_rows: float) -> tuple[float, int]:
        """Step size and batch, where the user left them open; `trip_rows`: how many rows a round trip takes."""
        batch = self.batch or default_batch(found, self.method, rows, trip_rows)
        batch = min(batch, rows)
        return self.step or default_step(self.method, found.smoothness, found.row_smoothness, batch, rows), batch

    def check_loss(self, problem: Problem) -> None:
        """Steps need a bound on the curvature, or the curvature itself and a way back."""
        loss = problem.loss
        if loss.grows and not problem.spanned:
            raise BadJob(
                f"The loss {loss.name} goes with the penalty l2 or none, so far; got {problem.penalty.name}. Its "
                "curvature grows without bound, and whether steps went too far is known for these penalties alone."
            )
        if loss.grows and (self.method == "sgd" or self.by_curvature is False):
            what = "stochastic gradients alone" if self.method == "sgd" else "by_curvature = false"
            raise BadJob(
                f"The loss {loss.name} needs steps by the curvature: that of counts and amounts grows without bound, "
                f"and {what} would run away. Use a method with svrg or saga, such as vfb2-saga, and leave by_curvature "
                "out."
            )

    def check_labels(self, problem: Problem, limit: float, parties: int) -> None:
        """The products are to reach the labels: where those do not fit, no step size helps."""
        labels = problem.labels
        if labels is None or not (problem.loss is SQUARED or problem.loss.delta) or not np.abs(labels).max() >= limit:
            return
        largest = float(np.abs(labels).max())
        bits = floor(63 - log2(ROOM_FOR_LABELS * largest * parties))
        fewer = f", or set fraction_bits to {bits} or less: each bit less doubles the range and halves the precision"
        raise OutOfRange(
            f"The label's numbers are too large: sums over the parties hold numbers below {limit:.3g} only. Divide the "
            f"label by {10.0 ** floor(log10(largest)):.0e}, say{fewer if bits >= FRACTION_BITS_LEAST else ''}."
        )


def remedy(problem: Problem) -> str:
    """What to do about divergence."""
    if problem.loss is DEBIASED_LOGISTIC:
        return (
            "label_dp_epsilon is so small that random answers drown the labels, and their correction makes every "
            "step a large one; use a larger epsilon (2 to 3 costs little accuracy), or a smaller step"
        )
    return "use a smaller step"
