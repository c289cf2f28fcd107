"""Embeddings of columns under a head: VAFL, asynchronous, t-synchronous and synchronous.

    training = EmbeddingTraining(job, data)                                       as the job says
    training = EmbeddingTraining(job, data, embeddings, head, options)            networks of one's own

Without more, every client's embedding is linear and the head additive: logistic, softmax or least-squares regression.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Client, Server, Vafl
from offbeat.data.assemble import VerticalData
from offbeat.errors import BadJob
from offbeat.families.contract import Counters, Evaluation, Part, RunAccount
from offbeat.families.networks import additive_head, networks_of, options_of, weights_from
from offbeat.families.statements import about_data, about_end, data_record, label_ledger, verdict_of
from offbeat.jobs.embedding import check_secret_noise
from offbeat.jobs.vertical import SERVER, Job
from offbeat.learning.embeddings import Embedding, Head, LinearEmbedding, Weights
from offbeat.metrics import held_out
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.held_out import HeldOut
from offbeat.metrics.lag import Lags
from offbeat.party.contract import Party
from offbeat.runtime.contract import Outcome

Array = NDArray[Any]
WALL_LOOK_S = 0.5


class EmbeddingTraining:
    """A run in one place. What is not given is as the job says."""

    unit, final_look, messages = "passes", True, vafl.MESSAGES

    def __init__(
        self,
        job: Job,
        data: VerticalData,
        embeddings: Mapping[str, Embedding] | None = None,
        head: Head | None = None,
        options: Vafl | None = None,
        *,
        only: str | None = None,
        start: Mapping[str, Part] | None = None,
    ) -> None:
        self.job, self.data = job, data
        self.server, self.clients = _built(job, data, embeddings, head, options)
        self.goal = self.server.options.passes
        if start is not None:
            for name, network, party in self._networks():
                party.weights = weights_from(name, network, start[name].arrays if name in start else {})
        everyone: list[Party] = [self.server, *self.clients]
        self.parties = [party for party in everyone if only in (None, party.name)]
        self.private_labels = self.server.options.label_dp_epsilon is not None
        # A snapshot of theirs forgets the work that is under way: they go on from their whole log.
        self.session = {"on_loss": job.on_loss, "checkpoint_s": inf}
        self.targets = targets_of(data.y_train, self.server.head)
        self.test_targets = targets_of(data.y_test, self.server.head) if data.test_rows else None
        self._rows_seen = -1
        if any(one.orders for one in data.fitted.values()):
            raise BadJob(
                'Columns that are "rising" or "falling" are for linear models: a network knows no order of its '
                'columns. Treat them as "bins", or use a linear method such as vfb2-saga.'
            )

    # -- while it goes on

    def begin(self) -> None:
        pass

    def done(self) -> float:
        return float(self.server.rows_done / (self.server.rows * len(self.clients)))

    def due(self) -> bool:
        return self._rows_seen < 0 or self.server.rows_done >= self._rows_seen + self._rows_between_looks()

    def _rows_between_looks(self) -> float:
        return float(self.server.rows * len(self.clients) / self.job.looks_per_pass)

    def pause_s(self, time_s: float) -> float:
        """Looks often at first, to learn how long a part of a pass takes."""
        if self.job.runtime.kind != "simulator":
            return WALL_LOOK_S
        rate = self.server.rows_done / time_s if time_s > 0 and self.server.rows_done else 0.0
        return float(self._rows_between_looks() / rate / 2) if rate else max(time_s, 1e-3)

    def seen(self) -> Evaluation:
        self._rows_seen = self.server.rows_done
        objective = vafl.objective(self.server, self.clients, self.targets)
        return Evaluation(objective, next(iter(self._metrics().values()), None))

    def _metrics(self) -> dict[str, float]:
        if self.test_targets is None:
            return {}
        found = vafl.score(self.server.head, self.predict(), self.test_targets)
        scale = self.data.y_scale
        return {f"test_{name}": scale * value if name == "rmse" else value for name, value in found.items()}

    def _held_out(self) -> HeldOut | None:
        if self.test_targets is None:
            return None
        scores, head, data = self.predict(), self.server.head, self.data
        if head.loss_name == "squared":
            told, truth = (data.y_scale * values + data.y_offset for values in (scores[:, 0], data.y_test))
            return held_out.numbers(told, truth)
        if data.task == "classification":
            return held_out.two_classes(scores[:, -1] - 0.5, data.y_test > 0, scores[:, -1])
        return held_out.several_classes(scores.argmax(axis=1), data.y_test, scores.shape[1])

    def predict(self) -> Array:
        """Probabilities of the classes of the test rows, or predicted values, from everyone's newest weights."""
        return vafl.joint_scores(self.server, self.clients, test=True)

    def counters(self, outcome: Outcome | None) -> dict[str, Counters]:
        """A client's lags are those of its embeddings when others' updates used them."""
        server = self.server
        told = {server.name: Counters(server.iteration, None, server.duplicates, 0, server.refreshes.abandoned)}
        for client in self.clients:
            lags = server.table.lag_summary(server.index[client.name])
            number = sum(lags["lag_histogram"])
            known = Lags(number, lags["lag_mean"], lags["lag_max"], tuple(lags["lag_histogram"]))
            told[client.name] = Counters(client.version, known, 0, client.releases.retried)
        return told

    # -- at its end

    def account(self, outcome: Outcome, rows: Sequence[CurveRow], *, stopped: bool) -> RunAccount:
        verdict, reason = verdict_of(outcome, self.server.name, stopped)
        objective = vafl.objective(self.server, self.clients, self.targets)
        return RunAccount(
            verdict=verdict,
            reason=reason,
            objective=objective if isfinite(objective) else None,
            passes=self.done(),
            counters=self.counters(outcome),
            promises=self._promises(),
            warnings=self._warnings(outcome),
            data=data_record(self.data),
            curve=rows,
            metrics=self._metrics(),
            held_out=self._held_out(),
            privacy=self._privacy(),
        )

    def _privacy(self) -> dict[str, dict[str, Any]]:
        answered, secret = self.server.options.label_dp_epsilon, self.job.secret_noise
        labels = {} if answered is None else label_ledger([self.server.name], answered, seeded=not secret)
        return labels | {client.name: client.privacy() for client in self.clients if client.ledger is not None}

    def _warnings(self, outcome: Outcome) -> list[str]:
        server = self.server
        found = []
        if server.options.label_dp_epsilon is None:
            found.append(vafl.what_clients_learn(server.head, server.options))
        if all(client.ledger is None for client in self.clients):
            label = vafl.privacy_label(server.options)
            found.append(f"The server learned an embedding of every row, many times over ({label}).")
        missing = {server.clients[i]: len(rows) for i, rows in server.prediction.without.items()}
        if missing:
            told = ", ".join(f"{name} ({count} rows)" for name, count in missing.items())
            found.append(f"Predicted without {told}: the mean of its training embeddings stood in for each.")
        found += [*about_end(outcome), vafl.noise_warning(self.job.secret_noise, server.options)]
        if server.options.private is not None:
            found.append(
                "The curves and metrics here were computed without noise, from all columns in one place. They are no "
                "part of what the server learned, and are not private."
            )
        return [sentence for sentence in (*found, *self.data.warnings, *about_data(self.data.source)) if sentence]

    def _promises(self) -> list[str]:
        server, spent = self.server, [client.privacy() for client in self.clients if client.ledger is not None]
        answered = server.options.label_dp_epsilon is not None
        found = [vafl.what_clients_learn(server.head, server.options)] if answered else []
        if not spent:
            return found
        worst = max(spent, key=lambda said: float(said["epsilon"]))
        told = (
            f"What the server learned about one record's columns at one client is ({worst['epsilon']:.3g}, "
            f"{worst['delta']:g})-differentially private for replace-one, over {worst['releases']} releases and "
            f"{worst['steps']} steps; labels, scaling and several records of one person are not covered."
        )
        return [*found, told]

    def chosen(self) -> dict[str, Any]:
        server, options = self.server, self.server.options
        plain = asdict(options) | {
            "optimiser": repr(options.optimiser),
            "head_optimiser": repr(options.head_optimiser),
            "optimisers": {name: repr(rule) for name, rule in options.optimisers.items()},
            "noise_label": vafl.privacy_label(options),
            "delay_bound_updates": server.lag_max if isfinite(server.lag_max) else None,
            "refreshed_rows": server.refreshes.asked_rows,
            "cold_rows_used": int(server.table.cold_used.sum()),
            "late_rows_used": int(server.table.late_used.sum()),
            "head_updates": server.iteration,
        }
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()}

    def models(self, outcome: Outcome) -> dict[str, Part]:
        """Every client's weights and the head's, buffers included."""
        return {
            name: Part(_arrays(network, party.weights), fitted=self.data.fitted.get(name))
            for name, network, party in self._networks()
        }

    def _networks(self) -> list[tuple[str, Head | Embedding, Any]]:
        """By party."""
        server = self.server
        return [(server.name, server.head, server), *((one.name, one.embedding, one) for one in self.clients)]


