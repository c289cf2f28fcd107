"""Linear models over columns: AFSGD-VP and VFB2, asynchronous and in rounds.

The rows are shuffled once by the shared seed, each party gets its block, the method's builder makes the parties. An
observer may evaluate the pooled objective now and then, which costs the run nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, isfinite, log2
from typing import Any

import msgspec
import numpy as np

from offbeat.algorithms import private_rounds
from offbeat.data.assemble import VerticalData
from offbeat.data.columns import NumberedColumns
from offbeat.data.weights import mean_one
from offbeat.errors import BadData, BadJob
from offbeat.families import private_products
from offbeat.families.contract import Counters, Evaluation, Part, RunAccount
from offbeat.families.setting import Setting, Weights, model_of, party_weights, prepare
from offbeat.families.statements import (
    about_labels,
    about_missed_target,
    about_one_score,
    about_sums,
    about_units,
    about_world,
    alarms,
    data_record,
    label_ledger,
    promised_labels,
)
from offbeat.jobs.methods import linear_named
from offbeat.jobs.runtime import costs_of
from offbeat.jobs.vertical import Job
from offbeat.learning.blocks import Block
from offbeat.learning.losses import DEBIASED_LOGISTIC, LOGISTIC, LS_SVM, POISSON, SQUARED, Loss, loss_named, softmax
from offbeat.learning.penalties import L2, NONE, ORDERED, Penalty, elastic_net, penalty_named
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.lag import Lags
from offbeat.metrics.record import Certificate
from offbeat.names import did_you_mean
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import SumOptions
from offbeat.party.problem import Problem
from offbeat.privacy.label_response import private_targets
from offbeat.privacy.masks import FRACTION_BITS
from offbeat.privacy.noise import SeededNoise
from offbeat.privacy.products import ProductPlan
from offbeat.runtime.contract import Outcome

TEST_METRIC_EVERY = 4
SPREAD_LEAST, SPREAD_MOST, LABEL_MOST = 0.1, 10.0, 1e5
"""Of labels that are learned as they are."""
WALL_LOOK_S = 0.1


# -- from a job to parties -------------------------------------------------------------------------------------------


def setting_for(data: VerticalData, job: Job) -> Setting:
    """The problem that a job states, over its data."""
    loss = _loss(job, data)
    if loss.outputs > 1 and data.task == "classification":  # two classes come as -1 and 1, and softmax counts from 0
        data = replace(data, y_train=(data.y_train > 0).astype(float), y_test=(data.y_test > 0).astype(float))
    penalty = penalty_of(job)
    _check_numbers(data, loss)
    strength = job.strength if penalty.name != "none" else 0.0
    data = replace(data, weights_train=row_weights(job, data))
    orders = {name: one.orders for name, one in data.fitted.items() if one.orders}
    if orders:
        check_orders(job, loss)
        penalty = ORDERED
    setting = prepare(data, loss=loss, penalty=penalty, strength=strength, intercept=job.intercept, seed=job.seed)
    setting = replace(setting, orders=orders)
    if job.product_epsilon is not None:
        return private_products.prepared(setting, job, data)
    if (loss is SQUARED or loss.delta) and penalty in (L2, NONE, ORDERED):
        setting = _in_units(setting)
    return _with_private_labels(setting, job) if job.label_dp_epsilon is not None else setting


def check_orders(job: Job, loss: Loss) -> None:
    """Weights that must rise or fall are a constraint, which not every model knows."""
    wrong = {
        f"loss = {loss.name!r}, which has one model for each class": loss.outputs > 1,
        f"loss = {loss.name!r}, whose steps need leaps to come back from too far": loss.grows,
        f"l1_ratio = {job.l1_ratio:g}": job.l1_ratio > 0.0,
        f"penalty_kind = {job.penalty_kind!r}": job.penalty_kind != "l2" or job.strength == 0.0,
        "product_epsilon": job.product_epsilon is not None,
    }
    came = [what for what, is_so in wrong.items() if is_so]
    if came:
        raise BadJob(
            f'Columns that are "rising" or "falling" go with one output and the penalty l2 of a strength above 0; came '
            f'{came[0]}. Change that, or treat these columns as "bins".'
        )


def penalty_of(job: Job) -> Penalty:
    return elastic_net(job.l1_ratio) if job.l1_ratio > 0.0 else penalty_named(job.penalty_kind)


def _in_units(setting: Setting) -> Setting:
    """Sums are in fixed point and targets are absolute. So labels whose spread is not about 1 are learned in units of
    it, a power of two, and, where the model has a constant, from their mean on."""
    labels = setting.y_train
    spread = float(labels.std()) if len(labels) else 0.0
    usual = SPREAD_LEAST <= spread <= SPREAD_MOST and float(np.abs(labels).max()) <= LABEL_MOST
    if usual or spread == 0.0 or not isfinite(spread):
        return setting
    return setting.in_units(float(labels.mean()) if setting.intercept else 0.0, 2.0 ** round(log2(spread)))


def _loss(job: Job, data: VerticalData) -> Loss:
    """The one that is named, or what the labels ask for."""
    classes = len(data.classes or ())
    if job.loss == "softmax" or (job.loss == "auto" and data.task == "multiclass"):
        if data.task == "regression":
            raise BadJob('The loss softmax is for classes, and this is regression. Use loss = "squared".')
        return softmax(classes)
    if job.loss == "auto" and job.product_epsilon is not None and data.task == "classification":
        return LS_SVM
    if job.loss == "auto":
        return SQUARED if data.task == "regression" else LOGISTIC
    loss = loss_named(job.loss.replace("_", "-"), job.huber_delta)
    if data.task == "multiclass":
        raise BadJob(
            f"The loss {job.loss} is for one product a row, and there are {classes} classes: leave the loss out, or "
            'use loss = "softmax".'
        )
    if (loss.grows or loss.delta) and data.task != "regression":
        raise BadJob(
            f'The loss {job.loss} is for numbers, and here classes are predicted. For numbers: task = "regression" in '
            "a job file, VerticalRegressor in Python. For classes leave the loss out."
        )
    if loss.binary and data.task != "classification":
        raise BadJob(f'The loss {job.loss} is for two classes, and this is {data.task}. Use loss = "squared".')
    return loss


def _check_numbers(data: VerticalData, loss: Loss) -> None:
    """Counts and amounts, as their losses need them."""
    check_exposed(data.exposed, loss)
    if not loss.grows:
        return
    if data.y_offset:
        raise BadJob(f"The labels of {data.source} are centred, and the loss {loss.name} needs them as they are.")
    check_counts(data.y_train, data.y_test, loss)


def check_exposed(exposed: bool, loss: Loss) -> None:
    if exposed and not loss.grows:
        raise BadJob(
            f'An exposure is for counts and amounts: loss = "poisson" or "gamma". The loss is {loss.name}; leave '
            "the exposure out, or use it as a weight."
        )


def check_counts(y_train: np.ndarray, y_test: np.ndarray, loss: Loss) -> None:
    """Labels of a loss that grows."""
    y = np.concatenate((y_train, y_test))
    wrong, wanted = (y < 0.0, "0 or more") if loss is POISSON else (y <= 0.0, "above 0")
    if wrong.any():
        raise BadData(
            f"The loss {loss.name} needs labels of {wanted}; {int(wrong.sum()):,} of {len(y):,} rows have others, such "
            f'as {y[wrong][0]:g}. Check the label column, leave these rows out, or use loss = "squared".'
        )
    if not y_train.any():
        raise BadData(f"All labels of the training rows are 0: there is nothing for the loss {loss.name} to learn.")


def row_weights(job: Job, data: VerticalData) -> np.ndarray:
    """Of the training rows, with a mean of 1; empty where all count alike."""
    weights, classes = data.weights_train, data.classes
    if job.class_weight is not None:
        if classes is None:
            raise BadJob("class_weight is for classes, and this is regression. Leave it out, or give rows a weight.")
        position = (data.y_train > 0).astype(int) if data.task == "classification" else data.y_train.astype(int)
        by_class = _class_weights(job.class_weight, [str(name) for name in classes], np.bincount(position))
        weights = by_class[position] * (weights if len(weights) else 1.0)
    return mean_one(weights)


def _class_weights(wanted: str | Mapping[str, float], classes: Sequence[str], counts: np.ndarray) -> np.ndarray:
    """Given by class, 1 where not; or "balanced": such that every class counts as much as any other."""
    if isinstance(wanted, str):
        return np.asarray(counts.sum() / (len(counts) * counts))
    for name in wanted:
        if name not in classes:
            raise BadJob(f"class_weight names {name!r}, which is no class. {did_you_mean(name, classes)}")
    found = np.array([wanted.get(name, 1.0) for name in classes])
    if not found.any():
        raise BadJob("class_weight gives every class a weight of 0, so no row counts. Give one a weight above 0.")
    return found


def _with_private_labels(setting: Setting, job: Job) -> Setting:
    """Every label is answered at random once; from here on nobody sees the true ones, the test rows' excepted."""
    if setting.loss is not LOGISTIC:
        raise BadJob(
            f"label_dp_epsilon works with the logistic loss, so with two classes: labels are answered at random, and "
            f"that loss alone is corrected for it. Got the loss {setting.loss.name}. Leave label_dp_epsilon out, or "
            "learn one class against all others."
        )
    if len(setting.weights):
        raise BadJob(
            "label_dp_epsilon goes with rows that count alike: derivatives tell every party the weight of each row as "
            "it is, and class_weight follows from the labels. Leave class_weight and weights out, or label_dp_epsilon."
        )
    assert job.label_dp_epsilon is not None
    stream = SeededNoise(job.seed, "labels").stream(0)
    truth = (setting.y_train > 0).astype(np.float64)[:, None]
    answers = private_targets(truth, job.label_dp_epsilon, stream)[:, 0]
    return replace(setting, loss=DEBIASED_LOGISTIC, y_train=np.ascontiguousarray(answers))


