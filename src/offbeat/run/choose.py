"""Choosing by held-out rows: which penalty, and when to end.

**The penalty.** One walk from the strongest to the weakest; every fit begins where the one before it ended, and is
judged by the mean loss of rows that were held out of the training rows: a fifth of them, or each fold in turn. The
best strength is then fitted to all training rows, again from where the walk was. Test rows play no part in it.

**The end.** With `early_stopping` a run ends when its held-out score has not improved for so many passes.

The scores of held-out rows are the label holder's to know. In one process an observer computes them, as it does all
test metrics; between organisations that is a masked sum for each row and strength, which daemons do not offer yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, NamedTuple

import msgspec
import numpy as np

from offbeat.data.assemble import VerticalData
from offbeat.data.holdout import folds_of, held_out
from offbeat.data.matrix import Flags
from offbeat.errors import BadData, OffbeatError
from offbeat.families.contract import Part, Training
from offbeat.families.linear import LinearTraining, row_weights, setting_for
from offbeat.families.setting import Setting
from offbeat.jobs.vertical import Job
from offbeat.metrics.record import Reveal
from offbeat.party.verdicts import ended_well
from offbeat.run.observer import Progress, Watch
from offbeat.run.result import Result

HELD_OUT = 0.2
ROWS_LEAST = 10
NEAR = 1e-4
"""Of the loss without a model: as near as fits on the walk come to their best."""
ALIKE = 1e-3
"""Held-out losses that differ by less, in parts of the least, are alike."""
WORSE_MOST = 3
"""So many strengths in a row without gain end the walk of "auto"."""
GAIN = 1e-4
"""A score that has changed by less, in parts of itself, has not improved."""

Run = Callable[..., Result]
Parts = Mapping[str, Part]


class Tried(NamedTuple):
    """One strength: the mean loss of held-out rows, and what its fits took."""

    penalty: float
    held_out_loss: float
    passes: float
    seconds: float


@dataclass(frozen=True)
class Chosen:
    """A training with the best strength, and how that was found."""

    training: LinearTraining
    tried: tuple[Tried, ...]
    rows: int
    folds: int

    @property
    def best(self) -> Tried:
        return best_of(self.tried)

    def sentence(self) -> str:
        first, last = self.tried[0].penalty, self.tried[-1].penalty
        by = f"{self.rows:,} rows that were held out" if self.folds == 1 else f"{self.folds} folds of the training rows"
        return (
            f"The penalty {self.best.penalty:.3g} was chosen from {len(self.tried)} between {first:.3g} and {last:.3g} "
            f"by the mean loss of {by} ({self.best.held_out_loss:.4g}). The model was then fitted to all training rows."
        )

    def reveal(self) -> Reveal:
        told = (
            "the score of every held-out row, once for each strength and fold, to the label holder. In this run one "
            "process computed them without messages; between parties each is a masked sum."
        )
        return Reveal("held-out scores", len(self.tried) * self.folds, 0, told)


def with_best_penalty(training: Any, run: Run, watch: Watch | None) -> Chosen:
    """The training of the best strength, which begins where the walk was. `run` is run_training."""
    job, data = training.job, training.data
    cuts = _cuts(job, data)
    starts: dict[float, Parts] = {}
    tried: list[Tried] = []
    before: list[Parts | None] = [None] * len(cuts)
    for strength in job.penalties:
        fits = [_fit(job, cut, strength, start, run, watch) for cut, start in zip(cuts, before, strict=True)]
        before = [fit.models for fit in fits]
        starts[strength] = fits[0].models
        tried.append(Tried(strength, *np.mean([fit.figures for fit in fits], axis=0).tolist()))
        if job.penalty == "auto" and len(tried) - tried.index(best_of(tried)) > WORSE_MOST:
            break
    best = best_of(tried)
    if not isfinite(best.held_out_loss):
        raise OffbeatError(
            f"None of the {len(tried)} penalties led to a model: every fit ended without one. Give `penalty` a number "
            "to see why."
        )
    chosen = msgspec.structs.replace(job, penalty=best.penalty, penalty_folds=1)
    final = LinearTraining(chosen, data, optimum=training.optimum, start=starts[best.penalty])
    return Chosen(final, tuple(tried), cuts[0].data.test_rows, len(cuts))


def best_of(tried: Sequence[Tried]) -> Tried:
    """The strongest of those that are as good as the best: smaller differences say nothing."""
    least = min(one.held_out_loss for one in tried)
    return next(one for one in tried if one.held_out_loss <= (1.0 + ALIKE) * least)


class TriedFit(NamedTuple):
    models: Parts
    figures: tuple[float, float, float]


class Cut(NamedTuple):
    """Training rows, and held-out rows in the place of test rows; the weights of those; the problem."""

    data: VerticalData
    held_weights: np.ndarray
    setting: Setting

    def near(self) -> float:
        outputs, rows = self.setting.loss.outputs, self.setting.rows
        nothing = np.zeros(rows if outputs == 1 else (outputs, rows))
        return NEAR * float(np.mean(self.setting.weighted_loss.value(nothing, self.setting.y_train)))

    def held_out_loss(self, models: Parts) -> float:
        """The mean loss of the held-out rows by their weights."""
        setting = self.setting
        nothing = np.zeros(setting.loss.outputs)
        weights = {
            name: np.column_stack([np.atleast_2d(part.arrays["weights"]), part.arrays.get("intercept", nothing)])
            for name, part in models.items()
        }
        scores = (setting.scores(self.data.test, weights) - setting.middle) / setting.unit
        with np.errstate(over="ignore"):
            losses = setting.loss.value(scores.T, setting.y_test)
        found = float(np.average(losses, weights=self.held_weights if self.held_weights.any() else None))
        return found * setting.unit**2 if isfinite(found) else inf


def _fit(job: Job, cut: Cut, strength: float, start: Parts | None, run: Run, watch: Watch | None) -> TriedFit:
    """One fit on the walk: no nearer to its best than the choice needs."""
    one = msgspec.structs.replace(_plain(job), penalty=strength, target=max(cut.near(), job.target or 0.0))
    result = run(LinearTraining(one, cut.data, start=start), watch=_telling(watch, strength))
    record = result.record
    if record.verdict == "stopped":
        raise OffbeatError(
            f"The run was stopped while it tried the penalty {strength:.3g}: no model is kept. Give `penalty` a "
            "number, or a shorter list, to have one sooner."
        )
    loss = cut.held_out_loss(result.models) if ended_well(record.verdict) else inf
    return TriedFit(result.models, (loss, record.passes, record.seconds))


def _plain(job: Job) -> Job:
    """A job of one fit on the walk. The weights of classes are in those of rows."""
    return msgspec.structs.replace(
        job,
        penalty=job.strength,
        penalty_folds=1,
        class_weight=None,
        early_stopping=None,
        start=None,
        optimum=False,
        looks_per_pass=1.0,
    )


# -- which rows are held out -----------------------------------------------------------------------------------------


def _cuts(job: Job, data: VerticalData) -> list[Cut]:
    weights = row_weights(job, data)
    weighted = replace(data, weights_train=weights)
    found = []
    for held in _held_out(job, data.ids_train):
        part = weighted.holding_out(held)
        found.append(Cut(part, weights[held] if len(weights) else weights, setting_for(part, _plain(job))))
    return found


def _held_out(job: Job, ids: np.ndarray) -> list[Flags]:
    """By the ids alone, so that parties that know the same ids need not agree on anything."""
    folds, least = job.penalty_folds, max(ROWS_LEAST, 2 * job.penalty_folds)
    if len(ids) < least:
        raise BadData(
            f"There are {len(ids)} training rows, too few to hold some out and choose a penalty: at least {least} are "
            "needed. Give `penalty` a number."
        )
    seed = job.seed + 2  # + 0 are the test rows, + 1 a smaller part of a set
    if folds == 1:
        return [held_out(ids, seed=seed, fraction=HELD_OUT)]
    fold = folds_of(ids, seed=seed, folds=folds)
    return [fold == one for one in range(folds)]


def _telling(watch: Watch | None, strength: float) -> Watch | None:
    """The same, told that this is a fit on the walk."""
    if watch is None:
        return None
    return lambda now: watch(replace(now, trying=strength))


# -- when to end -----------------------------------------------------------------------------------------------------


class Level:
    """Ends a run whose held-out score has not improved for so many passes. A look without a score changes nothing."""

    def __init__(self, passes: float, classifies: bool, watch: Watch | None) -> None:
        self.passes, self.sign, self.watch = passes, 1.0 if classifies else -1.0, watch
        self.best: float | None = None
        self.since, self.ended = 0.0, False

    def look(self, now: Progress) -> bool:
        if self.watch is not None and self.watch(now) is False:
            return False
        if now.metric is None or not isfinite(now.metric):
            return True
        if self.best is None or self.sign * (now.metric - self.best) > GAIN * abs(self.best):
            self.best, self.since = now.metric, now.passes
        self.ended = now.passes - self.since >= self.passes
        return not self.ended

    def reason(self, account_reason: str) -> str:
        kept = account_reason.partition("; ")[2] or account_reason
        return f"the held-out score ({self.best:.4g}) has not improved for {self.passes:g} passes; {kept}"


def level_of(training: Training, watch: Watch | None) -> Level | None:
    """Of a job with `early_stopping`; rows must be held out for it."""
    job = training.job
    wanted = getattr(job, "early_stopping", None)
    if wanted is None:
        return None
    data: VerticalData = training.data  # type: ignore[attr-defined]
    if not data.test_rows:
        raise BadData(
            "early_stopping follows the score of held-out rows, and there are none. Set data.test_fraction above 0 "
            "(validation_fraction in Python), or leave early_stopping out."
        )
    return Level(wanted, data.task != "regression", watch)
