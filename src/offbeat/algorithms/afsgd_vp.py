"""AFSGD-VP, AFSVRG-VP and AFSAGA-VP, with their synchronous counterparts.

"Privacy-Preserving Asynchronous Federated Learning Algorithms for Multi-Party Vertically Collaborative Learning"
(Gu, Xu, Huo, Deng, Huang, 2020). All parties hold the labels; each moves its own block only.

    minimise  f(w) = (1/n) sum_i L(z_i, y_i) + lambda sum_l g(w_l),      z_i = sum_l <w_l, x_il>

| Paper                         | Here                                                              |
|-------------------------------|-------------------------------------------------------------------|
| worker l, its block w_{G_l}   | `Worker`, `Block`                                                 |
| w_{G_l}^T (x_i)_{G_l}         | a share                                                           |
| w^T x_i through trees T1, T2  | a masked sum (`party/masked_sum.py`); `secure_sum = "two-tree"`   |
| partial derivative of L       | derivative                                                        |
| v_l of Algorithms 3, 4, 5     | `learning/directions.py`: Sgd, Svrg, Saga                         |
| snapshot w^s, full gradient   | a survey (`party/survey.py`), without a barrier                   |
| delay tau                     | lag, in versions of a block                                       |

The order of play, for Ana, Bo and Cy:
1. Ana draws a batch of rows and asks for its product with the whole model; Bo and Cy answer from their blocks as
   they are at that moment, masked; Ana alone learns the others' total.
2. Ana adds her own share, takes the loss's derivative (she has the labels) and steps her own block.
3. Bo and Cy do the same, each on their own clock. Nobody waits for anybody.
4. SVRG: now and then everybody freezes a copy; a survey gives each the derivatives and its gradient block there.

Synchronous counterparts (FSG-VP, FSVRG-VP, FSAGA-VP): one round at a time. All shares of the round's batch, taken at
the same iterate, go to the chair; the product goes to everybody; everybody steps; that is the barrier. With the same
sample order this is exactly the centralised method, up to fixed-point rounding of 2^-41 per share.

Threat model: semi-honest parties over authenticated channels. The papers' claim that products hide features does not
hold: whoever sees the products of enough rows and steps can solve for the other parties' features up to a rotation.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offbeat.errors import BadJob
from offbeat.learning.blocks import Block, finish_product
from offbeat.learning.directions import Direction, Saga, Sgd, Svrg
from offbeat.learning.losses import Loss
from offbeat.learning.sampling import BlockSampler
from offbeat.learning.steps import decayed, default_step
from offbeat.party import member
from offbeat.party.contract import Broadcast, Effect, Message, Party, PartyName, Send, State
from offbeat.party.expected import expect_array
from offbeat.party.masked_sum import CURRENT, ShareAsked, Sum
from offbeat.party.member import LinearOptions, Member
from offbeat.party.survey import Certified, Problem
from offbeat.randomness import secret_bytes, stream


class Product(Message, frozen=True):
    """Synchronous rounds: the products of the round's rows with the whole model.

    Reveals: each sampled row's product to every party (asynchronous workers learn them only for their own batches).
    """

    round: int
    products: np.ndarray
    next_first: int  # the number under which the next round's shares are to be sent


class RoundWanted(Message, frozen=True):
    """Synchronous rounds: this party is still at an earlier round; please send its product again.

    Reveals: progress, to the chair.
    """

    round: int


MESSAGES = (*member.MESSAGES, Product, RoundWanted)
LAG_MEMORY = 32
CAUTION = 2.0
LAG_ALLOWANCE = 1.5


def lag_allowance(loss: Loss) -> float:
    """Lags vary, and only a constant one is as bad as the bound says; a loss of constant curvature has no slack."""
    return LAG_ALLOWANCE if loss.flattens else 1.0


def direction_for(method: str, rows: int) -> Direction:
    """The gradient estimator over one block, before its first table."""
    if method == "sgd":
        return Sgd()
    return Svrg(np.zeros(rows)) if method == "svrg" else Saga(np.zeros(rows))


class Stepper:
    """A block, its direction and its step size: what turns derivatives into a step."""

    def __init__(self, member: Member) -> None:
        self.member, self.block = member, member.block
        self.direction = direction_for(member.options.method, member.problem.rows)
        self.samples = self.lags_noted = 0
        self.lag_mean = 0.0  # a running mean of the lags of late
        self.factor = 1.0  # of the step that was chosen at the beginning
        self.caution = 1.0  # what steps by the curvature are divided by, for they have been too long

    def adopt_survey(self) -> None:
        """SVRG: correct against the new table and the gradient taken at the same point; step by the curvature there."""
        if isinstance(self.direction, Svrg):
            self.direction.adopt(self.member.survey.table)
            if self.member.options.by_curvature:
                self._follow_curvature(self.direction.table)
            self.block.set_mean_gradient(self.member.survey.gradient)

    def _follow_curvature(self, table: np.ndarray) -> None:
        """The metric is taken anew where derivatives tell the curvature; a rise of the objective halves the step."""
        loss, before = self.member.problem.loss, [news.objective for news in self.member.survey.history[-2:]]
        if len(before) == 2 and before[1] > before[0]:
            self.caution *= CAUTION
        if loss.second_from_derivative is not None:
            self.block.step_by_curvature(loss.second_from_derivative(table))
        self.factor = self._factor()

    def derivatives(self, start: int, stop: int, others: np.ndarray, own: np.ndarray | None = None) -> np.ndarray:
        """The loss's derivatives at the sum of the others' shares and the own share, taken now where not given."""
        problem = self.member.problem
        assert problem.labels is not None
        own = self.block.share(start, stop) if own is None else own
        _, theta = finish_product(others, own, problem.labels[start:stop], problem.loss, self.member.sums.scale)
        return theta

    def step(self, start: int, stop: int, theta: np.ndarray) -> None:
        self.direction.step(self.block, start, stop, theta, self.eta())
        self.samples += stop - start

    def apply(self, start: int, stop: int, columns: np.ndarray | None, values: np.ndarray) -> None:
        """The step from a gradient that a lane computed of residuals taken before."""
        self.block.apply_gradient(columns, values, stop - start, self.eta(), self.direction.accumulate)
        self.samples += stop - start

    def note_lag(self, lag: int) -> None:
        """Products that are older than expected need a shorter step, or the iterates oscillate and never settle."""
        self.member.count_lag(lag)
        self.lags_noted += 1
        self.lag_mean += (lag - self.lag_mean) / min(self.lags_noted, LAG_MEMORY)
        version = self.block.version
        early = version < LAG_MEMORY and version & (version - 1) == 0  # a run can diverge within its first steps
        if early or version % LAG_MEMORY == 0:
            self.factor = self._factor()

    def _factor(self) -> float:
        conduct, options, rows = self.member.conduct, self.member.options, self.member.problem.rows
        lag = max(self.lag_mean / lag_allowance(self.member.problem.loss), options.lag or 0.0)
        if conduct.smoothness == 0.0 or (lag == (options.lag or 0.0) and self.caution == 1.0):
            return 1.0
        constants = (conduct.smoothness, conduct.row_smoothness, conduct.batch, rows)
        return default_step(options.method, *constants, lag) / conduct.eta / self.caution

    def eta(self) -> float:
        eta = self.member.conduct.eta * self.factor
        if self.member.options.method != "sgd":
            return eta
        return decayed(eta, self.member.problem.strength, self.block.version)

    _PLAIN = ("samples", "lags_noted", "lag_mean", "factor", "caution")

    def snapshot(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self._PLAIN}
        return {**plain, "direction": self.direction.snapshot()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.direction.restore(state["direction"])
        for name in self._PLAIN:
            setattr(self, name, state[name])


class Worker:
    """An asynchronous worker: asks, steps its own block, answers."""

    def __init__(self, member: Member, seed: int) -> None:
        self.name, self.member = member.name, member
        self.handle = member.handle
        self.stepper = Stepper(member)
        self.seed = seed
        self.sampler: BlockSampler | None = None
        self.started = False
        self.stale = 0
        member.attach(self, {})

    # -- the method ----------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        self.sampler = self._new_sampler()
        waits = self.member.options.method == "svrg" and not self.member.survey.complete
        return [] if waits else self._ask()

    @property
    def steps(self) -> bool:
        """Whether this worker holds labels; without them it answers, but its block never moves."""
        return self.member.problem.labels is not None

    def surveyed(self) -> list[Effect]:
        self.stepper.adopt_survey()
        waits = self.started or self.sampler is None  # a survey may overtake the word to begin
        return [] if waits or self.member.options.method != "svrg" else self._ask()

    def _ask(self) -> list[Effect]:
        """Keep so many products in flight."""
        self.started = True
        if not self.steps:
            return []
        assert self.sampler is not None
        under_way = self.member.sums.open_at_current + self.member.pending.count("step")
        effects: list[Effect] = []
        for _ in range(self.member.options.in_flight - under_way):
            start, stop = self.sampler.next()
            effects += self.member.sums.ask(start, stop, CURRENT, self.member.block.version)
        return effects

    def product(self, done: Sum) -> list[Effect]:
        """The others' total is known: time for the own share, the derivative and the step."""
        payload = [done.start, done.stop, done.words, done.version, done.versions]
        nonzeros = self.member.block.nonzeros(done.start, done.stop)
        return [self.member.pending.add("step", payload, done.stop - done.start, nonzeros)]

    def worked(self, kind: str, payload: Any, result: Any) -> list[Effect]:
        start, stop, words, version, versions = payload
        lag = self.member.sums.lag(self.member.block.version - version, versions)
        if 0 < self.member.options.lag_max < lag:
            self.stale += 1
            return self._ask()
        self.member.count_lag(lag)
        theta = self.stepper.derivatives(start, stop, words)
        if not np.isfinite(theta).all():
            return self.member.alarm("diverged", "a product is no longer finite; use a smaller step")
        self.stepper.step(start, stop, theta)
        return [*self._ask(), *self.member.survey_if_due()]

    def abandoned(self, lost: Sum) -> list[Effect]:
        return self._ask()

    def rostered(self) -> list[Effect]:
        return self._ask() if self.started else []

    def resumed(self) -> list[Effect]:
        return self._ask() if self.started else []

    def certified(self, news: Certified) -> list[Effect]:
        return []

    def patrolled(self) -> list[Effect]:
        return []

    def passes(self) -> float:
        """The mean over the workers, as far as this one has heard of their versions."""
        stepping = [peer for peer in self.member.sums.peers if peer in self.member.conduct.active]
        heard = [self.member.sums.seen.get(peer, 0) for peer in stepping]
        updates = self.member.block.version + sum(heard)
        return updates / (len(heard) + 1) * self.member.conduct.batch / self.member.problem.rows

    # -- going on later ------------------------------------------------------------------------------------------

    def _new_sampler(self) -> BlockSampler:
        rng = stream(self.seed, self.name, "batches")
        return BlockSampler(self.member.problem.rows, self.member.conduct.batch, rng)

    def snapshot(self) -> State:
        sampler = self.sampler.snapshot() if self.sampler is not None else None
        own = {"started": self.started, "stale": self.stale, "sampler": sampler}
        return {**own, "member": self.member.snapshot(), "stepper": self.stepper.snapshot()}

    def restore(self, state: State) -> None:
        self.member.restore(state["member"])
        self.stepper.restore(state["stepper"])
        self.started, self.stale = state["started"], state["stale"]
        if state["sampler"] is not None:
            self.sampler = self._new_sampler()
            self.sampler.restore(state["sampler"])