def linear_options(job: Job) -> LinearOptions:
    return LinearOptions(
        method=linear_named(job.algorithm).direction,
        passes=job.passes,
        target=job.target,
        step=None if isinstance(job.step, str) else job.step,
        batch=None if isinstance(job.batch, str) else job.batch,
        in_flight=job.in_flight,
        seconds=job.seconds_least,
        survey_passes=None if isinstance(job.survey_passes, str) else job.survey_passes,
        leap=job.leap,
        by_curvature=None if isinstance(job.by_curvature, str) else job.by_curvature,
        lag_max=job.lag_max,
        on_loss=job.on_loss,
        asynchronous=not linear_named(job.algorithm).synchronous,
        sums=sum_options(job),
    )


def sum_options(job: Job) -> SumOptions:
    """How sums are hidden."""
    bits = FRACTION_BITS if job.fraction_bits is None else job.fraction_bits
    return SumOptions(scheme=job.secure_sum, fraction_bits=bits, two_party_insecure=job.two_party_insecure)


def build_parties(
    job: Job,
    blocks: Mapping[str, Block | None],
    problem: Problem,
    labels_at: Sequence[str],
    *,
    only: str | None = None,
    sums: SumOptions | None = None,
    zero_start: bool = True,
    products: ProductPlan | None = None,
    **more: Any,
) -> list[Any]:
    """All parties, or `only` one, whose block alone is looked at then. `sums`: as its owner wants them, if not as the
    job does. `zero_start`: whether all weights are zero at first. `products`: how they are private, if they are.
    `more`: the run's name and its secrets."""
    method = linear_named(job.algorithm)
    if not method.labels_everywhere:
        more |= {"labels_at": tuple(labels_at), "lanes": job.runtime.lanes}
    options, rounds = replace(linear_options(job), zero_start=zero_start), method.synchronous
    options = options if sums is None else replace(options, sums=sums)
    if products is not None:
        sums = replace(options.sums, fraction_bits=products.fraction_bits)
        options = replace(options, passes=float(products.steps), sums=sums, products=products)
        return list(private_rounds.build(blocks, problem, options, seed=job.seed, only=only, **more))
    return list(method.build(blocks, problem, options, synchronous=rounds, seed=job.seed, only=only, **more))


