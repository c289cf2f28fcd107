"""Private set intersection of the parties' id columns, for several parties: which rows do all of us have?

Ids never travel. Each becomes a *token*, a keyed hash under the job's salt; tokens are blinded by elliptic-curve keys
(openmined.psi) before they leave. One party leads. It intersects with the others one after the other, each time
going on with what is left, bucket by bucket:

    all members -> leader   Present        how many distinct ids I have
    leader -> member        Blinded        my tokens of one bucket, blinded by my key
    member -> leader        Answered       these blinded by my key too; and my own bucket's tokens, blinded
    ...                                    the next member sees only what is left
    leader -> all           Joined         the tokens that all have, in order: the order of the rows from now on
    all -> leader           Seen           the digest of my rows in that order
    leader -> all           Agreed         all digests are the same; or Disagreed

What it tells: the leader learns which of its ids the first members share (the last intersection it must learn anyway);
members learn how many of the leader's ids were left, and in the end the common ids; everybody learns the size of
everybody's table. An alignment that was computed elsewhere can be imported: then only the last two steps run.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadData, UnexpectedEvent
from offbeat.orgs import psi_library
from offbeat.orgs.tokens import TOKEN_BYTES, IdColumn, bucket_of, digest_of
from offbeat.party import contract

BUCKET_IDS = 1500  # about a quarter of a second of arithmetic
BUCKETS_IN_FLIGHT = 2
JOINED_TOKENS = 200_000  # in one message


class Present(contract.Message, frozen=True):
    """How many distinct ids this party has.

    Reveals: the size of the table, to the leader.
    """

    count: int


class Blinded(contract.Message, frozen=True):
    """The leader's remaining tokens of one bucket, blinded.

    Reveals: their number, to one member.
    """

    bucket: int
    buckets: int
    request: bytes


class Answered(contract.Message, frozen=True):
    """The leader's tokens blinded twice, and the member's own tokens of the bucket blinded once.

    Reveals: which of the leader's remaining ids this member has, to the leader; and the size of the member's bucket.
    """

    bucket: int
    response: bytes
    own: bytes


class Joined(contract.Message, frozen=True):
    """Part of the tokens that all parties have, in their common order.

    Reveals: which of its own ids all the others have too, to every party.
    """

    part: int
    parts: int
    tokens: bytes


class Seen(contract.Message, frozen=True):
    """The order of rows as this party has it.

    Reveals: a digest, to the leader.
    """

    rows: int
    digest: str


class Agreed(contract.Message, frozen=True):
    """Every party has the same rows in the same order.

    Reveals: nothing more.
    """

    digest: str


class Disagreed(contract.Message, frozen=True):
    """The parties' rows differ.

    Reveals: whose digest differs, to every party.
    """

    reason: str


MESSAGES = (Present, Blinded, Answered, Joined, Seen, Agreed, Disagreed)


class Aligner:
    """One party of the alignment. `secret` makes its blinding keys; `imported` is an order computed elsewhere."""

    def __init__(
        self,
        name: contract.PartyName,
        parties: tuple[contract.PartyName, ...],
        leader: contract.PartyName,
        column: IdColumn,
        *,
        secret: bytes,
        imported: Sequence[bytes] | None = None,
    ) -> None:
        self.name, self.parties, self.leader, self.column = name, parties, leader, column
        self.members = tuple(party for party in parties if party != leader)
        self.joined: list[bytes] | None = list(imported) if imported is not None else None
        self.agreed = ""
        self._imported = imported is not None
        self._secret = secret
        self._counts: dict[contract.PartyName, int] = {}
        self._seen: dict[contract.PartyName, tuple[int, str]] = {}
        self._order: list[contract.PartyName] = []
        self._buckets = 0
        self._next_bucket = 0
        self._left: dict[int, list[bytes]] = {}  # the leader's remaining tokens of the buckets under way
        self._stage: dict[int, int] = {}  # which member a bucket is with
        self._done: list[bytes] = []
        self._parts: dict[int, bytes] = {}
        self._ticket = 0
        self._work: dict[int, tuple[str, int]] = {}
        self._handlers: dict[type[contract.Message], Callable[[contract.PartyName, Any], list[contract.Effect]]] = {
            Present: self._on_present,
            Blinded: self._on_blinded,
            Answered: self._on_answered,
            Joined: self._on_joined,
            Seen: self._on_seen,
            Agreed: self._on_agreed,
            Disagreed: self._on_disagreed,
        }

    @property
    def leads(self) -> bool:
        return self.name == self.leader

    def rows(self) -> NDArray[np.int64]:
        """This party's table rows in the agreed order."""
        assert self.joined is not None and self.agreed
        position = {token: i for i, token in enumerate(self.column.tokens)}
        return self.column.rows[[position[token] for token in self.joined]]

    def handle(self, event: contract.Event) -> list[contract.Effect]:
        if isinstance(event, contract.Received):
            handler = self._handlers.get(type(event.body))
            if handler is None:
                raise UnexpectedEvent(f"'{self.name}' got a {type(event.body).__name__} from '{event.sender}'.")
            return handler(event.sender, event.body)
        if isinstance(event, contract.Computed):
            kind, bucket = self._work.pop(event.ticket)
            return (
                self._blinded(bucket, event.result) if kind == "blind" else self._computed(kind, bucket, event.result)
            )
        if isinstance(event, contract.Started):
            return self._on_started(event)
        assert isinstance(event, (contract.PeerLost, contract.PeerBack)), event
        return []  # an alignment needs everybody: the runtime decides how long to wait

    # -- beginning ------------------------------------------------------------------------------------------------

    def _on_started(self, event: contract.Started) -> list[contract.Effect]:
        if self._imported:
            return self._check_imported()
        if self.leads:
            return self._present(self.name, len(self.column.tokens))
        return [contract.Send(self.leader, Present(len(self.column.tokens)))]

    def _check_imported(self) -> list[contract.Effect]:
        assert self.joined is not None
        own = set(self.column.tokens)
        strangers = sum(token not in own for token in self.joined)
        if strangers or len(set(self.joined)) != len(self.joined):
            what = f"{strangers} ids that are not in this party's table" if strangers else "an id more than once"
            raise BadData(f"the imported alignment of '{self.name}' lists {what}; make it anew from the same table.")
        return self._see()

    def _on_present(self, sender: contract.PartyName, body: Present) -> list[contract.Effect]:
        return self._present(sender, body.count)

    def _present(self, who: contract.PartyName, count: int) -> list[contract.Effect]:
        self._counts[who] = count
        if len(self._counts) < len(self.parties):
            return []
        # The smallest table first: then the least is learned about the others.
        self._order = sorted(self.members, key=lambda name: (self._counts[name], name))
        self._buckets = max(1, -(-max(self._counts.values()) // BUCKET_IDS))
        return [contract.Observe("sizes", dict(sorted(self._counts.items()))), *self._start_buckets()]

    # -- the leader -----------------------------------------------------------------------------------------------

    def _start_buckets(self) -> list[contract.Effect]:
        effects: list[contract.Effect] = []
        while self._next_bucket < self._buckets and len(self._left) < BUCKETS_IN_FLIGHT:
            bucket = self._next_bucket
            self._next_bucket += 1
            self._left[bucket] = self._own_bucket(bucket, self._buckets)
            self._stage[bucket] = 0
            effects += self._blind(bucket)
        if self._next_bucket == self._buckets and not self._left:
            effects += self._join()
        return effects

    def _own_bucket(self, bucket: int, buckets: int) -> list[bytes]:
        return [token for token in self.column.tokens if bucket_of(token, buckets) == bucket]

    def _blind(self, bucket: int) -> list[contract.Effect]:
        member = self._order[self._stage[bucket]]
        return [
            self._ask_for("blind", bucket, partial(psi_library.blind, self._key(member), tuple(self._left[bucket])))
        ]

    def _blinded(self, bucket: int, request: bytes) -> list[contract.Effect]:
        return [contract.Send(self._order[self._stage[bucket]], Blinded(bucket, self._buckets, request))]

    def _on_answered(self, sender: contract.PartyName, body: Answered) -> list[contract.Effect]:
        if self._stage.get(body.bucket) is None or self._order[self._stage[body.bucket]] != sender:
            raise UnexpectedEvent(f"'{sender}' answered bucket {body.bucket} of the alignment out of turn.")
        tokens = tuple(self._left[body.bucket])
        job = partial(psi_library.intersect, self._key(sender), tokens, body.own, body.response)
        return [self._ask_for("intersect", body.bucket, job)]

    def _computed(self, kind: str, bucket: int, result: Any) -> list[contract.Effect]:
        if kind == "answer":
            own, response = result
            return [contract.Send(self.leader, Answered(bucket, response, own))]
        self._left[bucket] = list(result)
        self._stage[bucket] += 1
        if self._stage[bucket] < len(self._order) and self._left[bucket]:
            return self._blind(bucket)
        self._done += self._left.pop(bucket)
        del self._stage[bucket]
        return self._start_buckets()

    def _join(self) -> list[contract.Effect]:
        self.joined = sorted(self._done)
        parts = max(1, -(-len(self.joined) // JOINED_TOKENS))
        effects: list[contract.Effect] = []
        for part in range(parts):
            some = self.joined[part * JOINED_TOKENS : (part + 1) * JOINED_TOKENS]
            effects.append(contract.Broadcast(self.members, Joined(part, parts, b"".join(some))))
        return [*effects, *self._see()]

    # -- a member -------------------------------------------------------------------------------------------------

    def _on_blinded(self, sender: contract.PartyName, body: Blinded) -> list[contract.Effect]:
        own = tuple(self._own_bucket(body.bucket, body.buckets))
        return [self._ask_for("answer", body.bucket, partial(psi_library.answer, self._key(sender), own, body.request))]

    def _on_joined(self, sender: contract.PartyName, body: Joined) -> list[contract.Effect]:
        self._parts[body.part] = body.tokens
        if len(self._parts) < body.parts:
            return []
        whole = b"".join(self._parts[part] for part in range(body.parts))
        self.joined = [whole[i : i + TOKEN_BYTES] for i in range(0, len(whole), TOKEN_BYTES)]
        self._parts.clear()
        unknown = len(set(self.joined) - set(self.column.tokens))
        if unknown:
            raise BadData(f"'{sender}' joined {unknown} ids that '{self.name}' does not have; the salts may differ.")
        return self._see()

    # -- agreeing -------------------------------------------------------------------------------------------------

    def _see(self) -> list[contract.Effect]:
        assert self.joined is not None
        rows, digest = len(self.joined), digest_of(self.joined)
        if self.leads:
            return self._on_seen(self.name, Seen(rows, digest))
        return [contract.Send(self.leader, Seen(rows, digest))]

    def _on_seen(self, sender: contract.PartyName, body: Seen) -> list[contract.Effect]:
        self._seen[sender] = (body.rows, body.digest)
        if len(self._seen) < len(self.parties):
            return []
        rows, digest = self._seen[self.name]
        odd = sorted(name for name, (_, theirs) in self._seen.items() if theirs != digest)
        if odd:
            listed = ", ".join(f"'{name}' has {self._seen[name][0]} rows" for name in odd)
            reason = f"the rows of {listed}, not the {rows} rows of '{self.name}' in its order (digest {digest[:16]})"
            return [contract.Broadcast(self.members, Disagreed(reason)), contract.Finish("misaligned", reason)]
        return [contract.Broadcast(self.members, Agreed(digest)), *self._on_agreed(self.name, Agreed(digest))]

    def _on_agreed(self, sender: contract.PartyName, body: Agreed) -> list[contract.Effect]:
        assert self.joined is not None and digest_of(self.joined) == body.digest
        self.agreed = body.digest
        reason = f"{len(self.joined)} rows are shared by all {len(self.parties)} parties"
        return [contract.Observe("rows", len(self.joined)), contract.Finish("aligned", reason)]

    def _on_disagreed(self, sender: contract.PartyName, body: Disagreed) -> list[contract.Effect]:
        return [contract.Finish("misaligned", body.reason)]

    # -- keys and work --------------------------------------------------------------------------------------------

    def _key(self, peer: contract.PartyName) -> bytes:
        """A blinding key for this pair, so that members cannot compare what they were sent."""
        return hashlib.blake2b(f"psi {self.name} {peer}".encode(), key=self._secret, digest_size=32).digest()

    def _ask_for(self, kind: str, bucket: int, job: Callable[[], Any]) -> contract.Compute:
        self._ticket += 1
        self._work[self._ticket] = (kind, bucket)
        return contract.Compute(self._ticket, job=job)

    # -- going on later -------------------------------------------------------------------------------------------

    _PLAIN = ("agreed", "joined", "_counts", "_order", "_buckets", "_next_bucket", "_left", "_stage", "_done", "_parts")

    def snapshot(self) -> contract.State:
        state = {name: _copy(getattr(self, name)) for name in self._PLAIN}
        work = [[ticket, *entry] for ticket, entry in self._work.items()]
        seen = {name: list(entry) for name, entry in self._seen.items()}
        return {**state, "ticket": self._ticket, "work": work, "seen": seen}

    def restore(self, state: contract.State) -> None:
        for name in self._PLAIN:
            setattr(self, name, _copy(state[name]))
        self._ticket = state["ticket"]
        self._work = {ticket: (kind, bucket) for ticket, kind, bucket in state["work"]}
        self._seen = {name: (rows, digest) for name, (rows, digest) in state["seen"].items()}


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value