class RoundWorker:
    """A synchronous worker: everybody knows the order of batches and sends the round's share unasked."""

    def __init__(self, member: Member, seed: int) -> None:
        self.name, self.member = member.name, member
        self.handle = member.handle
        self.stepper = Stepper(member)
        self.seed = seed
        self.sampler: BlockSampler | None = None
        self.round = 0
        self.rows = (0, 0)
        self.next_rows = (0, 0)
        self.words: np.ndarray | None = None  # the chair: the others' total of this round, once known
        self.last: Product | None = None
        self.paused = False  # the chair: a survey is the barrier
        own: dict[type[Message], Callable[[PartyName, Any], list[Effect]]] = {
            Product: self._on_product,
            RoundWanted: self._on_round_wanted,
            ShareAsked: self._on_asked,
        }
        member.attach(self, own)

    # -- the method ----------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        self.sampler = self._new_sampler()
        self.rows = self.sampler.next()
        if not self.member.conduct.presides:
            return []
        self.paused = self.member.options.method == "svrg"
        return self.member.sums.ask(*self.rows, CURRENT, self.round, insist=True)

    def surveyed(self) -> list[Effect]:
        self.stepper.adopt_survey()
        return []

    def product(self, done: Sum) -> list[Effect]:
        """The chair: every share of the round is here."""
        self.words = done.words
        return self._close_round()

    def _close_round(self) -> list[Effect]:
        """The chair: the round's products, unless its own step or a survey is still to be waited for.

        A survey begins here and nowhere else: all shares of the round have come, so every party has taken the same
        steps, and none moves before the product. That makes the frozen copies one point, as in the centralised method.
        """
        if self.words is None or self.paused or self.member.pending.count("round"):
            return []
        survey = self.member.survey_if_due()
        if survey:
            self.paused = True
            return survey
        products = self._products(self.words)
        self.words = None
        if not np.isfinite(products).all():
            return self.member.alarm("diverged", "a product is no longer finite; use a smaller step")
        assert self.sampler is not None
        self.next_rows = self.sampler.next()
        self.last = Product(self.round, products, self.member.sums.next_first)
        self.member.sums.expect(*self.next_rows, self.round + 1)
        return [Broadcast(self.member.sums.peers, self.last), *self._on_product(self.name, self.last)]

    def _products(self, words: np.ndarray) -> np.ndarray:
        problem, (start, stop) = self.member.problem, self.rows
        assert problem.labels is not None
        own = self.member.block.share(start, stop)
        products, _ = finish_product(words, own, problem.labels[start:stop], problem.loss, self.member.sums.scale)
        return products

    def _on_product(self, sender: PartyName, body: Product) -> list[Effect]:
        if self.sampler is None or body.round != self.round or self.member.pending.count("round"):
            return []
        start, stop = self.rows
        expect_array(sender, "the products of round", body.products, stop - start, number=body.round)
        payload = [body.round, body.products, body.next_first]
        return [self.member.pending.add("round", payload, stop - start, self.member.block.nonzeros(start, stop))]

    def worked(self, kind: str, payload: Any, result: Any) -> list[Effect]:
        number, products, next_first = payload
        problem, (start, stop) = self.member.problem, self.rows
        assert number == self.round and self.sampler is not None
        if problem.labels is not None:
            nothing = np.zeros(stop - start, np.uint64)  # the products are known: no shares to add
            _, theta = finish_product(nothing, products, problem.labels[start:stop], problem.loss, 1.0)
            self.stepper.step(start, stop, theta)
            self.member.count_lag(0)
        self.round += 1
        if self.member.conduct.presides:
            self.rows = self.next_rows
            return self._close_round()
        self.rows = self.sampler.next()
        return self._volunteer(next_first)

    def _on_asked(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        """A share of a round that this party has not reached would be taken too early; it will be sent from there."""
        early = ask.point == CURRENT and ask.version != self.round
        return [] if early else self.member.sums.answer(asker, ask)

    def _volunteer(self, first: int) -> list[Effect]:
        """Send the next round's share unasked, under the number the chair has booked for it."""
        sums, (start, stop) = self.member.sums, self.rows
        ask = ShareAsked(first, start, stop, CURRENT, self.round, sums.epoch, 0)
        return sums.answer(self.member.conduct.chair, ask)

    def certified(self, news: Certified) -> list[Effect]:
        self.paused = False
        return self._close_round()

    def abandoned(self, lost: Sum) -> list[Effect]:
        return []  # never: rounds insist, for they have no other batch to turn to

    def rostered(self) -> list[Effect]:
        return self.member.alarm("peer-lost", "synchronous rounds cannot go on without a party")

    def resumed(self) -> list[Effect]:
        return self.patrolled()

    def patrolled(self) -> list[Effect]:
        """A party that has not heard of its round asks for it."""
        if self.member.conduct.presides or self.sampler is None or self.member.pending.count("round"):
            return []
        return [Send(self.member.conduct.chair, RoundWanted(self.round))]

    def _on_round_wanted(self, sender: PartyName, body: RoundWanted) -> list[Effect]:
        return [Send(sender, self.last)] if self.last is not None and self.last.round == body.round else []

    def passes(self) -> float:
        return self.stepper.samples / self.member.problem.rows

    # -- going on later ------------------------------------------------------------------------------------------

    _PLAIN = ("round", "paused")

    def _new_sampler(self) -> BlockSampler:
        """Every party draws the same order of batches."""
        rng = stream(self.seed, "rounds")
        return BlockSampler(self.member.problem.rows, self.member.conduct.batch, rng)

    def snapshot(self) -> State:
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            "rows": list(self.rows),
            "next_rows": list(self.next_rows),
            "words": self.words,
            "last": [self.last.round, self.last.products, self.last.next_first] if self.last is not None else None,
            "sampler": self.sampler.snapshot() if self.sampler is not None else None,
            "member": self.member.snapshot(),
            "stepper": self.stepper.snapshot(),
        }

    def restore(self, state: State) -> None:
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.rows, self.next_rows, self.words = tuple(state["rows"]), tuple(state["next_rows"]), state["words"]
        self.last = Product(*state["last"]) if state["last"] is not None else None
        self.member.restore(state["member"])
        self.stepper.restore(state["stepper"])
        if state["sampler"] is not None:
            self.sampler = self._new_sampler()
            self.sampler.restore(state["sampler"])