# -- one run ---------------------------------------------------------------------------------------------------------


class LinearTraining:
    """A run in one place, with repeatable keys. `optimum`: the least objective, where it is known already. `start`: a
    model to begin with, by party."""

    unit, final_look = "passes", False

    def __init__(
        self,
        job: Job,
        data: VerticalData,
        only: str | None = None,
        optimum: float | None = None,
        start: Mapping[str, Part] | None = None,
    ) -> None:
        self.job, self.data, self.method = job, data, linear_named(job.algorithm)
        self.setting = setting_for(data, job)
        self.messages, self.private_labels = self.method.messages, job.label_dp_epsilon is not None
        self.session = {"on_loss": job.on_loss}
        setting = self.setting
        blocks = setting.new_blocks(self.method.direction)
        self.products = private_products.plan_of(job, data)
        self.parties: list[Any] = build_parties(
            job,
            blocks,
            setting.problem(),
            data.labels_at,
            only=only,
            zero_start=start is None,
            products=self.products,
            secrets_seed=job.seed,
        )
        self.goal = job.passes if self.products is None else float(self.products.steps)
        if start is not None:
            self._begin_with(start)
        self.blocks = {party.name: party.block for party in self.parties}
        self.optimum = optimum
        self._looks = self._certified = 0

    def _begin_with(self, start: Mapping[str, Part]) -> None:
        """Columns are found by name, or by place where they have none; what is new begins at zero."""
        if not any(name in start for name in self.data.names):
            raise BadJob(
                f"The model to begin with is of {', '.join(start)}, and the parties here are "
                f"{', '.join(self.data.names)}: none is in both. Give a run of these parties."
            )
        for party in self.parties:
            if party.name in start:
                middle = self.setting.middle if party.party.roster.is_chair else 0.0
                columns = self.data.columns[party.name]
                found = weights_from(start[party.name], party.block, columns, self.setting.intercept, middle)
                party.block.set_weights(found / self.setting.unit)

    @cached_property
    def chair(self) -> Any:
        return next(party for party in self.parties if party.party.roster.is_chair)

    # -- while it goes on

    def begin(self) -> None:
        if self.optimum is None and self.job.optimum:
            self.optimum = self.setting.optimum(self.job.seed)

    def done(self) -> float:
        return float(self.chair.party.judge.passes())

    def due(self) -> bool:
        return True

    def seen(self) -> Evaluation:
        weights = party_weights(self.parties)
        objective = self.setting.objective(self.blocks, weights)
        below = objective - self.optimum if self.optimum is not None else None
        metric = None
        if self._looks % TEST_METRIC_EVERY == 0:
            model = model_of(self.blocks, weights)
            metric = next(iter(self.setting.test_metrics(model).values()), None)
        self._looks += 1
        return Evaluation(objective, metric, below, self._lag_mean(), *self._certificates())

    def _lag_mean(self) -> float:
        lags = [party.party.lags for party in self.parties]
        steps = sum(counts.count for counts in lags)
        return sum(counts.total for counts in lags) / steps if steps else 0.0

    def _certificates(self) -> tuple[float | None, Certificate | None]:
        """The last one as a number, and as a certificate if it came since the look before."""
        history = self.chair.party.survey.history
        known, self._certified = self._certified, len(history)
        if not history:
            return None, None
        last = history[-1]
        shown = last.gap if isfinite(last.gap) else last.gradient_norm
        news = certificate_from({"gradient_norm": last.gradient_norm, "gap": last.gap})
        return shown, news if len(history) > known else None

    def pause_s(self, time_s: float) -> float:
        """A fixed part of a pass: of a fast party's where nobody waits, of the slowest party's where all do."""
        if self.job.runtime.kind != "simulator":
            return WALL_LOOK_S
        batch = self.chair.party.lifecycle.batch or self.job.batch_least
        rounds = self.setting.rows / batch
        times = [self._batch_s(name, batch) for name in self.setting.names]
        if self.method.synchronous:
            return max(times) * rounds / self.job.looks_per_pass
        together = 1 if self.method.labels_everywhere else len(self.chair.party.roster.active)
        return min(times) * rounds / together / self.job.looks_per_pass

    def _batch_s(self, name: str, batch: int) -> float:
        costs, block = costs_of(self.job.runtime), self.blocks[name]
        work = costs.slow.get(name, 1.0) * costs.work_s(batch, round(block.nonzeros_total * batch / block.rows))
        return float(max(work, (work + 2 * costs.link.latency_s) / (self.job.in_flight or 1)))

    def counters(self, outcome: Outcome | None) -> dict[str, Counters]:
        return {party.name: linear_counters(party) for party in self.parties}

    # -- at its end

    def account(self, outcome: Outcome, rows: Sequence[CurveRow], *, stopped: bool) -> RunAccount:
        verdict, reason = self._verdict(outcome, stopped)
        weights = kept_weights(self.parties, outcome)
        model = model_of(self.blocks, weights)
        objective, chair = self.setting.objective(self.blocks, weights), self.chair.party
        cut_short = stopped or outcome.out_of_time
        return RunAccount(
            verdict=verdict,
            reason=reason,
            objective=objective,
            passes=self.done() if cut_short else float(chair.judge.marked_passes or chair.judge.passes()),
            counters=self.counters(outcome),
            promises=[*private_products.promises(self.products), *promised_labels(self.job.label_dp_epsilon)],
            warnings=[*self._warnings(outcome), *about_one_score(self.setting.spread(model), self.setting.strength)],
            data=data_record(self._noted()),
            curve=with_certificates(rows, outcome),
            metrics=self.setting.test_metrics(model),
            held_out=self.setting.held_out(model, self.data.y_offset),
            certificate=certificate_of(outcome, chair.survey.best),
            suboptimality=objective - self.optimum if self.optimum is not None else None,
            privacy=self._privacy(),
        )

    def _verdict(self, outcome: Outcome, stopped: bool) -> tuple[str, str]:
        if stopped or outcome.out_of_time:
            certified = _certified_copies(self.parties) is not None
            kept = "the best model certified so far" if certified else "none was certified yet: the model as it was"
            kept = kept if self.products is None else "the model as it was"
            verdict, reason = ("stopped", "stopped on request") if stopped else ("time", outcome.stalled)
            return verdict, f"{reason}; {kept} is kept"
        if outcome.stalled:
            return "stalled", outcome.stalled
        finish = outcome.finished.get(self.chair.name) or next(iter(outcome.finished.values()))
        survey, told = self.chair.party.survey, ""
        if finish.verdict == "passes" and self.job.target is not None:
            best = [(one.gap, one.objective) for one in survey.history if one.survey == survey.best]
            told = about_missed_target(*(best or [(inf, 0.0)])[-1])
        return finish.verdict, finish.reason + told

    def _warnings(self, outcome: Outcome) -> list[str]:
        job, data = self.job, self.data
        holders = data.names if self.method.labels_everywhere else data.labels_at
        loss, epsilon = self.setting.loss.name, job.label_dp_epsilon
        labels = about_labels(data.names, holders, loss, epsilon, given=self.method.labels_everywhere)
        sums = about_sums(len(data.names), job.secure_sum)
        private = private_products.warnings(self.products, self.parties)
        return [*private, *labels, *alarms(outcome), *data.warnings, *sums, *about_world(job, data.source)]

    def _noted(self) -> VerticalData:
        """The data, with a word on the labels' units."""
        counted = self.setting.loss is POISSON
        mean = float(self.data.y_train.mean()) if counted else None
        told = about_units(self.setting.unit, mean, self.setting.strength)
        return replace(self.data, notes=(*self.data.notes, *told)) if told else self.data

    def _privacy(self) -> dict[str, dict[str, Any]]:
        """What left under an account: products, or the labels where they were answered at random."""
        if self.products is not None:
            return {name: self.products.statement(seeded=True) for name in self.data.names}
        if self.job.label_dp_epsilon is None:
            return {}
        holders = self.data.names if self.method.labels_everywhere else self.data.labels_at
        return label_ledger(holders, self.job.label_dp_epsilon, seeded=True)

    def chosen(self) -> dict[str, Any]:
        lifecycle, roster = self.chair.party.lifecycle, self.chair.party.roster
        chosen: dict[str, Any] = {"step": lifecycle.eta, "batch": lifecycle.batch, "chair": roster.chair}
        if self.products is None:
            chosen["survey_passes"] = lifecycle.spacing
        chosen["by_curvature"] = {party.name: party.block.metric_kind for party in self.parties}
        if self.optimum is not None:
            chosen["optimum"] = self.optimum
            chosen["optimum_is"] = "the minimum" if self.setting.penalty.convex else "the best known stationary point"
        if self.private_labels:
            chosen["label_privacy"] = {
                "mechanism": "randomised response, once per label",
                "epsilon": self.job.label_dp_epsilon,
                "refers_to": "objective and certificate: the private answers; test metrics: the true labels",
            }
        return chosen

    def models(self, outcome: Outcome) -> dict[str, Part]:
        """Each party's `weights` and, where the model has an intercept, its part of that: they add up. With several
        classes the weights are classes x columns, and there is an intercept for each class. The `constant` is the part
        of a row like the mean training row."""
        found, one = {}, self.setting.loss.outputs == 1
        weights, unit = kept_weights(self.parties, outcome), self.setting.unit
        for name, values in model_of(self.blocks, weights).items():
            arrays = {"weights": unit * (values[0, :-1] if one else values[:, :-1])}
            if self.setting.intercept:
                middle = self.setting.middle if name == self.chair.name else 0.0
                arrays["intercept"] = unit * values[:, -1] + middle
                arrays["constant"] = unit * weights[name][:, -1] + middle
            columns = self.data.columns[name]
            named = None if isinstance(columns, NumberedColumns) else columns
            found[name] = Part(arrays, named, self.data.fitted.get(name))
        return found


