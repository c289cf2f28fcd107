"""What goes with private products, and what does not (docs/explanation/private-products.md says why)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from offbeat.errors import BadJob
from offbeat.settings import Natural, Positive, Settings

if TYPE_CHECKING:
    from offbeat.jobs.organisations import OrgJob
    from offbeat.jobs.vertical import Job

ROUNDS = "vfb-sgd"
USUAL_ONLY = (
    "passes", "seconds", "target", "early_stopping", "start", "batch", "in_flight", "lag_max", "survey_passes", "leap",
    "by_curvature", "label_dp_epsilon", "secure_sum", "fraction_bits", "class_weight", "l1_ratio",
)  # fmt: skip
"""Keys that would let more leave than the plan has, or that rounds over all rows have no use for."""
USUAL_ONLY_ORGS = ("passes", "target", "batch", "in_flight", "secure_sum", "label_dp_epsilon", "start")
"""The same under [method] between organisations."""
Epsilon = Annotated[float, Meta(ge=1e-3, le=1e6)]
Delta = Annotated[float, Meta(gt=0, lt=1)]


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
    _check_method(job, usual, USUAL_ONLY, where)
    _check_values(job, where)


def _check_method(method: Any, usual: Any, keys: Sequence[str], where: object) -> None:
    if method.algorithm != ROUNDS:
        raise BadJob(
            f'{where}: product_epsilon works with algorithm = "{ROUNDS}", so far: rounds over all rows, whose number '
            "is fixed before. Surveys, certificates and steps by curvature tell of rows what no noise covers; got "
            f"{method.algorithm!r}."
        )
    for key in keys:
        if getattr(method, key) != getattr(usual, key):
            python = ", in Python target=None" if key == "target" else ""  # an estimator has one by default
            raise BadJob(
                f"{where}: {key} does not go with product_epsilon, under which a run takes products.rounds steps over "
                f"all rows and lets nothing else leave. Leave {key} out{python}."
            )


def check_between_organisations(job: "OrgJob", where: object) -> None:
    method, model = job.method, job.model
    if method.product_epsilon is None:
        if method.product_delta != type(method)().product_delta or job.products != ProductsEntry():
            raise BadJob(f"{where}: product_delta and [products] say how products are private; set product_epsilon.")
        return
    _check_method(method, type(method)(), USUAL_ONLY_ORGS, where)
    if model.loss != "ls-svm" or model.penalty not in ("l2", "none") or model.l1_ratio > 0.0:
        raise BadJob(
            f'{where}: product_epsilon goes with loss = "ls-svm" under [model] between organisations, so far, and with '
            f"the penalties 'l2' and 'none'; got the loss '{model.loss}' and the penalty '{model.penalty}', l1_ratio = "
            f"{model.l1_ratio:g}. The derivative of that loss is linear in the product, so noise does not shift it."
        )
    if len(job.labels_at) > 1 or job.network.on_loss == "continue":
        raise BadJob(
            f"{where}: product_epsilon needs one label holder, who asks for all products, and one roster: name one "
            'party in labels_at, and take on_loss = "wait" or "stop" under [network].'
        )
    if job.rows.test_fraction:
        raise BadJob(
            f"{where}: under product_epsilon no row is kept for testing: scores of test rows without noise would pass "
            "the budget, and with the noise of products they would say nothing. Set test_fraction = 0 under [rows]."
        )
    most = len(job.parties) - 2
    if job.products.colluders > most:
        raise BadJob(
            f"{where}: products.colluders must be between 0 and {most} with {most + 2} parties: those who help an "
            f"observer, less the observer and the one that is protected; got {job.products.colluders}."
        )


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
