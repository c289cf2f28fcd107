"""Rounds of VFB2 whose products are private: `product_epsilon` (privacy/products.py says what it promises, and why).

The order of play, for Ana (labels, chair), Bo and Cy, over all rows at a time:
1. All weights are zero, so all products are. Ana takes the derivatives of that and sends them to everybody.
2. Every party cuts the derivatives off at a bound, takes one step of a fixed length, and tells Ana so.
3. Ana asks for the next products. Each party bounds its shares, adds its part of the noise, and masks the sum of both;
   Ana adds her own bounded share and her own noise, finds the constant, and takes the derivatives of the noisy sum.
   Derivatives are linear in the product, so the noise does not shift them.
4. After the last step Ana asks once more, for the model's constant, and ends the run.

The plan is each party's own: it steps by the plan's length, answers as many rounds as the plan has, each once, and
nothing else, whatever the chair says. There are no probes, surveys, leaps and certificates: all of them tell of rows.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from offbeat.algorithms.vfb2 import Backward, Stepped
from offbeat.party import linear_parties
from offbeat.party.contract import Broadcast, Computed, Effect, Party, PartyName, Send
from offbeat.party.expected import expect, expect_array
from offbeat.party.lifecycle import Begin
from offbeat.party.linear import LinearParty
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import PRODUCTS, ShareAsked, ShareGiven, Sum
from offbeat.party.problem import Problem
from offbeat.party.role import InRounds
from offbeat.party.scalars import decode
from offbeat.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from offbeat.privacy.products import DERIVATIVE_MOST, NoisyShares, ProductPlan, row_bound

POINTS_KEPT = 2
NORM_SLACK = 1.0 + 1e-9


class TakeDerivatives(msgspec.Struct, frozen=True, gc=False):
    """Work of the chair: the others' noisy total is known; add the own noisy share and take the derivatives."""

    done: Sum


class TakeStep(msgspec.Struct, frozen=True, gc=False):
    """Work: the step from these derivatives."""

    theta: np.ndarray


