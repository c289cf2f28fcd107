"""One party of a training between organisations, built from its own rows by the families of runs in one place."""

from dataclasses import replace
from typing import Any

from offbeat.families import private_products
from offbeat.families.contract import Counters
from offbeat.families.linear import build_parties, linear_counters, penalty_of, sum_options, weights_from
from offbeat.jobs.methods import linear_named
from offbeat.jobs.organisations import OrgJob
from offbeat.jobs.vertical import Job
from offbeat.learning.blocks import make_block, with_means
from offbeat.learning.penalties import ORDERED
from offbeat.orgs.guards import Guarded, RowsNamed, WatchedRows
from offbeat.orgs.keyed_noise import KeyedNoise
from offbeat.orgs.rows import OwnModel, OwnRows
from offbeat.party.contract import Message
from offbeat.party.masked_sum import SumOptions
from offbeat.party.problem import Problem


def vertical_of(job: OrgJob) -> Job:
    """The keys that a training between organisations shares with one in one place."""
    method, model = job.method, job.model
    keys = ("algorithm", "passes", "target", "in_flight", "secure_sum", "two_party_insecure", "seed")
    shared = {key: getattr(method, key) for key in (*keys, "product_epsilon", "product_delta")}
    return Job(
        **shared,
        seconds=0.0,  # owners have agreed to so many passes, and to no more
        step="auto" if method.step is None else method.step,
        batch="auto" if method.batch is None else method.batch,
        penalty=model.strength,
        penalty_kind=model.penalty,
        l1_ratio=model.l1_ratio,
        intercept=model.intercept,
        on_loss=job.network.on_loss,
        products=job.products,
    )


def sums_of(job: OrgJob, parties_least: int = 2) -> SumOptions:
    """How sums are hidden: in the training of the linear methods, and in every prediction. `parties_least`: this
    party's own, whatever roster a peer names. Between two nothing is hidden that steps could tell apart."""
    in_step = job.network.in_step and len(job.parties) > 2
    return replace(sum_options(vertical_of(job)), parties_least=parties_least, in_step=in_step)


class OwnLinear:
    """A linear method. `secret` is this party's own, for this run: masks come from it. `start`: its part of the model
    to begin with."""

    def __init__(
        self,
        job: OrgJob,
        rows: OwnRows,
        watched: WatchedRows,
        *,
        run: str,
        secret: bytes,
        parties_least: int = 2,
        start: OwnModel | None = None,
    ) -> None:
        self.job, self.rows, self.watched, self.name = job, rows, watched, watched.owner
        loss, strength = job.loss, job.model.strength
        penalty = ORDERED if job.model.ordered else penalty_of(vertical_of(job))
        method, intercept = linear_named(job.method.algorithm), job.model.intercept
        features, width = rows.train, int(rows.train.shape[1])
        self.plan = private_products.planned(vertical_of(job), len(job.parties), features.shape[0], [width])
        more: dict[str, Any] = {}
        if self.plan is not None:
            features = private_products.cut_to_norm(self.plan, features)
            more = {"products": self.plan, "noise": KeyedNoise(secret, "products")}
        own = replace(penalty, orders=rows.fitted.orders) if rows.fitted.orders else penalty
        terms: dict[str, Any] = {"penalty": own, "strength": strength}
        terms["intercept"] = intercept and self.plan is None  # columns are centred by a mean over all rows
        block = make_block(features, method=method.direction, outputs=loss.outputs, **terms)
        self.inner: Any
        (self.inner,) = build_parties(
            vertical_of(job),
            {party: block if party == self.name else None for party in job.parties},
            Problem(block.rows, loss, penalty, strength, rows.y_train, intercept=intercept, weights=rows.weights),
            job.labels_at,
            only=self.name,
            sums=sums_of(job, parties_least),
            zero_start=start is None,
            run=run,
            secrets_seed=int.from_bytes(secret, "big"),
            **more,
        )
        if start is not None:
            self.inner.block.set_weights(weights_from(start.part, self.inner.block, rows.fitted.columns, intercept))
        self.party = Guarded(self.inner, watched)
        self.messages: tuple[type[Message], ...] = (*method.messages, RowsNamed)

    def counters(self) -> Counters:
        return linear_counters(self.inner)

    def passes(self) -> float:
        return float(self.inner.party.judge.passes())

    def model(self) -> OwnModel:
        """This party's part of the model, for its owner to keep."""
        block = self.inner.block
        weights, told = with_means(block.means, block.weights()), self.inner.party.sums.told.last
        return OwnModel(weights[0] if len(weights) == 1 else weights, self.rows.fitted, self.rows.classes, told=told)

    def certified(self) -> bool:
        """Whether that part is of a certified model that all have kept, however the run ended."""
        lifecycle = self.inner.party.lifecycle
        return bool(lifecycle.halted and lifecycle.kept >= 0)

    def privacy(self) -> dict[str, Any] | None:
        """What left of this party's columns under an account."""
        return None if self.plan is None else self.plan.statement(seeded=False)
