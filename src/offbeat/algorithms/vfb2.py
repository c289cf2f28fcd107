"""VFB2: backward updating with two levels of asynchrony, for the case where only some parties hold labels.

"Secure Bilevel Asynchronous Vertical Federated Learning with Backward Updating" (Zhang, Gu, Deng, Huang, AAAI 2021).

    minimise  f(w) = (1/n) sum_i L(z_i, y_i) + lambda sum_l g(w_l),      z_i = sum_l <w_l, x_il>

| Paper                               | Here                                                                  |
|-------------------------------------|-----------------------------------------------------------------------|
| party l, block w_{G_l}              | `Party2`, `Block`                                                     |
| active party, dominator             | a party with labels: `dominates` is true                              |
| passive party, collaborator         | every party is a collaborator of the others' updates                  |
| theta = dL/d(w^T x)                 | derivative; the message `Backward`                                    |
| w^T x_i by Algorithm 1              | a masked sum (`party/masked_sum.py`)                                  |
| v~ of SGD, SVRG, SAGA (Algs. 2-7)   | `learning/directions.py`                                              |
| problem 13 / problem 14             | penalty "l2" / "nonconvex"                                            |
| tau_1 (read), tau_2 (communication) | lag at the product; lag at the collaborator, both in block versions   |
| k threads in a party                | `lanes`: jobs that read an older block                                |

The order of play, for Ana (labels), Bo and Cy:
1. Ana draws a batch of rows and asks for its product with the whole model; Bo and Cy answer from their blocks as
   they are, masked; Ana alone learns the others' total.
2. Ana adds her share, takes the derivatives, and sends them *backward* to everybody: one aggregation moves all blocks.
3. Bo and Cy step their own blocks from the derivatives and their own rows, whenever they arrive; what queued up
   meanwhile is taken together. Nobody waits.
4. Another label holder does the same on its own clock.
5. SVRG: now and then everybody freezes a copy; a survey gives each the derivatives and its gradient block there.
   A derivative carries its value, not a difference, so each party corrects it against its own newest table.

Lost derivatives: each is numbered by its sender; a receiver that sees a gap asks for it again; what the sender no
longer has is given up and counted. Doubled ones are applied once. A queue holds two; beyond that the oldest goes.

Synchronous counterpart (VFB): the same block rules, one dominator at a time in turn, and the next request only when
every party has stepped. With the same sample order this is exactly the centralised method.

Labels: **the derivative discloses them** for the logistic and hinge losses (its sign is the label), whatever the paper
says. `label_dp_epsilon` answers the labels at random once, before training, and de-biases the derivative.
"""

from collections import deque
from collections.abc import Callable, Mapping
from math import ceil, isfinite
from typing import Any

import numpy as np

from offbeat.algorithms.afsgd_vp import Stepper, lag_allowance
from offbeat.errors import BadJob
from offbeat.learning.blocks import Block
from offbeat.learning.sampling import BlockSampler
from offbeat.party import member
from offbeat.party.contract import Broadcast, Effect, Message, Observe, Party, PartyName, Send, State
from offbeat.party.expected import COUNTS, expect, expect_array
from offbeat.party.masked_sum import CURRENT, ShareAsked, Sum
from offbeat.party.member import LinearOptions, Member
from offbeat.party.survey import Certified, Problem
from offbeat.randomness import secret_bytes, stream

QUEUE_MAX = 2
"""Whoever cannot keep up misses updates, however long its queue; a long one only makes those it does take older."""
WORK_BEFORE_ASKING = 2
"""A dominator asks again once nothing waits at home, and after so many pieces of work in any case: a slow one would
never come to it."""
BACKWARDS_KEPT = 256
WANTED_TRIES = 3
STARVED_AFTER = 256