def weights_from(part: Part, block: Block, columns: Sequence[str], intercept: bool, middle: float = 0.0) -> np.ndarray:
    """What a block begins with that continues this part of a model: its columns are found by name."""
    outputs, before = block.outputs, np.atleast_2d(part.arrays["weights"])
    if len(before) != outputs:
        raise BadJob(
            f"The model to begin with has {len(before)} output(s) a row, and this run's has {outputs}: one for "
            "each class where there are more than two. Give a run with as many classes, or begin anew."
        )
    names = NumberedColumns(range(before.shape[1])) if part.columns is None else part.columns
    places = {name: place for place, name in enumerate(names)}
    found = np.zeros((outputs, block.width + 1))
    for at, name in enumerate(columns):
        if name in places:
            found[:, at] = before[:, places[name]]
    if intercept:  # a block's constant is that of columns less their means
        found[:, -1] = part.arrays.get("intercept", 0.0) - middle + found[:, :-1] @ block.means
    return found


def linear_counters(party: Any) -> Counters:
    """One linear party, by its own counters."""
    counts = party.party.lags
    lags = Lags.bucketed(counts.histogram, counts.total, counts.most)
    dropped = sum(party.losses().values())  # received and never applied: products too old, derivatives let go
    return Counters(lags.number, lags, dropped)


