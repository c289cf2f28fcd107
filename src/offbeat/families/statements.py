"""Sentences and figures that families put into a record: how it ended, who learned the labels, what to beware of."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from offbeat.data.assemble import VerticalData
from offbeat.jobs.runtime import ignored_by
from offbeat.jobs.vertical import Job
from offbeat.metrics.record import DataRecord
from offbeat.privacy.label_response import response_probabilities
from offbeat.privacy.ledger import Ledger, PureRelease
from offbeat.runtime.contract import Outcome

ROUNDING = 1e-13
OUTWEIGHED = 0.1
"""The curvature of counts is their mean: a penalty above this share of it is most of what is minimised."""
ONE_SCORE = 0.001
"""Scores that lie no further apart say of every row what a constant says."""
SEEDED = "Keys and masks are seeded: for experiments only."


def data_record(data: VerticalData) -> DataRecord:
    return DataRecord(
        data.source,
        data.rows,
        data.test_rows,
        dict(data.widths),
        tuple(data.notes),
        data.task,
        tuple(data.classes or ()),
        data.y_offset,
        data.y_scale,
    )


def verdict_of(outcome: Outcome, party: str, stopped: bool) -> tuple[str, str]:
    """How a run ended, by the word of the party that decides it: the server, or the cloud."""
    if stopped:
        return "stopped", "stopped on request; the model as it was is kept"
    finish = outcome.finished.get(party)
    if finish is not None:
        return finish.verdict, finish.reason
    if party in outcome.lost and not outcome.stalled:
        told = next((end.reason for end in outcome.finished.values() if end.verdict == "peer-lost"), "")
        return "peer-lost", told or f"{party} was lost"
    return ("time" if outcome.out_of_time else "stalled"), outcome.stalled


# -- warnings --------------------------------------------------------------------------------------------------------


def about_labels(
    names: Sequence[str], labels_at: Sequence[str], loss: str, epsilon: float | None, *, given: bool = False
) -> list[str]:
    """Who learned the labels, and where they were answered at random, which labels the figures refer to. `given`: the
    method gave them to every party."""
    noisy = [OF_ANSWERS] if epsilon is not None else []
    if given:
        what = "Random answers in place of the labels" if noisy else "The labels"
        return [f"{what} were given to every party: this method needs them everywhere.", *noisy]
    others = [name for name in names if name not in labels_at]
    if not others:
        return ["Every party holds the labels.", *noisy]
    advice = " Set label_dp_epsilon to protect them." if loss == "logistic" else ""
    told = f"stay at {', '.join(labels_at)}, but {', '.join(others)} received {DERIVATIVES_TELL[loss]}"
    if noisy:
        return [f"Random answers in place of the labels are disclosed: the labels {told}, not the label.", *noisy]
    return [f"Labels are disclosed: they {told}.{advice}"]


_MARGIN = "derivatives: at the known start they are the labels themselves, later how far the model is from them"
_COUNTS = (
    "derivatives and curvatures, which together are the label: a count, or how far an amount is from the expected one"
)
DERIVATIVES_TELL = {
    "logistic": "derivatives whose sign is the label",
    "debiased-logistic": "derivatives whose sign is the answer that was drawn for the label",
    "squared-hinge": "derivatives whose sign, where they are not zero, is the label",
    "softmax": "derivatives, one for each class, of which the one below zero is the label's",
    "poisson": _COUNTS,
    "gamma": _COUNTS,
    "squared": _MARGIN,
    "huber": f"{_MARGIN}, up to delta",
    "ls-svm": _MARGIN,
}
"""What a derivative says of a label, by loss."""

OF_ANSWERS = (
    "The objective and the certificate refer to the random answers in place of the labels, de-biased; test metrics "
    "refer to the true labels."
)


def about_sums(parties: int, scheme: str) -> list[str]:
    found = []
    if parties == 2:
        found.append(
            "There are two parties: each subtracts its own share from a sum and has the other's, whatever the scheme."
        )
    if scheme == "tree":
        found.append('secure_sum = "tree" sends partial sums in the clear: it is insecure, for comparison only.')
    if scheme == "two-tree":
        found.append(
            'secure_sum = "two-tree" hides a share from any one party that follows the protocol. Two that pool what '
            "they saw may uncover it, and so may a label holder that tells the others different things: its masks are "
            "bound to nothing that was told. It is the scheme of the papers, for comparison with them."
        )
    return found


def about_units(unit: float, mean: float | None, strength: float) -> list[str]:
    """`unit`: that in which labels were learned; `mean`: of counts."""
    found = []
    if unit != 1.0:
        found.append(
            f"Labels were learned in units of {unit:g}: objective, certificate and target are in the square of that. "
            "The model and its test metrics are in the labels' own units."
        )
    if mean is not None and strength > OUTWEIGHED * mean:
        found.append(
            f"The labels' mean is {mean:.2g}, so small that a penalty of {strength:g} outweighs them: coefficients are "
            "drawn to 0. Give the exposure in larger units (years in place of days), or a smaller penalty."
        )
    return found


def about_one_score(spread: float, strength: float) -> list[str]:
    """`spread`: how far the scores of the training rows lie apart, in units of the labels' deviation."""
    if not spread < ONE_SCORE:
        return []
    return [
        f"The model gives all rows nearly the same score: the penalty of {strength:g} outweighs what the columns tell "
        'of the labels, or they tell nothing. Take a smaller penalty; penalty = "auto" finds one.'
    ]


