"""One party of a training run, built from its own rows."""

from typing import Any

from offbeat.jobs.methods import method_named
from offbeat.jobs.organisations import Job
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import DEBIASED_LOGISTIC, loss_named
from offbeat.learning.penalties import penalty_named
from offbeat.orgs import guard
from offbeat.orgs.embedding_guard import GuardedEmbedding
from offbeat.orgs.guard import Guarded
from offbeat.orgs.row_ledger import Counts
from offbeat.orgs.rows import OwnModel, OwnRows, holds_intercept
from offbeat.orgs.train_embedding import build_embedding_party, trained_part
from offbeat.orgs.watched_rows import WatchedRows
from offbeat.party.contract import Message
from offbeat.party.masked_sum import SumOptions
from offbeat.party.member import LinearOptions
from offbeat.party.survey import Problem

AnyGuarded = Guarded | GuardedEmbedding


def sums_of(job: Job) -> SumOptions:
    """How sums are hidden: in the training of the linear methods, and in every prediction."""
    return SumOptions(scheme=job.method.secure_sum, two_party_insecure=job.method.two_party_insecure)


def options_of(job: Job) -> LinearOptions:
    method = job.method
    return LinearOptions(
        method=method_named(method.algorithm).direction,
        passes=method.passes,
        target=method.target,
        step=method.step,
        batch=method.batch,
        in_flight=method.in_flight,
        on_loss=job.network.on_loss,
        sums=sums_of(job),
    )


def build_party(
    job: Job,
    name: str,
    rows: OwnRows,
    *,
    run: str,
    secret: bytes,
    cap: int,
    before: Counts,
    shape: tuple[int, ...] = (),
) -> tuple[AnyGuarded, tuple[type[Message], ...]]:
    """The party and its message types. `secret` is this party's own, for this run: masks and noise come from it."""
    if job.embeds:
        return build_embedding_party(job, name, rows, shape, secret=secret, cap=cap, before=before)
    return _build_linear(job, name, rows, run=run, secret=secret, cap=cap, before=before)


def trained_model(party: AnyGuarded, job: Job, rows: OwnRows) -> OwnModel:
    """This party's part of the model."""
    if isinstance(party, GuardedEmbedding):
        return trained_part(party, job, rows)
    weights = party.inner.member.block.weights()  # type: ignore[attr-defined]
    return OwnModel(weights, rows.fitted, holds_intercept(job, party.name), rows.classes)


def ended_together(party: AnyGuarded) -> bool:
    """Whether this party's part is of a certified model that all have kept, however the run ended."""
    if isinstance(party, GuardedEmbedding):
        return False
    halt = party.inner.member.conduct.halt  # type: ignore[attr-defined]
    return halt is not None and halt.best >= 0


def _build_linear(
    job: Job, name: str, rows: OwnRows, *, run: str, secret: bytes, cap: int, before: Counts
) -> tuple[Guarded, tuple[type[Message], ...]]:
    method = method_named(job.method.algorithm)
    family = method.family()
    penalty = penalty_named(job.model.penalty)
    constant = holds_intercept(job, name)  # the block knows the column of ones as its intercept
    matrix = rows.train[:, :-1] if constant else rows.train
    block = make_block(matrix, penalty=penalty, strength=job.model.strength, intercept=constant)
    loss = loss_named(job.model.loss) if job.method.label_dp_epsilon is None else DEBIASED_LOGISTIC
    problem = Problem(block.rows, loss, penalty, job.model.strength, rows.y_train)
    blocks: dict[str, Any] = {party: block if party == name else None for party in job.parties}
    (inner,) = family.build(
        blocks,
        problem,
        options_of(job),
        synchronous=method.synchronous,
        labels_at=tuple(job.labels_at),
        seed=job.method.seed,
        run=run,
        secrets_seed=int.from_bytes(secret, "big"),
        only=name,
    )
    watched = WatchedRows(name, rows.tokens_train, cap=cap, before=before)
    return Guarded(inner, watched), (*family.messages, *guard.MESSAGES)