class Backward(Message, frozen=True):
    """A dominator's derivatives for rows [start, stop).

    Reveals: one derivative per sampled row to every party. For the logistic and hinge losses its sign is the label,
    and with the label it gives the row's product with the whole model away; for the squared loss the first ones are
    the labels themselves.

    With label_dp_epsilon: one derivative per sampled row to every party. Its sign is the answer that was drawn at
    random for the label, the same one every time, not the label; with that answer it gives the row's product with the
    whole model away.
    """

    number: int  # counts the sender's updates
    start: int
    stop: int
    derivatives: np.ndarray
    snapshot: int  # the survey the sender had completed
    version: int  # of the sender's block
    versions: np.ndarray  # of every party's block when its share was taken, in roster order; -1: unknown


class BackwardWanted(Message, frozen=True):
    """These derivatives never came; please send them again.

    Reveals: what was lost on the way, to the dominator.
    """

    numbers: tuple[int, ...]


class Stepped(Message, frozen=True):
    """Synchronous rounds: this party has taken the round's step.

    Reveals: progress, to the next dominator.
    """

    round: int


class StepsWanted(Message, frozen=True):
    """Synchronous rounds: the next dominator still waits for your step of this round.

    Reveals: progress, to a party.
    """

    round: int


MESSAGES = (*member.MESSAGES, Backward, BackwardWanted, Stepped, StepsWanted)


class DealtBlocks:
    """The common order of batches, dealt to the dominators in turn: together they make passes over all rows."""

    def __init__(self, rows: int, batch: int, seed: int, place: int, of: int) -> None:
        self.place, self.of = place, of
        self._all = BlockSampler(rows, batch, stream(seed, "rounds"))

    def next(self) -> tuple[int, int]:
        dealt = [self._all.next() for _ in range(self.of)]
        return dealt[self.place]

    def snapshot(self) -> dict[str, Any]:
        return self._all.snapshot()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._all.restore(state)


class Inbox:
    """What has come from one dominator: each number once, gaps known."""

    def __init__(self) -> None:
        self.next = 0
        self.gaps: dict[int, int] = {}  # number -> times asked for again
        self.given_up = 0

    def accept(self, number: int) -> bool:
        """Whether this number is new."""
        if number == self.next:
            self.next = number + 1
            return True
        if number > self.next:
            for missed in range(max(self.next, number - BACKWARDS_KEPT), number):
                self.gaps[missed] = 0
            self.next = number + 1
            return True
        return self.gaps.pop(number, None) is not None

    def wanted(self) -> tuple[int, ...]:
        """Gaps to ask for again; those asked for too often are given up."""
        for number in [n for n, tries in self.gaps.items() if tries > WANTED_TRIES]:
            del self.gaps[number]
            self.given_up += 1
        ask = tuple(number for number, tries in self.gaps.items() if tries)
        self.gaps = {number: tries + 1 for number, tries in self.gaps.items()}
        return ask

    def snapshot(self) -> dict[str, Any]:
        return {"next": self.next, "gaps": [list(gap) for gap in self.gaps.items()], "given_up": self.given_up}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.next, self.gaps, self.given_up = state["next"], dict(state["gaps"]), state["given_up"]


