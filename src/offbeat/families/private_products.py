"""A linear run with private products: its plan, its rows, and what its record says (privacy/products.py)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import log2, sqrt
from typing import Any

from offbeat.data.assemble import VerticalData
from offbeat.data.matrix import Matrix, row_norms, scale_rows
from offbeat.data.preparation import UNIT_ROWS
from offbeat.errors import BadJob
from offbeat.families.setting import Setting
from offbeat.jobs.vertical import Job
from offbeat.learning.losses import SQUARED
from offbeat.privacy.products import STEP_FACTOR, ProductPlan, row_bound

OBSERVED = "objective and metrics are the observer's, who holds all rows; no party sees them."


def plan_of(job: Job, data: VerticalData) -> ProductPlan | None:
    """What all parties agree on, from the job and from what is no secret of anybody's: numbers of rows and columns."""
    unit = 1.0 / sqrt(len(data.names)) if UNIT_ROWS in data.source else None
    return planned(job, len(data.names), data.rows, data.widths.values(), unit)


def planned(job: Job, parties: int, rows: int, widths: Iterable[int], unit: float | None = None) -> ProductPlan | None:
    """The plan for so many rows. `widths`: of the blocks that the caller knows. `unit`: the norm that rows have."""
    if job.product_epsilon is None:
        return None
    plan = ProductPlan(
        epsilon=job.product_epsilon,
        delta=job.product_delta,
        parties=parties,
        rows=rows,
        steps=job.products.rounds,
        step=STEP_FACTOR / parties if isinstance(job.step, str) else job.step,
        clip=job.products.clip,
        constant=job.intercept,
        colluders=job.products.colluders,
        row_norm=unit if job.products.row_norm is None else job.products.row_norm,
    )
    if job.product_delta * rows > 1.0:
        raise BadJob(
            f"product_delta must be below one over the number of rows, {1.0 / rows:.2g}, since it is the chance "
            f"that a row is not protected; got {job.product_delta:g}."
        )
    shrinks = max(plan.step * job.strength / row_bound(plan, width) ** 2 for width in widths)
    if job.penalty_kind == "l2" and shrinks > 1.0:
        raise BadJob(
            f"A penalty of {job.strength:g} is too strong for steps of {plan.step:g} over rows of this norm: a step "
            "would turn the weights round. Lower penalty or step."
        )
    return plan


def prepared(setting: Setting, job: Job, data: VerticalData) -> Setting:
    """The rows cut to their norm, each by itself; columns not centred, which would take all rows; labels in units."""
    if setting.loss.outputs > 1:
        raise BadJob("product_epsilon is for two classes or a number, so far: more classes have a product for each.")
    if len(data.labels_at) > 1 or len(setting.weights):
        raise BadJob(
            "product_epsilon needs one label holder, who asks for all products, and rows that count alike; got "
            f"{len(data.labels_at)} label holders{' and weights of rows' if len(setting.weights) else ''}. Name one in "
            "labels_at, and leave weights out."
        )
    plan = plan_of(job, data)
    assert plan is not None
    train = {name: cut_to_norm(plan, rows) for name, rows in setting.train.items()}
    spread = float(setting.y_train.std())
    if setting.loss is SQUARED and spread > 0.0 and not setting.classifies:
        middle = float(setting.y_train.mean()) if setting.intercept else 0.0
        setting = setting.in_units(middle, 2.0 ** round(log2(spread)))
    return replace(setting, train=train, centred=False)


def cut_to_norm(plan: ProductPlan, rows: Matrix) -> Matrix:
    """Each row by itself, to the norm that the plan has for so many columns."""
    bound, norms = row_bound(plan, rows.shape[1]), row_norms(rows)
    return scale_rows(rows, bound / norms.clip(min=bound))


def promises(plan: ProductPlan | None) -> list[str]:
    """What the epsilon covers."""
    if plan is None:
        return []
    return [
        f"Products are private: epsilon {plan.statement(True).get('epsilon', 0.0):.3g} at delta {plan.delta:g} for the "
        f"features of any one row at one party, over the whole run of {plan.releases} releases. Means and spreads that "
        "columns were prepared with count as known, and labels are not covered."
    ]


def warnings(plan: ProductPlan | None, parties: Sequence[Any], uncertified: str = OBSERVED) -> list[str]:
    """What the bounds cost, and what is not proved."""
    if plan is None:
        return []
    known = [party.shares.cut / party.shares.given for party in parties if party.shares.given]
    cut = f"; up to {100 * max(known):.2g} % of a party's shares were cut off" if known else ""
    return [
        f"Noise of deviation {plan.statement(True)['deviation']:.3g} was added to products of at most {plan.clip:g} "
        f"for each party{cut}. Nothing is certified: {uncertified}"
    ]
