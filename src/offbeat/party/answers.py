"""A party's shares: what it answers when somebody may ask for the products of rows with its block."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.learning.blocks import fixed_point
from offbeat.party.contract import Effect, PartyName
from offbeat.party.expected import expect
from offbeat.party.masked_sum import PRODUCTS, SURVEY, ShareAsked

if TYPE_CHECKING:
    from offbeat.party.linear import LinearParty


class Answers:
    """Shares of one block, in words, with masks. One that does not fit into fixed point ends the run: a block that went
    back to an earlier point by itself would leave the asker with the shares of those that did not."""

    def __init__(self, party: "LinearParty") -> None:
        self.party, self.sums, self.block, self.outputs = party, party.sums, party.block, party.problem.outputs
        self.shared: list[int] = []  # which share was taken last for all: number, and what changes our block
        self._share: np.ndarray | None = None

    def survey(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        """The share of these rows at the frozen point."""
        survey, start, stop = self.party.survey, ask.first, ask.first + ask.count
        now = survey.frozen is not None and survey.chunks.get(start) == stop
        expect(now, asker, f"a question about rows {start} to {stop}, not its to ask now")
        share = survey.shares_of(start, stop)
        terms = (len(share), self.block.version, self.block.nonzeros(start, stop))
        return self.sums.answer(asker, (SURVEY, ask.survey, start), ask.count, partial(self._words, share), *terms)

    def products(self, asker: PartyName, number: int, start: int, stop: int) -> list[Effect]:
        """The share of a block of rows, from the weights as they are."""
        terms = (self.outputs * (stop - start), self.block.version, self.block.nonzeros(start, stop))
        return self.sums.answer(asker, (PRODUCTS, 0, number), 1, partial(self._of_block, start, stop), *terms)

    def for_all(self, asker: PartyName, number: int, start: int, stop: int, then: int) -> list[Effect]:
        """The same where every worker needs this block of rows: the share is taken once, and masked for each."""
        if self._share is None or self.shared != self._which(number):
            self._share = self.block.share(start, stop)
        nonzeros = self.block.nonzeros(start, stop) if self.shared != self._which(number) else 0
        terms = (len(self._share), self.block.version, nonzeros, then)
        effects = self.sums.answer(asker, (PRODUCTS, 0, number), 1, partial(self._words, self._share), *terms)
        self.shared = self._which(number)
        return effects

    def _which(self, number: int) -> list[int]:
        """A share stays what it is until a step or a leap moves the block."""
        survey = self.party.survey
        return [number, self.block.version, survey.current, int(survey.frozen is None)]

    def given(self, asker: PartyName, number: int, share: np.ndarray, version: int) -> list[Effect]:
        """The same from a share that a lane computed at an earlier version."""
        return self.sums.answer(asker, (PRODUCTS, 0, number), 1, partial(self._words, share), len(share), version)

    def _words(self, share: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        return fixed_point(share, mask, self.sums.scale, self.sums.limit, "A share")

    def _of_block(self, start: int, stop: int, mask: Any) -> np.ndarray:
        """The block's share in words."""
        return self.block.answer(start, stop, None, mask, 0, self.sums.scale, self.sums.limit)