class PrivateRounds(InRounds):
    """One party. `round`: how many steps its block has taken."""

    KEPT = ("round", "answered", "stepped", "shares", "party")

    def __init__(self, party: LinearParty, plan: ProductPlan, source: NoiseSource) -> None:
        super().__init__(party)
        self.plan, self.shares = plan, NoisyShares(plan, source)
        self.answered = 0  # the newest round whose words have left
        self.stepped: set[PartyName] = set()  # the chair: who has taken this round's step
        others = (ShareGiven, Begin)
        party.handlers = {kind: handler for kind, handler in party.handlers.items() if kind in others}
        party.handlers[ShareAsked] = self._on_asked
        party.attach(
            self, {Backward: self._on_backward, Stepped: self._on_stepped}, (TakeDerivatives, TakeStep), (Backward,)
        )

    @property
    def rows(self) -> int:
        return self.party.problem.rows

    # -- the chair -----------------------------------------------------------------------------------------------

    def begun(self) -> list[Effect]:
        batch = self.party.lifecycle.batch
        expect(batch == self.rows, self.party.roster.chair, f"a batch of {batch}, where rounds are over all rows")
        self.block.move_constant(np.zeros(1))
        bound = row_bound(self.plan, self.block.width) * NORM_SLACK
        assert (self.block.row_norms_squared(0, self.rows) <= bound**2).all(), "rows were not cut to their norm"
        return self._told(np.zeros(self.rows)) if self.party.roster.is_chair else []

    def _ask(self) -> list[Effect]:
        """Everybody has taken the round's step: go on, or end."""
        self._keep()
        if self.round == self.plan.steps and not self.plan.constant:
            return self._end()
        return self.party.sums.ask(PRODUCTS, 0, self.round, 0, self.rows, self.block.version)

    def product(self, done: Sum) -> list[Effect]:
        return [self.works.begin(TakeDerivatives(done), self.rows, self.block.nonzeros_total)]

    def _derive(self, work: TakeDerivatives) -> list[Effect]:
        own = self.shares.words(self.round, self._share())
        return self._told(decode(work.done.words + own, self.party.sums.scale))

    def _told(self, products: np.ndarray) -> list[Effect]:
        """Find the constant, and tell everybody the derivatives there; after the last step, end."""
        labels = self.party.problem.labels
        assert labels is not None
        constant = float(np.mean(labels - products)) if self.plan.constant else 0.0
        weights = self.block.weights()
        weights[:, -1] = constant
        self.block.set_weights(weights)
        if self.round == self.plan.steps:
            self._keep()
            return self._end()
        theta = 2.0 * (products + constant - labels)
        body = Backward(self.party.roster.epoch, self.round, theta, self.block.version, -1, 0)
        return [Broadcast(self.party.roster.peers, body), *self._on_backward(self.name, body)]

    def _end(self) -> list[Effect]:
        plan = self.plan
        reason = (
            f"{plan.steps} steps were taken, with private products: epsilon {plan.spent:.3g} at delta {plan.delta:g}"
        )
        return self.party.end("passes", f"{reason}. There is no certificate: it would tell of rows")

    def _on_stepped(self, sender: PartyName, body: Stepped) -> list[Effect]:
        ahead = self.works.count[TakeStep]  # this party's own step is under way
        right = self.party.roster.is_chair and body.round == self.round - 1 + ahead and sender not in self.stepped
        expect(right, sender, f"a step of round {body.round}")
        self.stepped.add(sender)
        return self._go_on()

    def _go_on(self) -> list[Effect]:
        if self.works.count[TakeStep] or self.stepped < set(self.party.roster.peers):
            return []
        self.stepped = set()
        return self._ask()

    # -- every party ---------------------------------------------------------------------------------------------

    def _on_asked(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        named = (ask.kind, ask.survey, ask.count) == (PRODUCTS, 0, 0) and asker == self.party.roster.chair
        due = self.answered < ask.first == self.round <= self.plan.releases and not self.works.count[TakeStep]
        expect(
            named and due, asker, f"a question of kind {ask.kind} for round {ask.first}, which the plan does not have"
        )
        self.party.note_question(asker, ask.kind, ask.survey, ask.first)
        return self.asked(asker, ask.first)

    def asked(self, asker: PartyName, number: int) -> list[Effect]:
        self.answered = number

        def encode(mask: np.ndarray | None) -> np.ndarray:
            assert mask is not None
            return np.asarray(self.shares.words(number, self._share()) + mask)

        terms = (self.rows, self.block.version, self.block.nonzeros_total)
        return self.party.sums.answer(asker, (PRODUCTS, 0, number), 1, encode, *terms)

    def rows_asked(self, asker: PartyName, number: int) -> tuple[int, int]:
        return 0, self.rows

    def _share(self) -> np.ndarray:
        """Without the constant, which is nobody's secret and needs no room below the clip."""
        weights = self.block.weights()
        weights[:, -1] = 0.0
        return self.block.share(0, self.rows, weights)

    def _on_backward(self, sender: PartyName, body: Backward) -> list[Effect]:
        expect_array(sender, "derivatives", body.derivatives, self.rows)
        begun = self.party.schedule is not None and sender == self.party.roster.chair
        due = body.number == self.round < self.plan.steps and not self.works.count[TakeStep]
        expect(begun and due, sender, f"derivatives of round {body.number}, while round {self.round} is on")
        expect(bool(np.isfinite(body.derivatives).all()), sender, "derivatives that are no finite numbers")
        return [self.works.begin(TakeStep(body.derivatives), self.rows, self.block.nonzeros_total)]

    def worked(self, work: Any, event: Computed) -> list[Effect]:
        if type(work) is TakeDerivatives:
            return self._derive(work)
        theta = np.clip(work.theta, -DERIVATIVE_MOST, DERIVATIVE_MOST)
        self.block.step(0, self.rows, theta, self.plan.step / row_bound(self.plan, self.block.width) ** 2)
        self.party.lags.add(0)
        self.round += 1
        if self.party.roster.is_chair:
            return self._go_on()
        self._keep()
        return [Send(self.party.roster.chair, Stepped(self.party.roster.epoch, self.round - 1))]

    def _keep(self) -> None:
        """The model of this round, in the place of a certified one: what is kept when the run ends here."""
        survey = self.party.survey
        kept = {number: point for number, point in survey.points.items() if number > self.round - POINTS_KEPT}
        survey.points = {**kept, self.round: self.block.weights()}
        survey.best = self.round

    # -- the rest of the role ------------------------------------------------------------------------------------

    def resume(self) -> list[Effect]:
        return []

    def rostered(self) -> list[Effect]:
        return self.party.alarm("peer-lost", "rounds with private products cannot go on without a party")

    def passes(self) -> float:
        return float(self.round)


def build(
    blocks: Mapping[PartyName, Any],
    problem: Problem,
    options: LinearOptions,
    *,
    run: str = "run",
    secrets_seed: int | None = None,
    synchronous: bool = True,
    noise: NoiseSource | None = None,
    **rest: Any,
) -> list[Party]:
    """The parties of one run. Noise comes from `noise`, else from `secrets_seed`, else from the operating system."""

    def make(party: LinearParty, lanes: int) -> Party:
        assert options.products is not None and synchronous
        seeded = SeededNoise(secrets_seed, f"{run}/{party.name}/products") if secrets_seed is not None else None
        return PrivateRounds(party, options.products, noise or seeded or SystemNoise())

    return linear_parties.build(make, blocks, problem, options, run=run, secrets_seed=secrets_seed, **rest)