class Party2:
    """An asynchronous party: a collaborator always, a dominator too where it holds labels."""

    def __init__(self, member: Member, active: tuple[PartyName, ...], seed: int, lanes: int = 1) -> None:
        self.name, self.member, self.active, self.seed, self.lanes = member.name, member, active, seed, lanes
        self.handle = member.handle
        self.stepper = Stepper(member)
        self.dominates = member.name in active
        self.place = member.conduct.everybody.index(member.name)
        self.sampler: DealtBlocks | None = None
        self.started = False
        self.work_done = 0  # pieces of work since the last derivatives were sent
        self.queue: deque[list[Any]] = deque()  # to be applied: [start, stop, derivatives, version read]
        self.inboxes = {name: Inbox() for name in active if name != member.name}
        self.sent: dict[int, Backward] = {}
        self.number = 0
        self.dropped = self.late = self.received = self.applied = 0
        self.peer_steps: dict[PartyName, tuple[int, int]] = {}  # peer -> (its version, our number when it changed)
        self.starved: set[PartyName] = set()
        own: dict[type[Message], Callable[[PartyName, Any], list[Effect]]] = {
            Backward: self._on_backward,
            BackwardWanted: self._on_backward_wanted,
        }
        if lanes > 1:
            own[ShareAsked] = self._answer_on_a_lane
        member.attach(self, own)

    # -- the dominator -------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        place = self.active.index(self.name) if self.dominates else 0
        self.sampler = self._new_sampler(place)
        waits = self.member.options.method == "svrg" and not self.member.survey.complete
        return [] if waits else [*self._ask(), *self._take_queue()]

    def surveyed(self) -> list[Effect]:
        self.stepper.adopt_survey()
        waits = self.started or self.sampler is None  # a survey may overtake the word to begin
        if waits or self.member.options.method != "svrg":
            return []
        return [*self._ask(), *self._take_queue()]

    def _ask(self) -> list[Effect]:
        """Keep so many products in flight, but ask for none before the own block has taken what is known at home: a
        party of ordinary speed has then taken it too, and its share is as new as can be had without waiting for it."""
        self.started = True
        pending = self.member.pending
        if not self.dominates or pending.count("steps") or (self.queue and self.work_done < WORK_BEFORE_ASKING):
            return []
        assert self.sampler is not None
        sums = self.member.sums
        effects: list[Effect] = []
        for _ in range(self.member.options.in_flight - sums.open_at_current - pending.count("derive")):
            effects += sums.ask(*self.sampler.next(), CURRENT, self.member.block.version)
        return effects

    def product(self, done: Sum) -> list[Effect]:
        """The others' total is known: the own share and the derivatives are half of a batch's work."""
        start, stop = done.start, done.stop
        payload = [start, stop, done.words, done.version, done.versions]
        job = self._share_job(start, stop) if self.lanes > 1 else None
        return [self.member.pending.add("derive", payload, *_half(self.member.block, start, stop), job)]

    def _derive(self, payload: Any, own: np.ndarray | None) -> list[Effect]:
        start, stop, words, version, versions = payload
        lag = self.member.sums.lag(self.member.block.version - version, versions)
        if 0 < self.member.options.lag_max < lag:
            self.late += 1
            return self._ask()
        theta = self.stepper.derivatives(start, stop, words, own)
        if not isfinite(theta.dot(theta)):
            return self.member.alarm("diverged", "a product is no longer finite; use a smaller step")
        read = np.array([versions.get(name, -1) for name in self.member.conduct.everybody], dtype=np.int64)
        snapshot, now = self.member.survey.current, self.member.block.version
        body = Backward(self.number, start, stop, theta, snapshot, now, read)
        self.number += 1
        self.work_done = 0
        self._keep(body)
        self._queue([start, stop, theta, version])
        effects: list[Effect] = [Broadcast(self.member.sums.peers, body), *self._take_queue(), *self._ask()]
        return [*effects, *self._watch_peers(versions), *self.member.survey_if_due()]

    def _keep(self, body: Backward) -> None:
        self.sent[body.number] = body
        if len(self.sent) > BACKWARDS_KEPT:
            del self.sent[next(iter(self.sent))]

    def _on_backward_wanted(self, sender: PartyName, body: BackwardWanted) -> list[Effect]:
        return [Send(sender, self.sent[number]) for number in body.numbers if number in self.sent]

    def _watch_peers(self, versions: Mapping[PartyName, int]) -> list[Effect]:
        """Raise an alarm, once, about a party whose block no longer moves although derivatives are sent."""
        effects: list[Effect] = []
        for peer, version in versions.items():
            before, since = self.peer_steps.get(peer, (-1, 0))
            if version != before:
                self.peer_steps[peer] = (version, self.number)
                self.starved.discard(peer)
            elif self.number - since > STARVED_AFTER and peer not in self.starved:
                self.starved.add(peer)
                effects.append(Observe("alarm", f"{peer} has applied none of the last {STARVED_AFTER} derivatives"))
        return effects

    # -- the collaborator ----------------------------------------------------------------------------------------

    def _on_backward(self, sender: PartyName, body: Backward) -> list[Effect]:
        inbox = self.inboxes.get(sender)
        if inbox is None:
            return []
        _check_backward(sender, body, self.member)
        if not inbox.accept(body.number):
            return []
        self.received += 1
        seen, version = self.member.sums.seen, body.version
        if version > seen.get(sender, -1):
            seen[sender] = version
        self._queue([body.start, body.stop, body.derivatives, int(body.versions[self.place])])
        return self._take_queue()

    def _queue(self, entry: list[Any]) -> None:
        self.queue.append(entry)
        if len(self.queue) > QUEUE_MAX:
            self.queue.popleft()
            self.dropped += 1

    def _take_queue(self) -> list[Effect]:
        """Spend a lane on everything that waits, unless it is busy; before SVRG's first table nothing is taken."""
        if not self.queue or not self.started:
            return []
        if self.lanes > 1:
            return self._take_on_lanes()
        pending = self.member.pending
        if pending.count("steps"):
            return []
        batches = list(self.queue)
        self.queue.clear()
        samples = nonzeros = 0
        for start, stop, _, _ in batches:
            samples += (stop - start + 1) // 2
            nonzeros += self.member.block.nonzeros(start, stop) // 2
        return [pending.add("steps", batches, samples, nonzeros)]

    def worked(self, kind: str, payload: Any, result: Any) -> list[Effect]:
        if kind == "derive":
            return self._derive(payload, result)
        if kind == "answer":
            return self._answer_from_lane(payload, result)
        if kind == "gradient":
            return self._apply_from_lane(payload, result)
        stepper = self.stepper
        for start, stop, theta, version in payload:
            self._note_lag(version)
            stepper.step(start, stop, theta)
        self.applied += len(payload)
        self.work_done += 1
        effects = self._ask() if self.dominates else []
        return effects + self._take_queue() if self.queue else effects

    def _note_lag(self, version_read: int) -> None:
        """Every update moves every block, so the steps of the own block since its share tell the whole lag."""
        if version_read >= 0:
            self.stepper.note_lag(self.member.block.version - version_read)

    # -- lanes: pure jobs over values read before ----------------------------------------------------------------

    def _share_job(self, start: int, stop: int) -> Callable[[], np.ndarray]:
        return self.member.block.share_job(start, stop, self.member.block.gather(start, stop))

    def _answer_on_a_lane(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        sums = self.member.sums
        if ask.point != CURRENT or not sums.is_news(asker, ask):
            return sums.answer(asker, ask)
        job = self._share_job(ask.start, ask.stop)
        fields = [getattr(ask, name) for name in ask.__struct_fields__]
        payload = [asker, fields, self.member.block.version]
        return [self.member.pending.add("answer", payload, *_half(self.member.block, ask.start, ask.stop), job)]

    def _answer_from_lane(self, payload: Any, share: np.ndarray | None) -> list[Effect]:
        asker, fields, version = payload
        ask = ShareAsked(*fields)
        if share is None:  # the job was lost in a crash: read the block as it is now
            return self.member.sums.answer(asker, ask)
        self.member.shares.hold(share, version)
        effects = self.member.sums.answer(asker, ask)
        self.member.shares.release()
        return effects

    def _take_on_lanes(self) -> list[Effect]:
        effects: list[Effect] = []
        while self.queue and self.member.pending.count("gradient") < self.lanes:
            start, stop, theta, version = self.queue.popleft()
            residual = self.stepper.direction.residual(start, stop, theta)
            job = self.member.block.gradient_job(start, stop, residual)
            payload = [start, stop, residual, version]
            effects.append(self.member.pending.add("gradient", payload, *_half(self.member.block, start, stop), job))
        return effects

    def _apply_from_lane(self, payload: Any, result: Any) -> list[Effect]:
        start, stop, residual, version = payload
        if result is None:  # the job was lost in a crash; its table entry is exchanged already, so finish it here
            result = self.member.block.gradient_job(start, stop, residual)()
        self._note_lag(version)
        self.stepper.apply(start, stop, *result)
        self.applied += 1
        self.work_done += 1
        return [*self._take_queue(), *self._ask()]

    # -- the rest of the role ------------------------------------------------------------------------------------

    def abandoned(self, lost: Sum) -> list[Effect]:
        return self._ask()

    def rostered(self) -> list[Effect]:
        return self._ask() if self.started else []

    def resumed(self) -> list[Effect]:
        return [*self._ask(), *self._take_queue()] if self.started else []

    def certified(self, news: Certified) -> list[Effect]:
        return []

    def patrolled(self) -> list[Effect]:
        wanted = {name: inbox.wanted() for name, inbox in self.inboxes.items()}
        effects: list[Effect] = [Send(name, BackwardWanted(numbers)) for name, numbers in wanted.items() if numbers]
        return [*effects, *self._take_queue()]

    def passes(self) -> float:
        """Dominated samples over rows, all dominators together."""
        updates = self.number + sum(inbox.next for inbox in self.inboxes.values())
        return updates * self.member.conduct.batch / self.member.problem.rows

    def losses(self) -> dict[str, int]:
        """Derivatives that were never applied: dropped from a full queue, or lost on the way."""
        return {"dropped": self.dropped, "lost": sum(inbox.given_up for inbox in self.inboxes.values())}

    def _new_sampler(self, place: int) -> DealtBlocks:
        rows, batch = self.member.problem.rows, self.member.conduct.batch
        return DealtBlocks(rows, batch, self.seed, place, len(self.active))

    # -- going on later ------------------------------------------------------------------------------------------

    _PLAIN = ("started", "work_done", "number", "dropped", "late", "received", "applied")

    def snapshot(self) -> State:
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            "queue": [list(entry) for entry in self.queue],
            "inboxes": {name: inbox.snapshot() for name, inbox in self.inboxes.items()},
            "sent": [[getattr(b, name) for name in b.__struct_fields__] for b in self.sent.values()],
            "peer_steps": {name: list(pair) for name, pair in self.peer_steps.items()},
            "starved": sorted(self.starved),
            "sampler": self.sampler.snapshot() if self.sampler is not None else None,
            "member": self.member.snapshot(),
            "stepper": self.stepper.snapshot(),
        }

    def restore(self, state: State) -> None:
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.member.restore(state["member"])
        self.stepper.restore(state["stepper"])
        self.queue = deque(list(entry) for entry in state["queue"])
        for name, inbox in state["inboxes"].items():
            self.inboxes[name].restore(inbox)
        self.sent = {fields[0]: Backward(*fields) for fields in state["sent"]}
        self.peer_steps = {name: (pair[0], pair[1]) for name, pair in state["peer_steps"].items()}
        self.starved = set(state["starved"])
        if state["sampler"] is not None:
            self.sampler = self._new_sampler(self.active.index(self.name) if self.dominates else 0)
            self.sampler.restore(state["sampler"])


