"""What goes with private products, and what does not (docs/explanation/private-products.md says why)."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from offbeat.errors import BadJob
from offbeat.settings import Natural, Positive, Settings

if TYPE_CHECKING:
    from offbeat.jobs.vertical import Job

ROUNDS = "vfb-sgd"
USUAL_ONLY = (
    "passes", "seconds", "target", "early_stopping", "start", "batch", "in_flight", "lag_max", "survey_passes", "leap",
    "by_curvature", "label_dp_epsilon", "secure_sum", "fraction_bits", "class_weight", "l1_ratio",
)  # fmt: skip
"""Keys that would let more leave than the plan has, or that rounds over all rows have no use for."""


class ProductsEntry(Settings, frozen=True):
    """How products are private, where product_epsilon is set."""

    rounds: Annotated[int, Meta(ge=1, le=1000)] = 6
    colluders: Natural = 0
    clip: Positive = 0.25
    row_norm: Positive | None = None


def check_private_products(job: "Job", where: str) -> None:
    usual = type(job)()
    if job.product_epsilon is None:
        for key in ("product_delta", "products"):
            if getattr(job, key) != getattr(usual, key):
                raise BadJob(f"{where}: {key} says how products are private, and product_epsilon is not set.")
        return
    if job.algorithm != ROUNDS:
        raise BadJob(
            f'{where}: product_epsilon works with algorithm = "{ROUNDS}", so far: rounds over all rows, whose number '
            "is fixed before. Surveys, certificates and steps by curvature tell of rows what no noise covers; got "
            f"{job.algorithm!r}."
        )
    for key in USUAL_ONLY:
        if getattr(job, key) != getattr(usual, key):
            python = ", in Python target=None" if key == "target" else ""  # an estimator has one by default
            raise BadJob(
                f"{where}: {key} does not go with product_epsilon, under which a run takes products.rounds steps over "
                f"all rows and lets nothing else leave. Leave {key} out{python}."
            )
    _check_values(job, where)


def _check_values(job: "Job", where: str) -> None:
    if job.loss not in ("auto", "squared", "ls_svm"):
        raise BadJob(
            f'{where}: product_epsilon goes with the losses "squared" and "ls_svm", whose derivatives are linear in '
            f"the product, so that noise does not shift them; got {job.loss!r}. Leave the loss out to have one of them."
        )
    if job.penalty_kind not in ("l2", "none") or not isinstance(job.penalty, float | int):
        raise BadJob(f'{where}: product_epsilon goes with a penalty of kind "l2" or "none" and one given strength.')
    if job.runtime.lanes > 1:
        raise BadJob(f"{where}: rounds with private products have one lane; got runtime.lanes = {job.runtime.lanes}.")
    if job.step == "grid" or job.on_loss == "continue" or job.data.rows == "pooled-unit":
        raise BadJob(
            f'{where}: step = "grid", on_loss = "continue" and data.rows = "pooled-unit" do not go with '
            "product_epsilon: each lets numbers about rows leave a second time, or without noise. Choose another value."
        )
    if any(entry.weight is not None or entry.exposure is not None for entry in job.party):
        raise BadJob(f"{where}: rows have no weights and no exposure under product_epsilon. Leave these keys out.")