# -- the model that is kept ------------------------------------------------------------------------------------------


def kept_weights(parties: Sequence[Any], outcome: Outcome) -> dict[str, np.ndarray]:
    """What a finished party keeps in its block; of a run cut short, the best certified copy, or the block as it is."""
    best = _certified_copies(parties) if outcome.stalled else None
    if best is not None:
        return best
    weights = party_weights(parties)
    survivors = [party for party in parties if party.name in outcome.finished]
    if outcome.stalled or len(survivors) == len(parties):
        return weights
    return {party.name: _after_losses(party, survivors, weights) for party in parties}


def _after_losses(party: Any, survivors: Sequence[Any], weights: Weights) -> np.ndarray:
    """A party's block where somebody did not live to hear the end: the snapshot that those who did have kept; nothing
    of a party that they had left out."""
    decides = next((one for one in survivors if one.party.roster.is_chair), survivors[0]).party
    kept = party.party.survey.points.get(decides.lifecycle.kept)
    in_model = kept is not None and party.name in decides.roster.names
    return np.array(kept) if in_model else np.zeros_like(weights[party.name])


def _certified_copies(parties: Sequence[Any]) -> dict[str, np.ndarray] | None:
    """The best certified point, where every party knows of one."""
    best = {party.name: party.party.survey.points.get(party.party.survey.best) for party in parties}
    if any(weights is None for weights in best.values()):
        return None
    return {name: np.array(weights) for name, weights in best.items()}


