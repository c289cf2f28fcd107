"""The test of a run: each party gives its share of the held-out rows' scores, under the same secure sum as in training.

The sum has two words for each row; with several classes, one for each and one more. The first is 0 where a party has
the row and a secret random word where it has not; the second is its part of the score, or another random word. So the
asker learns whether all have a row, not who lacks it; and where somebody lacks it, the sum of the others' parts is
hidden by random words. The masks belong to these tokens in this order: parties that were asked for different rows give
words that do not cancel.

The asker alone learns the scores. A party that is lost ends the test. Predictions of new rows have the same words, over
sessions that stay open: `standing.py`.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Floats
from offbeat.errors import OutOfRange, Refused, UnexpectedEvent
from offbeat.orgs.tokens import TOKEN_BYTES, split_tokens
from offbeat.party import contract, masked_sum
from offbeat.party.expected import Handlers, received
from offbeat.party.masked_sum import PRODUCTS, KeyOffered, MaskedSum, PartialGiven, ShareGiven, SumOptions
from offbeat.party.protocol import Line, messages_of
from offbeat.party.roster import Roster
from offbeat.privacy.masks import KeyStream


class Wanted(contract.Message, frozen=True):
    """The rows to be scored.

    Reveals: which of its rows the asker is interested in, to every party that has them, and to any party of the job
    that guesses the id (and their number, to all).
    """

    tokens: bytes


class Declined(contract.Message, frozen=True):
    """This party does not take part in this prediction.

    Reveals: the reason, to the asker.
    """

    reason: str


class Enough(contract.Message, frozen=True):
    """The asker has its scores.

    Reveals: nothing.
    """


PROTOCOL = (
    Line(KeyOffered, "party", "party", "at the start, to all; not where sums go through trees"),
    Line(Wanted, "asker", "party", "to all: tokens of the rows; nothing else names them"),
    Line(ShareGiven, "party", "asker", "as the answer: its masked part of the rows' scores"),
    Line(PartialGiven, "party", "party", "the same where sums go through trees: from child to parent"),
    Line(Declined, "party", "asker", "instead, with the reason"),
    Line(Enough, "asker", "party", "when it has the scores, or the prediction has failed, to all"),
)
MESSAGES = messages_of(PROTOCOL)


class Scorer(Protocol):
    """What a party knows of rows named by tokens."""

    def scores(self, tokens: Sequence[bytes]) -> tuple[Floats, NDArray[np.bool_]]:
        """(this block's share of each row's score, whether the row is known); raises Refused by policy."""


class Predictor:
    """One party of a prediction. The asker passes the tokens; the others a scorer."""

    def __init__(
        self,
        name: contract.PartyName,
        parties: tuple[contract.PartyName, ...],
        asker: contract.PartyName,
        scorer: Scorer,
        *,
        run: str,
        secret: bytes,
        sums: SumOptions,
        tokens: Sequence[bytes] = (),
        rows: int | None = None,
        outputs: int = 1,
    ) -> None:
        self.name, self.parties, self.asker, self.scorer = name, parties, asker, scorer
        self.run, self._secret = run, secret
        self.tokens = list(tokens)
        self.rows = len(self.tokens) if rows is None else rows  # what the policy was asked about
        self.result: Floats | None = None
        self.known: NDArray[np.bool_] = np.ones(len(self.tokens), np.bool_)
        self.roster = Roster(name, parties, (asker,))
        self.sums = MaskedSum(roster=self.roster, run=run, secret=secret, options=sums)
        self.words = words_in_all(self.rows, outputs)
        self.sums.stride = max(1, self.words)
        self._wanted = False
        self._asked: bytes | None = None  # the tokens that were answered; other ones are another prediction
        self._handlers: Handlers = {
            KeyOffered: self._on_key,
            ShareGiven: self._on_given,
            masked_sum.PartialGiven: self._on_partial,
            Wanted: self._on_wanted,
            Declined: lambda sender, body: self._end("refused", f"'{sender}' declined: {body.reason}"),
            Enough: lambda sender, body: [contract.Finish("predicted", f"'{sender}' has its scores")],
        }

    def handle(self, event: contract.Event) -> list[contract.Effect]:
        if isinstance(event, contract.Received):
            return received(self.name, self._handlers, event)
        if isinstance(event, contract.Started):
            return [*self.sums.offer_key(), *self._want()]
        if isinstance(event, contract.PeerLost):
            return self._on_lost(event.peer)
        assert isinstance(event, (contract.PeerBack, contract.Computed, contract.Woken)), event
        return []

    # -- the asker ------------------------------------------------------------------------------------------------

    def _want(self) -> list[contract.Effect]:
        if self.name != self.asker or self._wanted or not self.sums.ready:
            return []
        self._wanted, tokens = True, b"".join(self.tokens)
        self._bind(tokens)
        self.sums.expect(PRODUCTS, 0, 0, self.words, 0)
        return [contract.Broadcast(self.roster.peers, Wanted(tokens))]

    def _bind(self, tokens: bytes) -> None:
        """From here on masks belong to these rows in this order."""
        self.sums.run = f"{self.run}/{sha256(tokens).hexdigest()}"

    def _on_given(self, sender: contract.PartyName, body: ShareGiven) -> list[contract.Effect]:
        if body.epoch != self.roster.epoch:
            return []
        done = self.sums.collect(sender, body)
        return self._summed(done) if done is not None else []

    def _on_partial(self, sender: contract.PartyName, body: masked_sum.PartialGiven) -> list[contract.Effect]:
        if body.epoch != self.roster.epoch:
            return []
        effects, done = self.sums.collect_partial(sender, body)
        return [*effects, *self._summed(done)] if done is not None else effects

    def _summed(self, done: masked_sum.Sum) -> list[contract.Effect]:
        own, known = self.scorer.scores(self.tokens)
        self.result, self.known = scores_from(done.words, own, known, self.sums.scale)
        reason = f"{int(self.known.sum())} of {len(self.tokens)} rows scored"
        return [
            contract.Broadcast(self.roster.peers, Enough()),
            contract.Observe("scored", int(self.known.sum())),
            contract.Finish("predicted", reason),
        ]

    def _on_lost(self, peer: contract.PartyName) -> list[contract.Effect]:
        if self.name != self.asker:
            reason = f"'{peer}' was lost during a prediction"
            return [contract.Finish("peer-lost", reason)] if peer == self.asker else []
        return self._end("peer-lost", f"'{peer}' was lost, and a prediction without it is not allowed")

    def _end(self, verdict: str, reason: str) -> list[contract.Effect]:
        others: list[contract.Effect] = (
            [contract.Broadcast(self.roster.peers, Enough())] if self.name == self.asker else []
        )
        return [*others, contract.Finish(verdict, reason)]

    # -- everybody else -------------------------------------------------------------------------------------------

    def _on_key(self, sender: contract.PartyName, body: KeyOffered) -> list[contract.Effect]:
        self.sums.take_key(sender, body)
        return [*self._want(), *self._answer_when_ready()]

    def _on_wanted(self, sender: contract.PartyName, body: Wanted) -> list[contract.Effect]:
        if sender != self.asker:
            raise UnexpectedEvent(f"'{sender}' wants scores in a prediction of '{self.asker}'.")
        if len(body.tokens) != self.rows * TOKEN_BYTES:
            asked = len(body.tokens) / TOKEN_BYTES
            return self._decline(f"'{sender}' announced {self.rows} rows and asks for {asked:g}")
        if self._asked not in (None, body.tokens):
            return self._decline(f"'{sender}' asks for other rows in the same prediction")
        self._asked, self._wanted = body.tokens, True
        return self._answer_when_ready()

    def _answer_when_ready(self) -> list[contract.Effect]:
        """Everybody else: once the rows are named and all keys are known, give the words of this party."""
        if self.name == self.asker or not self._wanted or not self.sums.ready or self._asked is None:
            return []
        self._wanted, tokens = False, self._asked
        try:
            words = self._words(*self.scorer.scores(split_tokens(tokens)))
        except (Refused, OutOfRange) as problem:
            return self._decline(str(problem))
        self._bind(tokens)

        def encode(mask: NDArray[np.uint64] | None) -> NDArray[np.uint64]:
            return words if mask is None else words + mask

        return self.sums.answer(self.asker, (PRODUCTS, 0, 0), 1, encode, len(words), 0)

    def _words(self, values: Floats, known: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Zeros and scores of the rows that this party has; of the others, random words that nobody else knows."""
        key = sha256(b"rows that are lacking\0" + self._secret + f"{self.run}/{self.roster.epoch}".encode()).digest()
        return words_of(values, known, key[:16], scale=self.sums.scale, limit=self.sums.limit)

    def _decline(self, reason: str) -> list[contract.Effect]:
        return [contract.Send(self.asker, Declined(reason))]

    # -- going on later -------------------------------------------------------------------------------------------

    def snapshot(self) -> contract.State:
        return {
            "roster": self.roster.snapshot(),
            "sums": self.sums.snapshot(),
            "bound": self.sums.run,
            "wanted": self._wanted,
            "asked": self._asked,
            "known": self.known.copy(),
        }

    def restore(self, state: contract.State) -> None:
        self.roster.restore(state["roster"])
        self.sums.run = state["bound"]
        self.sums.restore(state["sums"])
        self._wanted, self._asked = state["wanted"], state["asked"]
        self.known = state["known"]