class RoundParty:
    """A synchronous party: one dominator at a time, in turn; the next request waits for every party's step."""

    def __init__(self, member: Member, active: tuple[PartyName, ...], seed: int, lanes: int = 1) -> None:
        self.name, self.member, self.active, self.seed = member.name, member, active, seed
        self.handle = member.handle
        self.stepper = Stepper(member)
        self.sampler: BlockSampler | None = None
        self.round = 0  # the round to be taken next
        self.rows = (0, 0)
        self.unstepped: set[PartyName] = set()  # whose step of the round before is still awaited
        self.early: set[PartyName] = set()  # who has stepped this round before this party did
        self.asked = False
        self.paused = False  # the chair: a survey is the barrier
        self.last: Backward | None = None
        own: dict[type[Message], Callable[[PartyName, Any], list[Effect]]] = {
            Backward: self._on_backward,
            Stepped: self._on_stepped,
            StepsWanted: self._on_steps_wanted,
        }
        member.attach(self, own)

    def _dominator(self, number: int) -> PartyName:
        return self.active[number % len(self.active)]

    # -- the method ----------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        self.sampler = self._new_sampler()
        self.rows = self.sampler.next()
        self.paused = self.member.conduct.presides and self.member.options.method == "svrg"
        return self._ask()

    def surveyed(self) -> list[Effect]:
        self.stepper.adopt_survey()
        return []

    def _ask(self) -> list[Effect]:
        mine = self.sampler is not None and self._dominator(self.round) == self.name
        if not mine or self.unstepped or self.asked or self.paused or self.member.pending.count("step"):
            return []
        survey = self.member.survey_if_due() if self.round else []
        if survey:  # everybody has stepped and nobody moves: the frozen copies are one point
            self.paused = True
            return survey
        self.asked = True
        return self.member.sums.ask(*self.rows, CURRENT, self.member.block.version)

    def product(self, done: Sum) -> list[Effect]:
        payload = [self.round, done.words]
        return [self.member.pending.add("derive", payload, *_half(self.member.block, *self.rows))]

    def worked(self, kind: str, payload: Any, result: Any) -> list[Effect]:
        return self._derive(*payload) if kind == "derive" else self._step(*payload)

    def _derive(self, number: int, words: np.ndarray) -> list[Effect]:
        theta = self.stepper.derivatives(*self.rows, words)
        if not np.isfinite(theta).all():
            return self.member.alarm("diverged", "a product is no longer finite; use a smaller step")
        snapshot, version = self.member.survey.current, self.member.block.version
        read = np.full(len(self.member.conduct.everybody), version, dtype=np.int64)
        self.last = Backward(number, *self.rows, theta, snapshot, version, read)
        return [Broadcast(self.member.sums.peers, self.last), *self._on_backward(self.name, self.last)]

    def _on_backward(self, sender: PartyName, body: Backward) -> list[Effect]:
        if self.sampler is None or body.number != self.round or self.member.pending.count("step"):
            return []
        _check_backward(sender, body, self.member)
        expect((body.start, body.stop) == self.rows, sender, f"derivatives of other rows than round {self.round} has")
        return [self.member.pending.add("step", [body.number, body.derivatives], *_half(self.member.block, *self.rows))]

    def _step(self, number: int, theta: np.ndarray) -> list[Effect]:
        assert number == self.round and self.sampler is not None
        self.stepper.step(*self.rows, theta)
        self.member.count_lag(0)
        self.round += 1
        self.rows = self.sampler.next()
        self.asked = False
        early, self.early = self.early, set()
        following = self._dominator(self.round)
        if following != self.name:
            return [Send(following, Stepped(number))]
        self.unstepped = set(self.member.sums.peers) - early
        return self._ask()

    def _on_stepped(self, sender: PartyName, body: Stepped) -> list[Effect]:
        if body.round == self.round:  # before this party has taken that step itself
            self.early.add(sender)
        elif body.round == self.round - 1:
            self.unstepped.discard(sender)
        return self._ask()

    def certified(self, news: Certified) -> list[Effect]:
        self.paused = False
        return self._ask()

    # -- what was lost -------------------------------------------------------------------------------------------

    def patrolled(self) -> list[Effect]:
        """The waiting dominator asks for the missing steps; whoever dominated last says its derivatives again."""
        effects: list[Effect] = []
        if self.unstepped:
            effects.append(Broadcast(tuple(sorted(self.unstepped)), StepsWanted(self.round - 1)))
        if self.last is not None and self.last.number >= self.round - 1:
            effects.append(Broadcast(self.member.sums.peers, self.last))
        return [*effects, *self._ask()]

    def _on_steps_wanted(self, sender: PartyName, body: StepsWanted) -> list[Effect]:
        return [Send(sender, Stepped(body.round))] if body.round < self.round else []

    def abandoned(self, lost: Sum) -> list[Effect]:
        self.asked = False
        return self._ask()

    def rostered(self) -> list[Effect]:
        return self.member.alarm("peer-lost", "synchronous rounds cannot go on without a party")

    def resumed(self) -> list[Effect]:
        return self.patrolled()

    def passes(self) -> float:
        return self.stepper.samples / self.member.problem.rows

    def losses(self) -> dict[str, int]:
        return {"dropped": 0, "lost": 0}

    def _new_sampler(self) -> BlockSampler:
        rows, batch = self.member.problem.rows, self.member.conduct.batch
        return BlockSampler(rows, batch, stream(self.seed, "rounds"))

    # -- going on later ------------------------------------------------------------------------------------------

    _PLAIN = ("round", "asked", "paused")

    def snapshot(self) -> State:
        last = self.last
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            "rows": list(self.rows),
            "unstepped": sorted(self.unstepped),
            "early": sorted(self.early),
            "last": [getattr(last, name) for name in last.__struct_fields__] if last is not None else None,
            "sampler": self.sampler.snapshot() if self.sampler is not None else None,
            "member": self.member.snapshot(),
            "stepper": self.stepper.snapshot(),
        }

    def restore(self, state: State) -> None:
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.member.restore(state["member"])
        self.stepper.restore(state["stepper"])
        self.rows, self.unstepped, self.early = tuple(state["rows"]), set(state["unstepped"]), set(state["early"])
        self.last = Backward(*state["last"]) if state["last"] is not None else None
        if state["sampler"] is not None:
            self.sampler = self._new_sampler()
            self.sampler.restore(state["sampler"])