# -- certificates ----------------------------------------------------------------------------------------------------


def certificate_of(outcome: Outcome, best: int) -> Certificate:
    """The certificate of the snapshot that was kept."""
    for _, _, name, value in reversed(outcome.observations):
        if name == "certificate" and value["snapshot"] == best:
            return certificate_from(value)
    return Certificate()


def certificate_from(value: Mapping[str, float]) -> Certificate:
    """What a party observed as a certificate; a gap that bounds nothing is left out."""
    return Certificate(value["gradient_norm"], value["gap"] if isfinite(value["gap"]) else None)


def certified_row(time_s: float, value: Mapping[str, float], bytes_sent: int) -> CurveRow:
    """Where nobody could look, as between processes, the certificates are the curve."""
    known = certificate_from(value)
    return CurveRow(time_s, value["passes"], bytes_sent, value["objective"], known.gradient_norm, known.duality_gap)


def with_certificates(curve: Sequence[CurveRow], outcome: Outcome) -> tuple[CurveRow, ...]:
    """Put each certificate into the first look that came after it; what came after the last look, into its own row."""
    rows = list(curve)
    news = [(time, value) for time, _, name, value in outcome.observations if name == "certificate"]
    if len(rows) < 2:
        return (*(certified_row(time, value, 0) for time, value in news), *rows)
    at, looks = 0, len(rows)
    for time, value in news:
        while at < looks and rows[at].time_s < time:
            at += 1
        known = certificate_from(value)
        if at < looks:
            rows[at] = msgspec.structs.replace(rows[at], gradient_norm=known.gradient_norm, gap=known.duality_gap)
        else:
            rows.append(_after_the_last_look(rows[-1], time, value, outcome))
    return tuple(rows)


def _after_the_last_look(last: CurveRow, time_s: float, value: Mapping[str, float], outcome: Outcome) -> CurveRow:
    """The certificate alone: nobody looked at the model then. A snapshot is older than its certificate, so its passes
    may be fewer than the last look's, and no axis may run backwards."""
    sent = sum(tally.bytes_sent for tally in outcome.tallies.values())
    row = certified_row(time_s, value, max(last.bytes, sent))
    return msgspec.structs.replace(row, passes=max(last.passes, value["passes"]), objective=None)