def _arrays(network: Head | Embedding, weights: Weights) -> dict[str, np.ndarray]:
    return {**network.to_arrays(weights.trained), **network.to_arrays(weights.kept)}


def _built(
    job: Job, data: VerticalData, embeddings: Mapping[str, Embedding] | None, head: Head | None, options: Vafl | None
) -> tuple[Server, list[Client]]:
    if SERVER in data.names:
        raise BadJob(f"A client is called {SERVER!r}, which is VAFL's own name for who holds the labels; rename it.")
    if job.secret_noise:
        check_secret_noise(job.runtime.kind, "the job")
    if job.start is not None and job.embedding.epsilon is not None:
        raise BadJob(
            "A private run of VAFL begins anew, so far: its account counts what leaves from weights that say nothing "
            "of any row, and those of a kept model do. Leave `start` or embedding.epsilon out."
        )
    if embeddings is None and head is None:
        embeddings, head = networks_of(job, data)
    head = additive_head(data, job) if head is None else head
    _check_head(data, head)
    if embeddings is None:
        embeddings = {name: LinearEmbedding(data.widths[name], head.outputs) for name in data.names}
    options = options_of(job, data, head) if options is None else replace(options, variant=job.algorithm)
    return vafl.build(
        data.train,
        targets_of(data.y_train, head),
        embeddings,
        head,
        options,
        seed=job.seed,
        server=SERVER,
        test_features=data.test if data.test_rows else None,
        test_targets=targets_of(data.y_test, head) if data.test_rows else None,
        secret_noise=job.secret_noise,
    )


def _check_head(data: VerticalData, head: Head) -> None:
    """Refuse a head under which labels would be merged or numbers cut into classes."""
    if data.task == "regression" and head.loss_name != "squared":
        raise BadJob(f"The task is a regression, and the head's loss is {head.loss_name!r}; expected 'squared'.")
    classes = len(data.classes or ())
    if data.task == "multiclass" and (head.loss_name != "softmax" or head.outputs != classes):
        raise BadJob(
            f"There are {classes} classes, and the head's loss is {head.loss_name!r} with {head.outputs} outputs; "
            f"expected 'softmax' with {classes}."
        )


def targets_of(y: Array, head: Head) -> Array:
    """Labels as the head wants them: 0/1, one-hot, or the value."""
    if head.loss_name == "squared":
        return np.asarray(y, dtype=np.float64)[:, None]
    if head.outputs == 1:
        return (np.asarray(y) > 0).astype(np.float64)[:, None]
    if head.outputs == 2 and np.isin(y, (-1, 1)).all():  # as two classes are coded for the linear methods
        y = np.asarray(y) > 0
    return vafl.one_hot(y, head.outputs)
