"""Joint prediction: every party gives its share of the asked rows' scores, under the same secure sum as in training.

    asker -> all    Wanted        tokens of the rows; nothing else names them
    all -> asker    Known         which of them I have; or Declined, with the reason
    asker -> all    ShareAsked    the masked sum of the scores (party/masked_sum.py)
    all -> asker    ShareGiven
    asker -> all    Enough

The asker alone learns the scores. A party that is lost ends the prediction, unless every policy allows to go on
without it: then its block is left out of the sum, under a new roster epoch, and the answer says so.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Floats
from offbeat.errors import BadJob, OutOfRange, Refused, UnexpectedEvent
from offbeat.orgs.tokens import TOKEN_BYTES
from offbeat.party import contract, masked_sum
from offbeat.party.masked_sum import CURRENT, KeyOffered, MaskedSum, ShareAsked, ShareGiven, SumOptions

PATIENCE_S = 2.0


class Wanted(contract.Message, frozen=True):
    """The rows to be scored.

    Reveals: which of its rows the asker is interested in, to every party that has them (and their number, to all).
    """

    tokens: bytes


class Known(contract.Message, frozen=True):
    """Which of the rows this party has, a bit each.

    Reveals: whether this party knows each of the asked ids, to the asker.
    """

    bits: bytes


class Declined(contract.Message, frozen=True):
    """This party does not take part in this prediction.

    Reveals: the reason, to the asker.
    """

    reason: str


class Without(contract.Message, frozen=True):
    """Go on with fewer parties.

    Reveals: who was lost, to every party.
    """

    epoch: int
    names: tuple[str, ...]


class Enough(contract.Message, frozen=True):
    """The asker has its scores.

    Reveals: nothing.
    """


MESSAGES = (KeyOffered, ShareAsked, ShareGiven, masked_sum.PartialGiven, Wanted, Known, Declined, Without, Enough)


class Scorer(Protocol):
    """What a party knows of rows named by tokens."""

    def scores(self, tokens: Sequence[bytes]) -> tuple[Floats, NDArray[np.bool_]]:
        """(this block's share of each row's score, whether the row is known); raises Refused by policy."""


class _Scores:
    """The share source of a prediction: numbers that are there, or not yet."""

    def __init__(self) -> None:
        self.values: Floats | None = None

    def version(self) -> int:
        return 0

    def knows(self, point: int) -> bool:
        return self.values is not None

    def words(
        self, start: int, stop: int, point: int, mask: NDArray[np.uint64] | None, at: int, scale: float, limit: float
    ) -> NDArray[np.uint64]:
        assert self.values is not None
        values = self.values[start:stop]
        if int((np.abs(values) < limit).sum()) != len(values):
            raise OutOfRange(f"a score is outside the fixed-point range of +-{limit:.3g}.")
        words = np.rint(values * scale).astype(np.int64).view(np.uint64)
        return words if mask is None else words + mask[at : at + len(words)]

    def nonzeros(self, start: int, stop: int, point: int) -> int:
        return 0


class Predictor:
    """One party of a prediction. The asker passes the tokens; the others a scorer and whether they go on with fewer."""

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
        without: bool = False,
    ) -> None:
        self.name, self.parties, self.asker, self.scorer, self.without = name, parties, asker, scorer, without
        self.tokens = list(tokens)
        self.rows = len(self.tokens) if rows is None else rows  # what the policy was asked about
        self.result: Floats | None = None
        self.known: NDArray[np.bool_] = np.ones(len(self.tokens), np.bool_)
        self.left_out: list[contract.PartyName] = []
        self._source = _Scores()
        self.sums = MaskedSum(me=name, roster=parties, run=run, secret=secret, options=sums, source=self._source)
        self._waiting: set[contract.PartyName] = set()
        self._wanted = False
        self._asked: bytes | None = None  # the tokens that were answered; other ones are another prediction
        self._handlers: dict[type[contract.Message], Callable[[contract.PartyName, Any], list[contract.Effect]]] = {
            KeyOffered: self._on_key,
            ShareAsked: self._on_asked,
            ShareGiven: self._on_given,
            masked_sum.PartialGiven: self._on_partial,
            Wanted: self._on_wanted,
            Known: self._on_known,
            Declined: lambda sender, body: self._end("refused", f"'{sender}' declined: {body.reason}"),
            Without: self._on_without,
            Enough: lambda sender, body: [contract.Finish("predicted", f"'{sender}' has its scores")],
        }

    def handle(self, event: contract.Event) -> list[contract.Effect]:
        if isinstance(event, contract.Received):
            handler = self._handlers.get(type(event.body))
            if handler is None:
                raise UnexpectedEvent(f"'{self.name}' got a {type(event.body).__name__} from '{event.sender}'.")
            return handler(event.sender, event.body)
        if isinstance(event, contract.Started):
            return [*self.sums.offer_key(), *self._want(), contract.Wake(PATIENCE_S)]
        if isinstance(event, contract.Woken):
            effects, given_up = self.sums.patrol()
            if given_up:
                return self._end("peer-lost", "the sum of the scores was not complete in time")
            return [*effects, contract.Wake(PATIENCE_S)]
        if isinstance(event, contract.PeerLost):
            return self._on_lost(event.peer)
        assert isinstance(event, (contract.PeerBack, contract.Computed)), event
        return []

    # -- the asker ------------------------------------------------------------------------------------------------

    def _want(self) -> list[contract.Effect]:
        if self.name != self.asker or self._wanted or not self.sums.ready:
            return []
        self._wanted = True
        self._waiting = set(self.sums.peers)
        return [contract.Broadcast(self.sums.peers, Wanted(b"".join(self.tokens)))]

    def _on_known(self, sender: contract.PartyName, body: Known) -> list[contract.Effect]:
        bits = np.unpackbits(np.frombuffer(body.bits, np.uint8), count=len(self.tokens)).astype(np.bool_)
        self.known &= bits
        self._waiting.discard(sender)
        return self._ask() if not self._waiting else []

    def _ask(self) -> list[contract.Effect]:
        return self.sums.ask(0, len(self.tokens), CURRENT, 0)

    def _on_given(self, sender: contract.PartyName, body: ShareGiven) -> list[contract.Effect]:
        done = self.sums.collect(sender, body)
        return self._summed(done) if done is not None else []

    def _on_partial(self, sender: contract.PartyName, body: masked_sum.PartialGiven) -> list[contract.Effect]:
        effects, done = self.sums.collect_partial(sender, body)
        return [*effects, *self._summed(done)] if done is not None else effects

    def _summed(self, done: masked_sum.Sum) -> list[contract.Effect]:
        own, known = self.scorer.scores(self.tokens)
        self.known &= known
        self.result = own + done.words.view(np.int64) / self.sums.scale
        without = f", without {', '.join(self.left_out)}" if self.left_out else ""
        reason = f"{int(self.known.sum())} of {len(self.tokens)} rows scored{without}"
        return [
            contract.Broadcast(self.sums.peers, Enough()),
            contract.Observe("scored", int(self.known.sum())),
            contract.Finish("predicted", reason),
        ]

    def _on_lost(self, peer: contract.PartyName) -> list[contract.Effect]:
        if self.name != self.asker:
            reason = f"'{peer}' was lost during a prediction"
            return [contract.Finish("peer-lost", reason)] if peer == self.asker else []
        if not self.without or peer not in self.sums.roster:
            return self._end("peer-lost", f"'{peer}' was lost, and a prediction without it is not allowed")
        self.left_out.append(peer)
        roster = tuple(name for name in self.sums.roster if name != peer)
        epoch = self.sums.epoch + 1
        try:
            self.sums.enter_epoch(epoch, roster)
        except BadJob as problem:  # too few parties are left to hide a share
            return self._end("peer-lost", str(problem))
        self._wanted = False
        self.known = np.ones(len(self.tokens), np.bool_)
        return [contract.Broadcast(self.sums.peers, Without(epoch, roster)), *self._want()]

    def _end(self, verdict: str, reason: str) -> list[contract.Effect]:
        others: list[contract.Effect] = (
            [contract.Broadcast(self.sums.peers, Enough())] if self.name == self.asker else []
        )
        return [*others, contract.Finish(verdict, reason)]

    # -- everybody else -------------------------------------------------------------------------------------------

    def _on_key(self, sender: contract.PartyName, body: KeyOffered) -> list[contract.Effect]:
        return [*self.sums.take_key(sender, body), *self._want()]

    def _on_wanted(self, sender: contract.PartyName, body: Wanted) -> list[contract.Effect]:
        if sender != self.asker:
            raise UnexpectedEvent(f"'{sender}' wants scores in a prediction of '{self.asker}'.")
        if len(body.tokens) != self.rows * TOKEN_BYTES:
            asked = len(body.tokens) / TOKEN_BYTES
            return self._decline(f"'{sender}' announced {self.rows} rows and asks for {asked:g}")
        if self._asked not in (None, body.tokens):
            return self._decline(f"'{sender}' asks for other rows in the same prediction")
        self._asked = body.tokens
        tokens = [body.tokens[i : i + TOKEN_BYTES] for i in range(0, len(body.tokens), TOKEN_BYTES)]
        try:
            values, known = self.scorer.scores(tokens)
        except Refused as problem:
            return self._decline(str(problem))
        self._source.values = np.where(known, values, 0.0)
        return [contract.Send(sender, Known(np.packbits(known).tobytes()))]

    def _on_asked(self, sender: contract.PartyName, body: ShareAsked) -> list[contract.Effect]:
        if sender != self.asker or (body.start, body.stop) != (0, self.rows) or self._asked is None:
            raise UnexpectedEvent(f"'{sender}' asks '{self.name}' for rows {body.start} to {body.stop} out of turn.")
        try:
            return self.sums.answer(sender, body)
        except OutOfRange as problem:
            return self._decline(str(problem))

    def _on_without(self, sender: contract.PartyName, body: Without) -> list[contract.Effect]:
        if not self.without:
            return self._decline(f"'{self.name}' does not predict without a party")
        fewer = set(body.names) < set(self.sums.roster) and len(set(body.names)) == len(body.names)
        if sender != self.asker or not fewer or not {self.name, sender} <= set(body.names):
            raise UnexpectedEvent(f"'{sender}' names {list(body.names)} as those who are left of the prediction.")
        if body.epoch != self.sums.epoch + 1:
            raise UnexpectedEvent(f"'{sender}' counts epoch {body.epoch} after {self.sums.epoch}.")
        self.sums.enter_epoch(body.epoch, body.names)
        return self.sums.offer_key()

    def _decline(self, reason: str) -> list[contract.Effect]:
        return [contract.Send(self.asker, Declined(reason))]

    # -- going on later -------------------------------------------------------------------------------------------

    def snapshot(self) -> contract.State:
        values = self._source.values
        return {
            "sums": self.sums.snapshot(),
            "wanted": self._wanted,
            "asked": self._asked,
            "waiting": sorted(self._waiting),
            "known": self.known.copy(),
            "left_out": list(self.left_out),
            "values": None if values is None else values.copy(),
        }

    def restore(self, state: contract.State) -> None:
        self.sums.restore(state["sums"])
        self._wanted, self._waiting, self._asked = state["wanted"], set(state["waiting"]), state["asked"]
        self.known, self.left_out, self._source.values = state["known"], list(state["left_out"]), state["values"]
