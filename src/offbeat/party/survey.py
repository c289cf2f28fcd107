"""A sub-machine: one pass over a frozen point, without a barrier.

A survey gives every party the loss's derivative at each row (a table) and its own block of the full gradient, both at
one frozen point, and gives the run its certificate. It is SVRG's snapshot, and the only way to know how good a model
is without pooling anything.

    chair   -> all     Mark(s)         freeze a copy of your block, and go on working
    all     -> chair   Marked(s)
    chair   -> active  Go(s)           everybody has frozen: sum your part of the rows at the frozen point
    active  -> all     Table(s, ...)   the derivatives of one chunk
    all     -> chair   Ready(s)        table complete; gradient block and two scalars known
    chair   -> all     Certified(s)    from one masked sum of those scalars

The blocks need not be frozen at the same instant: variance reduction is unbiased for any fixed point, as long as the
table and the gradient use the same one. A straggler answers when it can; nobody waits. Everything is idempotent by
(s, start): what is lost is sent again when the chair's or the receiver's patrol asks for it.

The certificate: with G_l = X_l^T theta / n + strength * penalty'(w_l), the squared gradient norm is the sum of
|G_l|^2, one scalar per party; for the l2 penalty the duality gap at theta(w) equals |grad|^2 / (2 strength) exactly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np

from offbeat.learning.blocks import finish_product
from offbeat.learning.losses import Loss
from offbeat.learning.penalties import Penalty
from offbeat.party.contract import Broadcast, Effect, Message, PartyName, Send
from offbeat.party.expected import expect_array
from offbeat.party.masked_sum import MaskedSum, Sum
from offbeat.party.pending import Pending
from offbeat.party.shares import THREE_WORDS, TWO_WORDS, BlockShares, decode, narrow, narrow_large, scalars_of

CHUNK_ROWS = 1024
CHUNKS_IN_FLIGHT = 2
EPOCH_STRIDE = 2**32
"""Snapshots of roster epoch e are numbered from e * EPOCH_STRIDE up: what belongs to another roster is known by its
number, and left alone."""


class Mark(Message, frozen=True):
    """Freeze a copy of your block as snapshot s.

    Reveals: that the chair wants to know how good the model is, to every party.
    """

    snapshot: int
    keep: int  # the best snapshot so far; older ones may be forgotten


class Marked(Message, frozen=True):
    """The copy is frozen.

    Reveals: progress, to the chair.
    """

    snapshot: int


class Go(Message, frozen=True):
    """Every party has frozen its copy.

    Reveals: progress, to every party.
    """

    snapshot: int


class Table(Message, frozen=True):
    """The loss's derivatives of rows from `start` at the frozen point.

    Reveals: one derivative per row to every party. For the logistic and the hinge losses its sign is the label, and
    with the label it gives the row's product with the whole model away; for the squared loss at the zero start it is
    the label itself.

    With label_dp_epsilon: one derivative per row to every party. Its sign is the answer that was drawn at random for
    the label, the same one every time, not the label; with that answer it gives the row's product with the whole model
    away.
    """

    snapshot: int
    start: int
    derivatives: np.ndarray
    loss_sum: float


class TableWanted(Message, frozen=True):
    """Please send this part of the table again.

    Reveals: progress, to one label holder.
    """

    snapshot: int
    start: int


class Ready(Message, frozen=True):
    """The table is complete here.

    Reveals: progress, to the chair.
    """

    snapshot: int


class Certified(Message, frozen=True):
    """How good the frozen model is.

    Reveals: the training objective and the gradient's norm at the frozen point, to every party.
    """

    snapshot: int
    objective: float
    gradient_norm: float
    gap: float  # NaN where the problem has no certificate
    best: int

    @property
    def certificate(self) -> float:
        """The duality gap, or the gradient norm where there is none."""
        return self.gradient_norm if isnan(self.gap) else self.gap


MESSAGES = (Mark, Marked, Go, Table, TableWanted, Ready, Certified)


@dataclass(frozen=True)
class Problem:
    """What is being minimised, as one party knows it."""

    rows: int
    loss: Loss
    penalty: Penalty
    strength: float
    labels: np.ndarray | None  # None where this party has none

    def for_party(self, holds_labels: bool) -> "Problem":
        """The problem as a party with or without labels knows it."""
        return self if holds_labels else replace(self, labels=None)

    def gap(self, gradient_norm_squared: float) -> float:
        certified = self.penalty.name == "l2" and self.strength > 0
        return gradient_norm_squared / (2 * self.strength) if certified else float("nan")


class Survey:
    """Both sides, for one party."""

    def __init__(
        self,
        *,
        me: PartyName,
        chair: PartyName,
        roster: tuple[PartyName, ...],
        active: tuple[PartyName, ...],
        problem: Problem,
        shares: BlockShares,
        sums: MaskedSum,
        pending: Pending,
        zero_start: bool,
        largest_scalar: Callable[[float], float] = lambda loss: 0.0,
    ) -> None:
        self.largest_scalar = largest_scalar  # about how large a party's scalars are at this mean loss
        self.me, self.chair, self.active = me, chair, active
        self.problem, self.shares, self.sums, self.pending = problem, shares, sums, pending
        self.zero_start = zero_start  # no block moves before the first survey is complete
        self.epoch = 0
        self.set_roster(roster)
        self.current = -1  # the snapshot under way or last done
        self.best = -1
        self.complete = False
        self.under_way = False
        self._blank()
        self.history: list[Certified] = []

    def set_roster(self, roster: tuple[PartyName, ...]) -> None:
        self.roster = roster
        self.peers = tuple(name for name in roster if name != self.me)
        self.workers = tuple(name for name in self.active if name in roster)

    def _blank(self) -> None:
        rows, width = self.problem.rows, self.shares.block.width
        self.table = np.zeros(rows)
        self.gradient = np.zeros(width)
        self.chunks = {start for name in self.workers for start in self._chunks_of(name)}
        self.arrived: set[int] = set()  # chunks received; added to the gradient when their work is done
        self.added: set[int] = set()
        self.loss_sums: dict[int, float] = {}
        self.unmarked: set[PartyName] = set()
        self.unready: set[PartyName] = set()
        self.to_ask: list[int] = []
        self.asked: dict[int, int] = {}  # request number -> chunk start
        self.scalars_asked = -1

    def _chunks_of(self, name: PartyName) -> range:
        at, count = self.workers.index(name), len(self.workers)
        first, last = at * self.problem.rows // count, (at + 1) * self.problem.rows // count
        return range(first, last, CHUNK_ROWS)

    def _stop_of(self, start: int) -> int:
        bounds = [(at + 1) * self.problem.rows // len(self.workers) for at in range(len(self.workers))]
        return min(start + CHUNK_ROWS, *(bound for bound in bounds if bound > start))

    # -- the chair -----------------------------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """Start the next survey. Only the chair calls this, and only when none is under way."""
        number = self.current + 1
        effects = self._freeze(number, self.best)
        self.unmarked, self.unready = set(self.peers), set(self.peers)
        return [*effects, Broadcast(self.peers, Mark(number, self.best))]

    def on_marked(self, sender: PartyName, body: Marked) -> list[Effect]:
        if body.snapshot != self.current or sender not in self.unmarked:
            return []
        self.unmarked.discard(sender)
        return [] if self.unmarked else [Broadcast(self.peers, Go(self.current)), *self._go()]

    def on_ready(self, sender: PartyName, body: Ready) -> list[Effect]:
        if body.snapshot == self.current:
            self.unready.discard(sender)
        return self._ask_scalars()

    def _ask_scalars(self) -> list[Effect]:
        everybody = self.me == self.chair and self.complete and not self.unready and not self.unmarked
        if not (everybody and self.under_way and self.scalars_asked < 0):
            return []
        self.scalars_asked = self.sums.next_first
        start, stop = THREE_WORDS if self._scalars_are_large() else TWO_WORDS
        return self.sums.ask(start, stop, scalars_of(self.current), self.shares.version())

    def _scalars_are_large(self) -> bool:
        """Judged by what the chair knows anyway: nobody has to say that its own do not fit."""
        own = float(np.abs(self.shares.scalars[scalars_of(self.current)]).max())
        return max(own, self.largest_scalar(self._mean_loss())) >= self.sums.limit

    def _mean_loss(self) -> float:
        losses = sum(self.loss_sums[start] for start in sorted(self.loss_sums))  # in row order, whatever came first
        return losses / self.problem.rows

    def on_scalars(self, done: Sum) -> tuple[list[Effect], Certified]:
        """The masked sum of the parties' scalars: the certificate."""
        self.scalars_asked = -1
        scale = self.sums.scale
        own = self.shares.offered(done.start, done.stop, done.point, scale)
        joined = narrow if (done.start, done.stop) == TWO_WORDS else narrow_large
        norm_squared, penalty = joined(decode(done.words, scale) + own, scale).tolist()
        objective = self._mean_loss() + self.problem.strength * penalty
        norm_squared = max(norm_squared, 0.0)
        self.best = self.current if self._is_best(objective) else self.best
        certified = Certified(self.current, objective, norm_squared**0.5, self.problem.gap(norm_squared), self.best)
        return [Broadcast(self.peers, certified), *self.on_certified(self.me, certified)], certified

    def _is_best(self, objective: float) -> bool:
        """Objectives compare within one roster only: a model without a lost party's block starts its own record."""
        if self.best < self.epoch * EPOCH_STRIDE:
            return True
        return objective <= min((c.objective for c in self.history if c.snapshot == self.best), default=np.inf)

    # -- everybody -----------------------------------------------------------------------------------------------

    def on_mark(self, sender: PartyName, body: Mark) -> list[Effect]:
        if body.snapshot // EPOCH_STRIDE != self.epoch:
            return []  # of a roster this party has left, or has not heard of yet: then it will be marked again
        if body.snapshot > self.current:
            self._freeze(body.snapshot, body.keep)
        return [Send(sender, Marked(body.snapshot))] if body.snapshot == self.current else []

    def _freeze(self, number: int, keep: int) -> list[Effect]:
        self.current, self.best = number, keep
        self.under_way, self.complete = True, False
        self._blank()
        self.shares.keep_only({keep})
        self.shares.freeze(number)
        return []

    def on_go(self, sender: PartyName, body: Go) -> list[Effect]:
        if body.snapshot != self.current:
            return []
        if self.complete:
            return [Send(self.chair, Ready(self.current))]
        return self._go()

    def _go(self) -> list[Effect]:
        if self.problem.labels is None or self.me not in self.workers or self.asked or self.to_ask:
            return []
        self.to_ask = [start for start in self._chunks_of(self.me) if start not in self.arrived][::-1]
        return self._ask_chunks()

    def _ask_chunks(self) -> list[Effect]:
        effects: list[Effect] = []
        while self.to_ask and len(self.asked) < CHUNKS_IN_FLIGHT:
            start = self.to_ask.pop()
            if self.current == 0 and self.zero_start:
                effects += self._share_table(start, np.zeros(self._stop_of(start) - start))
                continue  # at the zero start every product is zero: nothing needs summing
            self.asked[self.sums.next_first] = start
            effects += self.sums.ask(start, self._stop_of(start), self.current, self.shares.version())
        return effects

    def on_abandoned(self, lost: Sum) -> list[Effect]:
        """A sum that never came: ask again, under a new number."""
        if lost.first == self.scalars_asked:
            self.scalars_asked = -1
            return self._ask_scalars()
        start = self.asked.pop(lost.first, None)
        if start is not None and lost.point == self.current:
            self.to_ask.append(start)
        return self._ask_chunks()

    def on_chunk(self, done: Sum) -> list[Effect]:
        """The products of one chunk at the frozen point are known here: their derivatives go to everybody."""
        if done.point != self.current or self.asked.pop(done.first, None) is None:
            return []
        assert self.problem.labels is not None
        labels = self.problem.labels[done.start : done.stop]
        own = self.shares.block.share(done.start, done.stop, self.shares.points[self.current])
        z, _ = finish_product(done.words, own, labels, self.problem.loss, self.sums.scale)
        return [*self._share_table(done.start, z), *self._ask_chunks()]

    def _share_table(self, start: int, products: np.ndarray) -> list[Effect]:
        assert self.problem.labels is not None
        labels = self.problem.labels[start : start + len(products)]
        loss = self.problem.loss
        table = Table(self.current, start, loss.derivative(products, labels), float(loss.value(products, labels).sum()))
        return [Broadcast(self.peers, table), *self.on_table(self.me, table)]

    def on_table(self, sender: PartyName, body: Table) -> list[Effect]:
        if body.snapshot != self.current or body.start in self.arrived or body.start not in self.chunks:
            return []
        stop = self._stop_of(body.start)
        expect_array(sender, "the table from row", body.derivatives, stop - body.start, number=body.start)
        self.arrived.add(body.start)
        self.table[body.start : stop] = body.derivatives
        self.loss_sums[body.start] = body.loss_sum
        nonzeros = self.shares.block.nonzeros(body.start, stop)
        return [self.pending.add("table", [self.current, body.start, stop], stop - body.start, nonzeros)]

    def on_added(self, snapshot: int, start: int, stop: int) -> list[Effect]:
        """The time for one chunk's part of the gradient has been spent."""
        if snapshot != self.current or start in self.added:
            return []
        self.added.add(start)
        if self.added != self.chunks:
            return []
        for begin in sorted(self.chunks):  # in row order, so that the last bits do not depend on arrivals
            end = self._stop_of(begin)
            self.shares.block.add_gradient(begin, end, self.table[begin:end], self.gradient)
        self.complete = True
        self._offer_scalars()
        return [Send(self.chair, Ready(self.current))] if self.me != self.chair else self._ask_scalars()

    def _offer_scalars(self) -> None:
        weights = self.shares.points[self.current]
        gradient = self.gradient + self.problem.strength * self.problem.penalty.gradient(weights)
        values = np.array([gradient @ gradient, float(self.problem.penalty.value(weights))])
        self.shares.offer(scalars_of(self.current), values, self.sums.scale)

    def on_certified(self, sender: PartyName, body: Certified) -> list[Effect]:
        if self.history and self.history[-1].snapshot >= body.snapshot:
            return []
        self.history.append(body)
        self.best = body.best
        if body.snapshot == self.current:
            self.under_way = False
        return []

    def on_table_wanted(self, sender: PartyName, body: TableWanted) -> list[Effect]:
        if body.snapshot != self.current or body.start not in self.arrived:
            return []
        stop = self._stop_of(body.start)
        again = Table(self.current, body.start, self.table[body.start : stop].copy(), self.loss_sums[body.start])
        return [Send(sender, again)]

    def patrol(self) -> list[Effect]:
        """Ask again for whatever has not come."""
        if not self.under_way:
            return []
        if self.me == self.chair:
            if self.unmarked:
                return [Broadcast(tuple(sorted(self.unmarked)), Mark(self.current, self.best))]
            if self.unready:
                return [Broadcast(tuple(sorted(self.unready)), Go(self.current)), *self._want_chunks()]
        return self._want_chunks()

    def _want_chunks(self) -> list[Effect]:
        owners = {start: name for name in self.workers for start in self._chunks_of(name) if name != self.me}
        missing = [start for start in sorted(self.chunks - self.arrived) if start in owners]
        return [Send(owners[start], TableWanted(self.current, start)) for start in missing[:16]]

    def enter_epoch(self, epoch: int, roster: tuple[PartyName, ...], chair: PartyName) -> None:
        """There is a new roster: give up the survey under way, and count from the new epoch's first number on."""
        self.epoch, self.chair = epoch, chair
        self.set_roster(roster)
        self.current = epoch * EPOCH_STRIDE - 1
        self.under_way = self.complete = False
        self._blank()

    # -- going on later ------------------------------------------------------------------------------------------

    _PLAIN = ("epoch", "chair", "current", "best", "complete", "under_way", "scalars_asked", "to_ask")
    _SETS = ("arrived", "added", "unmarked", "unready", "chunks")

    def snapshot(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            **{name: sorted(getattr(self, name)) for name in self._SETS},
            "roster": list(self.roster),
            "to_ask": list(self.to_ask),
            "asked": [list(pair) for pair in self.asked.items()],
            "table": self.table.copy(),
            "gradient": self.gradient.copy(),
            "loss_sums": [list(pair) for pair in self.loss_sums.items()],
            "history": [[c.snapshot, c.objective, c.gradient_norm, c.gap, c.best] for c in self.history],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.set_roster(tuple(state["roster"]))
        for name in self._PLAIN:
            setattr(self, name, state[name])
        for name in self._SETS:
            setattr(self, name, set(state[name]))
        self.asked, self.loss_sums = dict(state["asked"]), dict(state["loss_sums"])
        self.table, self.gradient = state["table"], state["gradient"]
        self.to_ask = list(state["to_ask"])
        self.history = [Certified(*fields) for fields in state["history"]]
