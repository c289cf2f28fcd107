"""What each party is worth: exact Shapley values of a held-out score over coalitions of parties.

    worth(data, job).values          # by party; they add up to the joint score less that of no party

A coalition's score is that of the model trained anew on its members' columns alone: the minimum of the job's
objective, which a run of these parties is certified to come near to. It is found in one place, each coalition beginning
where a smaller one has ended. A model without columns is a constant. So a party whose columns others have too is worth
less than it would be alone, and one that helps nobody is worth 0, up to noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from math import factorial, fsum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offbeat.data.assemble import VerticalData
from offbeat.data.matrix import Floats, stack_columns
from offbeat.errors import BadInput, BadJob
from offbeat.families.linear import setting_for
from offbeat.families.setting import Setting
from offbeat.jobs.reading import read_job
from offbeat.jobs.vertical import Job
from offbeat.learning import central
from offbeat.learning.losses import DEBIASED_LOGISTIC, LOGISTIC
from offbeat.learning.penalties import L2, NONE
from offbeat.learning.scores import accuracy, area_under_curve
from offbeat.metrics.held_out import Worth
from offbeat.metrics.record import RunRecord
from offbeat.run.folder import job_of

PARTIES_MOST = 6
GROUPS = 20
"""Standard errors are found by leaving out one of so many groups of held-out rows at a time."""
TOLERANCE = 1e-6
SCORES = ("auc", "accuracy", "explained")

Coalition = tuple[str, ...]
Score = Callable[[Floats, Any], float]


def worth(
    data: VerticalData, job: Job, score: str | None = None, tell: Callable[[str], None] = lambda text: None
) -> Worth:
    """What each party is worth: `data` of at most six parties and a linear `job`, trained anew for each coalition.
    `score`: "auc", "accuracy", or "explained", the share of the loss of a constant that is explained (R^2 for numbers);
    None: auc for two classes, accuracy for more, explained for numbers. `tell` is told of every coalition."""
    setting = _setting(data, job)
    name, measure = _measure(setting, data, score)
    scored: dict[Coalition, Floats] = {(): _scores_of_constant(setting)}
    found: dict[Coalition, Mapping[str, Floats]] = {}
    for size in range(1, len(data.names) + 1):
        for names in combinations(data.names, size):
            found[names] = _refitted(setting, names, found)
            scored[names] = _scores(setting, names, found[names])
            tell(f"{' + '.join(names)}: {name} {measure(scored[names], slice(None)):.4f}")
    values, at = _of_all(scored, data.names, measure, slice(None))
    return Worth(
        score=name,
        rows=len(setting.y_test),
        joint=at[data.names],
        empty=at[()],
        values=values,
        errors=_errors(scored, data.names, measure, len(setting.y_test)),
        coalitions={" + ".join(names) if names else "nobody": value for names, value in at.items()},
    )


def shapley(at: Mapping[Coalition, float], names: Coalition) -> dict[str, float]:
    """What each member adds on average, over all orders in which they could join; `at`: the score of each coalition,
    members in the order of `names`."""
    n, found = len(names), {}
    for name in names:
        terms = []
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for others in combinations([other for other in names if other != name], size):
                joined = tuple(one for one in names if one == name or one in others)
                terms += [weight * at[joined], -weight * at[others]]
        found[name] = fsum(terms)
    return found


def _of_all(
    scored: Mapping[Coalition, Floats], names: Coalition, measure: Score, rows: Any
) -> tuple[dict[str, float], dict[Coalition, float]]:
    at = {one: measure(scores, rows) for one, scores in scored.items()}
    return shapley(at, names), at


def _errors(scored: Mapping[Coalition, Floats], names: Coalition, measure: Score, rows: int) -> dict[str, float]:
    """Jackknife over groups of held-out rows."""
    groups = min(GROUPS, rows)
    group = np.arange(rows) % groups
    without = [_of_all(scored, names, measure, np.flatnonzero(group != one))[0] for one in range(groups)]
    spread = {name: np.array([values[name] for values in without]) for name in names}
    return {name: float(np.sqrt((groups - 1) * np.var(values))) for name, values in spread.items()}


def job_for_worth(path: Path, record: RunRecord | None) -> Job:
    """The job of a run folder or a job file. Between organisations nobody may train all coalitions in one place."""
    if record is not None and record.runtime == "grpc":
        raise BadInput(
            f"{path} is one organisation's side of a run. What the parties are worth needs a training for each "
            "coalition, every one agreed to and disclosed as any job, and that is not built. Submit jobs for the "
            "coalitions you need, and compare their test metrics; or try generated or released rows in one place."
        )
    job = job_of(path) if record is not None else read_job(path)
    if not isinstance(job, Job):
        raise BadInput(f"What parties are worth is for vertical jobs, in which they hold columns; {path} is no such.")
    chosen = None if record is None else record.options.get("penalty")
    return msgspec.structs.replace(job, penalty=chosen) if isinstance(chosen, float | int) else job


# -- the problem -----------------------------------------------------------------------------------------------------


def _setting(data: VerticalData, job: Job) -> Setting:
    if not isinstance(job, Job) or not isinstance(data, VerticalData):
        raise BadInput(
            f"worth takes data and a vertical job, as in worth(load_data(job), job); got {type(data).__name__} and "
            f"{type(job).__name__}."
        )
    if job.embeds:
        raise BadInput(
            f"What parties are worth is known for the linear methods, whose best model is one; {job.algorithm} trains "
            "networks, which end elsewhere with each start. Use vfb2-saga in a copy of the job."
        )
    if job.product_epsilon is not None:
        raise BadInput(
            "What parties are worth is found by training without noise, and product_epsilon promises noise. Leave "
            "product_epsilon and [products] out in a copy of the job, if all rows may be in one place for that."
        )
    if len(data.names) > PARTIES_MOST:
        raise BadInput(
            f"Exact values need a model for each coalition, and {len(data.names)} parties have 2^{len(data.names)} of "
            f"them: at most {PARTIES_MOST} parties. Put some together in a copy of the job."
        )
    if not data.test_rows:
        raise BadInput("What parties are worth is told by held-out rows, and there are none: set data.test_fraction.")
    if not isinstance(job.penalty, float | int):
        raise BadInput("The job leaves its penalty to be chosen. Run it, and ask for the worth in the run's folder.")
    if job.penalty_kind not in ("l2", "none"):
        raise BadJob(f"penalty_kind = {job.penalty_kind!r} has no one best model to compare coalitions by; use l2.")
    setting = setting_for(data, job)
    thin = {name: (central.thin(setting.train[name]), central.thin(setting.test[name])) for name in data.names}
    return replace(
        setting,
        train={name: train for name, (train, _) in thin.items()},
        test={name: test for name, (_, test) in thin.items()},
    )


def _refitted(setting: Setting, names: Coalition, found: Mapping[Coalition, Mapping[str, Floats]]) -> dict[str, Floats]:
    """The best weights by party, outputs x columns, and under "" the constants: from where fewer parties ended."""
    known = found.get(names[:-1], {})
    outputs, widths = setting.loss.outputs, [setting.train[name].shape[1] for name in names]
    parts = [known.get(name, np.zeros((outputs, width))) for name, width in zip(names, widths, strict=True)]
    free = int(setting.intercept)
    if free:
        parts.append(known.get("", np.zeros((outputs, 1))))
    start, pooled = np.hstack(parts).ravel(), replace(setting, names=names).pooled()
    if setting.penalty in (L2, NONE):
        strength = setting.strength if setting.penalty is L2 else 0.0
        loss, y = setting.weighted_loss, setting.y_train
        best, _ = central.optimum(pooled, y, loss, strength, free=free, tolerance=TOLERANCE, start=start)
    else:  # absolute values in it: no Newton steps
        terms = (setting.weighted_loss, setting.penalty, setting.strength)
        orders = replace(setting, names=names).pooled_orders()
        best = central.descend(pooled, setting.y_train, start, *terms, free=free, orders=orders)
    cuts = np.split(best.reshape(outputs, -1), np.cumsum(widths), axis=1)
    return {**dict(zip(names, cuts, strict=False)), "": cuts[-1]}


def _scores(setting: Setting, names: Coalition, model: Mapping[str, Floats]) -> Floats:
    blocks = stack_columns([setting.test[name] for name in names])
    weights = np.hstack([model[name] for name in names])
    total = np.asarray(blocks @ weights.T)
    total = total + model[""][:, 0] if setting.intercept else total
    return total if setting.loss.outputs > 1 else total[:, 0]


def _scores_of_constant(setting: Setting) -> Floats:
    outputs, rows = setting.loss.outputs, len(setting.y_test)
    best = np.zeros(outputs)
    if setting.intercept:
        ones = np.ones((setting.rows, 1))
        best = central.descend(ones, setting.y_train, best, setting.weighted_loss, NONE, 0.0, free=1)
    return np.tile(best, (rows, 1)) if outputs > 1 else np.full(rows, best[0])


# -- scores ----------------------------------------------------------------------------------------------------------


def _measure(setting: Setting, data: VerticalData, wanted: str | None) -> tuple[str, Score]:
    usual = {"classification": "auc", "multiclass": "accuracy"}.get(data.task, "explained")
    name, y = wanted or usual, setting.y_test
    known = [one for one in SCORES if one == "explained" or (setting.classifies and (one != "auc" or usual == "auc"))]
    if name not in known:
        raise BadInput(f"score {name!r} is none for this task; use one of {', '.join(known)}.")
    if name == "auc" and len(np.unique(y)) < 2:
        raise BadInput(
            f"The area under the curve compares two classes, and the {len(y):,} held-out rows are all of one. Hold "
            'rows of both out, or use score = "accuracy" (--score accuracy).'
        )
    if name == "auc":
        return name, lambda scores, rows: area_under_curve(_margin(scores)[rows], y[rows] > 0)
    if name == "explained":
        loss = LOGISTIC if setting.loss is DEBIASED_LOGISTIC else setting.loss
        constant = _scores_of_constant(setting)

        def explained(scores: Floats, rows: Any) -> float:
            lost, empty = (float(np.mean(loss.value(_by_output(z[rows]), y[rows]))) for z in (scores, constant))
            return 1.0 - lost / empty

        return name, explained
    if setting.loss.outputs > 1:
        return name, lambda scores, rows: float(np.mean(scores[rows].argmax(axis=1) == y[rows]))
    return name, lambda scores, rows: accuracy(scores[rows], y[rows])


def _margin(scores: Floats) -> Floats:
    return scores if scores.ndim == 1 else scores[:, 1] - scores[:, 0]


def _by_output(scores: Floats) -> Floats:
    return scores if scores.ndim == 1 else np.ascontiguousarray(scores.T)