def build(
    blocks: Mapping[PartyName, Block],
    problem: Problem,
    options: LinearOptions,
    *,
    synchronous: bool = False,
    labels_at: tuple[PartyName, ...] | None = None,
    seed: int = 0,
    run: str = "run",
    secrets_seed: int | None = None,
    only: PartyName | None = None,
) -> list[Party]:
    """The workers of one run, in roster order. `problem.labels` are given to every party in `labels_at` (all by
    default). Keys come from the operating system unless `secrets_seed` is given. `only`: build that one alone."""
    roster = tuple(blocks)
    active = labels_at if labels_at is not None else roster
    if len(roster) < 2:
        raise BadJob(f"Vertical learning needs two parties or more; got {len(roster)}.")
    # Workers of one speed read each other's blocks, then all step: with one product in flight that is no lag at all.
    # SVRG's tables age besides, the more the slower the slowest party, and forgive a long step less.
    lag = options.in_flight - (0.5 if options.method == "svrg" else 1.0)
    options = options.expecting(0.0 if synchronous else lag)
    make: Callable[[Member, int], Party] = RoundWorker if synchronous else Worker
    return [
        make(
            _member(
                name, roster, active, blocks[name], problem.for_party(name in active), options, seed, run, secrets_seed
            ),
            seed,
        )
        for name in roster
        if only is None or name == only
    ]


def _member(
    name: PartyName,
    roster: tuple[PartyName, ...],
    active: tuple[PartyName, ...],
    block: Block,
    problem: Problem,
    options: LinearOptions,
    seed: int,
    run: str,
    secrets_seed: int | None,
) -> Member:
    return Member(
        name=name,
        roster=roster,
        active=active,
        block=block,
        problem=problem,
        options=options,
        run=run,
        secret=secret_bytes(32, secrets_seed, run, name),
        rng=stream(seed, name, "constants"),
    )
