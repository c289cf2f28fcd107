"""One party of a training run, built from its own rows."""

from typing import Any

from offbeat.learning.blocks import make_block
from offbeat.learning.losses import loss_named
from offbeat.learning.penalties import penalty_named
from offbeat.methods import method_named
from offbeat.orgs import guard
from offbeat.orgs.guard import Guarded
from offbeat.orgs.job import Job
from offbeat.orgs.row_ledger import Counts
from offbeat.orgs.rows import OwnRows, holds_intercept
from offbeat.party.contract import Message
from offbeat.party.masked_sum import SumOptions
from offbeat.party.member import LinearOptions
from offbeat.party.survey import Problem


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
        sums=SumOptions(scheme=method.secure_sum, two_party_insecure=method.two_party_insecure),
    )


def build_party(
    job: Job, name: str, rows: OwnRows, *, run: str, secret: bytes, cap: int, before: Counts
) -> tuple[Guarded, tuple[type[Message], ...]]:
    """The party and its message types. `secret` is this party's own, for this run: masks come from it."""
    method = method_named(job.method.algorithm)
    family = method.family()
    penalty = penalty_named(job.model.penalty)
    constant = holds_intercept(job, name)  # the block knows the column of ones as its intercept
    matrix = rows.train[:, :-1] if constant else rows.train
    block = make_block(matrix, penalty=penalty, strength=job.model.strength, intercept=constant)
    problem = Problem(block.rows, loss_named(job.model.loss), penalty, job.model.strength, rows.y_train)
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
    return Guarded(inner, rows.tokens_train, cap=cap, before=before), (*family.messages, *guard.MESSAGES)