def about_missed_target(gap: float, objective: float) -> str:
    """How much that is, what limits it and what to do; to stand behind what the chair says."""
    bounded = isfinite(gap) and objective > 0.0
    share = f", {gap / objective:.2g} of the objective" if bounded else ""
    if bounded and gap < ROUNDING * objective:
        return f"{share}: nearer than that rounding does not let it come. Take a larger target"
    return (
        f"{share}. Columns that say nearly the same, numbers of very different sizes and a small penalty take many "
        "passes: raise passes beyond those that were made, or take a larger penalty or target"
    )


def about_world(job: Job, source: str) -> list[str]:
    """What was not real: keys, network, data."""
    found, ignored = [SEEDED], ignored_by(job.runtime)
    if job.runtime.faults != "calm" and "runtime.faults" not in ignored:
        found.append(f"Faults were injected on purpose: {job.runtime.faults}.")
    if ignored:
        found.append(f"This runtime does not know {', '.join(ignored)}: the run went on without.")
    if "pooled-unit" in source:
        pooled = "Rows were scaled by their pooled norm, which real parties would have to share: for comparison only."
        return [*found, *about_data(source), pooled]
    return [*found, *about_data(source)]


def about_data(source: str) -> list[str]:
    return ["The data is generated, not real."] if "generated" in source else []


def alarms(outcome: Outcome) -> list[str]:
    distinct = {(finish.verdict, finish.reason): None for finish in outcome.finished.values()}
    found = [f"{reason}." for verdict, reason in distinct if verdict in ("diverged", "range", "peer-lost")]
    found += about_end(outcome) if outcome.stalled != "ended by the observer" else []
    for time_s, party, name, value in outcome.observations:
        if name == "lost":
            found.append(f"{party} lost {value} at {time_s:.3g} s.")
        elif name in ("starved", "alarm"):
            found.append(f"{party}: {value}")
    return list(dict.fromkeys(found))


def about_end(outcome: Outcome) -> list[str]:
    broken_off = outcome.stalled and not outcome.out_of_time
    return [f"The run did not end by itself: {outcome.stalled}."] if broken_off else []


# -- privacy ---------------------------------------------------------------------------------------------------------


def promised_labels(epsilon: float | None) -> list[str]:
    """What holds of labels that were answered at random."""
    if epsilon is None:
        return []
    kept, _ = response_probabilities(epsilon, 2)
    return [
        f"Training labels were answered at random first (label_dp_epsilon = {epsilon:g}): each answer is the true "
        f"label with probability {kept:.3g}. Features are not covered."
    ]


def label_ledger(labels_at: Sequence[str], epsilon: float, *, seeded: bool) -> dict[str, dict[str, Any]]:
    """What each label holder's ledger says: one answer per label, whatever is computed from it later. It is the same
    answer at every holder, so their epsilons do not add up."""
    spent = Ledger(None)
    spent.spend(PureRelease(epsilon))
    stated = {
        **spent.statement(),
        "epsilon": epsilon,
        "delta": 0.0,
        "budget_epsilon": epsilon,
        "adjacency": "replace-one label",
        "warning": "labels alone, by randomised response: features are not covered",
        "seeded": seeded,
    }
    return {name: dict(stated) for name in labels_at}