def _check_backward(sender: PartyName, body: Backward, member: Member) -> None:
    start, stop = body.start, body.stop
    if not 0 <= start < stop <= member.problem.rows:
        expect(False, sender, f"derivatives of rows {start} to {stop}")
    expect_array(sender, "derivatives", body.derivatives, stop - start)
    expect_array(sender, "the versions it read", body.versions, len(member.conduct.everybody), COUNTS)


def _half(block: Block, start: int, stop: int) -> tuple[int, int]:
    """A product, or a step, is half of a batch's work."""
    return ceil((stop - start) / 2), block.nonzeros(start, stop) // 2


def build(
    blocks: Mapping[PartyName, Block],
    problem: Problem,
    options: LinearOptions,
    *,
    synchronous: bool = False,
    labels_at: tuple[PartyName, ...] | None = None,
    lanes: int = 1,
    seed: int = 0,
    run: str = "run",
    secrets_seed: int | None = None,
    only: PartyName | None = None,
) -> list[Party]:
    """The parties of one run, in roster order; those in `labels_at` (the first by default) hold the labels.
    Keys come from the operating system unless `secrets_seed` is given. `only`: build that one alone."""
    roster = tuple(blocks)
    active = tuple(name for name in roster if name in labels_at) if labels_at is not None else roster[:1]
    if len(roster) < 2:
        raise BadJob(f"Vertical learning needs two parties or more; got {len(roster)}.")
    if not active:
        raise BadJob(f"Somebody must hold the labels: labels_at is {labels_at}, the parties are {', '.join(roster)}.")
    # With m products in flight, m - 1 other updates land between a product and its step.
    lag = (len(active) * options.in_flight - 1) / lag_allowance(problem.loss)
    options = options.expecting(0.0 if synchronous else lag)
    make = RoundParty if synchronous else Party2
    return [
        make(
            Member(
                name=name,
                roster=roster,
                active=active,
                block=blocks[name],
                problem=problem.for_party(name in active),
                options=options,
                run=run,
                secret=secret_bytes(32, secrets_seed, run, name),
                rng=stream(seed, name, "constants"),
            ),
            active,
            seed,
            lanes,
        )
        for name in roster
        if only is None or name == only
    ]