# -- the words of a row ------------------------------------------------------------------------------------------------


def words_in_all(rows: int, outputs: int) -> int:
    """One for whether a row is there, one for each of its scores."""
    return (1 + outputs) * rows


def words_of(
    values: Floats, known: NDArray[np.bool_], lacking_key: bytes, *, scale: float, limit: float
) -> NDArray[np.uint64]:
    """What a party adds to the sum, before masks: of `values`, one a row or rows x classes, those of rows it knows. The
    key is its own, and of this one question."""
    by_output = np.where(known, np.atleast_2d(values.T), 0.0)
    if not bool((np.abs(by_output) < limit).all()):
        raise OutOfRange(f"a score is outside the fixed-point range of +-{limit:.3g}.")
    told = np.vstack([np.zeros((1, len(known))), np.rint(by_output * scale)]).astype(np.int64).view(np.uint64)
    return np.where(known, told, KeyStream(lacking_key).words(0, told.size).reshape(told.shape)).ravel()


def scores_from(
    words: NDArray[np.uint64], own: Floats, own_known: NDArray[np.bool_], scale: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """(the scores, which rows all parties have), from the others' sum and the asker's own part."""
    lacking, *others = words.reshape(-1, len(own)).view(np.int64)
    known = own_known & (lacking == 0)
    told = np.where(known, np.array(others) / scale, 0.0)
    return own + told.T.reshape(own.shape), known
