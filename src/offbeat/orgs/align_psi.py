"""Private set intersection of the parties' id columns, for several parties: which rows do all of us have?

Ids never travel. Each becomes a *token*, a keyed hash under the job's salt; tokens become points of a curve, and points
are blinded by secret keys before they leave (blinding.py). One party leads. It intersects with the others one after
the other, each time going on with what is left, bucket by bucket. The next member sees only what is left. `PROTOCOL`
below has the messages.

Each party says how many ids it brings before the run begins, and nobody may bring more: a member counts what the leader
asks for, the leader counts what members have. A bucket is asked for once. Points leave in an order that says nothing
of their tokens: an order of tokens would tell how many ids lie between two that are known. Marks are hashes with their
member's name: two members' marks do not tell whom both have. An id of a member stands for one of the leader's, and the
leader names the common rows to each member by the points which that member has shown: whoever lacks a row is told
nothing of it. A party takes the joined rows only after every other party has shown it the same digest over them, so no
row is used that an honest party lacks.

With that digest each party promises a random number, and tells it when it has everybody's promise: their hash is the
*coin* that decides which rows are held out for testing. Nobody who matches ids knows it.

What it tells: the leader learns which of its ids the first members share (the last intersection it must learn anyway);
members learn how many of the leader's ids were left, and in the end the common ids; everybody learns the size of
everybody's table. If fewer ids are common than some party accepts, the leader alone has learned which. An alignment
that was computed elsewhere can be imported: then only the last step runs.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadData, PeerFailed
from offbeat.orgs.blinding import multiplied, points_of
from offbeat.orgs.tokens import IdColumn, bucket_bounds, digest_of
from offbeat.orgs.x25519 import POINT_BYTES
from offbeat.party import contract
from offbeat.party.expected import Handlers, received
from offbeat.party.protocol import Line, messages_of

BUCKET_IDS = 2000  # about a fifth of a second of arithmetic
BUCKETS_IN_FLIGHT = 4
JOINED_ROWS = 200_000  # in one message
MARK_BYTES = 16  # enough to compare two points
TOO_FEW = "too-few"


class ReadyToAlign(contract.Message, frozen=True, tag="Ready"):
    """This party begins.

    Reveals: how many common ids its policy wants at least, to the leader.
    """

    least: int


class Blinded(contract.Message, frozen=True):
    """The leader's remaining ids of one bucket, blinded.

    Reveals: their number, to one member.
    """

    bucket: int
    points: bytes


class Answered(contract.Message, frozen=True):
    """The leader's ids blinded twice, and the member's own ids of the bucket blinded once.

    Reveals: which of the leader's remaining ids this member has, to the leader; and the size of the member's bucket.
    """

    bucket: int
    marks: bytes
    own: bytes


class Joined(contract.Message, frozen=True):
    """Part of the rows that all parties have: 8 bytes each, which bucket of the member's own points and which of them.

    Reveals: which of its own ids all the others have too, to one member.
    """

    part: int
    parts: int
    places: bytes


class TooFew(contract.Message, frozen=True):
    """Fewer ids are common than this party accepts.

    Reveals: that it is so, and whose limit it is, to every party.
    """

    whose: str
    least: int


class Seen(contract.Message, frozen=True):
    """The order of rows as this party has it, and the hash of a random number that it will tell.

    Reveals: a digest, to every party.
    """

    rows: int
    digest: str
    promise: bytes


class Tossed(contract.Message, frozen=True):
    """The number that this party has promised.

    Reveals: nothing: it is random.
    """

    number: bytes


PROTOCOL = (
    Line(ReadyToAlign, "member", "leader", "at the start: it is here, and refuses fewer common ids than this"),
    Line(Blinded, "leader", "member", "bucket by bucket, to one member after the other: what is left of its points"),
    Line(Answered, "member", "leader", "as the answer: these blinded a second time, and its own points of the bucket"),
    Line(
        Joined,
        "leader",
        "member",
        "when all members were asked, to each: which of the points that it sent all have",
    ),
    Line(TooFew, "leader", "member", "instead, where somebody wants more common ids than there are"),
    Line(Seen, "party", "party", "when it has the rows in that order, to all"),
    Line(Tossed, "party", "party", "when all have shown the same rows, to all: its part of the coin"),
)
MESSAGES = messages_of(PROTOCOL)


Left = tuple[list[int], bytes, list[list[int]]]
"""Of a bucket: the leader's places that are left, their points, and for each member asked so far which of its points
these are."""


class Aligner:
    """One party of the alignment. `sizes` are everybody's numbers of ids, agreed on before; `least` is the smallest
    intersection this party accepts; `secret` makes its key and its part of the coin; `imported` is an order computed
    elsewhere, `coin` the one that was tossed with it."""

    def __init__(
        self,
        name: contract.PartyName,
        parties: tuple[contract.PartyName, ...],
        leader: contract.PartyName,
        column: IdColumn,
        *,
        sizes: Mapping[contract.PartyName, int],
        secret: bytes,
        least: int = 1,
        imported: Sequence[bytes] | None = None,
        coin: bytes = b"",
    ) -> None:
        self.name, self.parties, self.leader, self.column = name, parties, leader, column
        self.sizes, self.least = dict(sizes), least
        self.members = tuple(party for party in parties if party != leader)
        self.joined: list[bytes] | None = list(imported) if imported is not None else None
        self.agreed = ""
        self._imported = imported is not None
        self.coin = self._kept_coin = coin
        self._number = hashlib.blake2b(b"coin", key=secret, digest_size=32).digest()
        self._key = hashlib.blake2b(b"psi", key=secret, digest_size=32).digest()
        # The smallest table first: then the least is learned about the others.
        self._order = sorted(self.members, key=lambda member: (self.sizes[member], member))
        self._buckets = max(1, -(-max(self.sizes.values()) // BUCKET_IDS))
        self._bounds = bucket_bounds(column.tokens, self._buckets)
        self._leasts: dict[contract.PartyName, int] = {}
        self._seen: dict[contract.PartyName, tuple[int, str]] = {}
        self._promises: dict[contract.PartyName, bytes] = {}
        self._tossed: dict[contract.PartyName, bytes] = {}
        self._next_bucket = 0
        self._left: dict[int, Left] = {}
        self._stage: dict[int, int] = {}  # which member a bucket is with
        self._done: list[int] = []
        self._picked: dict[contract.PartyName, list[int]] = {member: [] for member in self.members}
        self._shown: dict[int, list[int]] = {}  # by bucket: a member's own places, in the order of the points it sent
        self._asked: dict[int, int] = {}  # how many ids the leader asked a member for, by bucket
        self._given: dict[contract.PartyName, int] = {}  # how many ids of its own each member has shown the leader
        self._parts: dict[int, bytes] = {}
        self._ticket = 0
        self._work: dict[int, tuple[str, int]] = {}
        self._handlers: Handlers = {
            ReadyToAlign: self._on_ready,
            Blinded: self._on_blinded,
            Answered: self._on_answered,
            Joined: self._on_joined,
            TooFew: self._on_too_few,
            Seen: self._on_seen,
            Tossed: self._on_tossed,
        }

    @property
    def leads(self) -> bool:
        return self.name == self.leader

    def rows(self) -> NDArray[np.int64]:
        """This party's table rows in the agreed order."""
        assert self.joined is not None and self.agreed
        return self.column.rows_of(self.joined)

    def handle(self, event: contract.Event) -> list[contract.Effect]:
        if isinstance(event, contract.Received):
            return received(self.name, self._handlers, event)
        if isinstance(event, contract.Computed):
            kind, bucket = self._work.pop(event.ticket)
            return self._computed(kind, bucket, event.result)
        if isinstance(event, contract.Started):
            return self._on_started()
        assert isinstance(event, (contract.PeerLost, contract.PeerBack, contract.Woken)), event
        return []  # an alignment needs everybody: the runtime decides how long to wait

    # -- beginning ------------------------------------------------------------------------------------------------

    def _on_started(self) -> list[contract.Effect]:
        assert len(self.column.tokens) == self.sizes[self.name], "a party brings the ids that it said"
        if self._imported:
            return self._check_imported()
        if self.leads:
            return self._on_ready(self.name, ReadyToAlign(self.least))
        return [contract.Send(self.leader, ReadyToAlign(self.least))]

    def _check_imported(self) -> list[contract.Effect]:
        assert self.joined is not None
        strangers = int((self.column.rows_of(self.joined) < 0).sum())
        if strangers or len(set(self.joined)) != len(self.joined):
            what = f"{strangers} ids that are not in this party's table" if strangers else "an id more than once"
            raise BadData(f"the imported alignment of '{self.name}' lists {what}; make it anew from the same table.")
        return self._see()

    def _on_ready(self, sender: contract.PartyName, body: ReadyToAlign) -> list[contract.Effect]:
        self._refuse_unless(self.leads and sender not in self._leasts, sender, "is ready out of turn")
        self._leasts[sender] = body.least
        if len(self._leasts) < len(self.parties):
            return []
        return [contract.Observe("sizes", dict(sorted(self.sizes.items()))), *self._start_buckets()]

    # -- the leader -----------------------------------------------------------------------------------------------

    def _start_buckets(self) -> list[contract.Effect]:
        effects: list[contract.Effect] = []
        while self._next_bucket < self._buckets and len(self._stage) < BUCKETS_IN_FLIGHT:
            bucket = self._next_bucket
            self._next_bucket += 1
            self._stage[bucket] = 0
            effects.append(self._ask_for("blind", bucket, partial(_blinded, self._key, self._own(bucket), self.name)))
        if self._next_bucket == self._buckets and not self._stage:
            effects += self._join()
        return effects

    def _own(self, bucket: int) -> tuple[bytes, ...]:
        return self.column.tokens[self._bounds[bucket] : self._bounds[bucket + 1]]

    def _ask_member(self, bucket: int) -> list[contract.Effect]:
        return [contract.Send(self._order[self._stage[bucket]], Blinded(bucket, self._left[bucket][1]))]

    def _on_answered(self, sender: contract.PartyName, body: Answered) -> list[contract.Effect]:
        stage = self._stage.get(body.bucket)
        in_turn = stage is not None and self._order[stage] == sender and body.bucket in self._left
        self._refuse_unless(in_turn, sender, f"answered bucket {body.bucket} of the alignment out of turn")
        places = self._left[body.bucket][0]
        whole = len(body.marks) == len(places) * MARK_BYTES and len(body.own) % POINT_BYTES == 0
        self._refuse_unless(whole, sender, f"answered bucket {body.bucket} with another number of ids than was asked")
        given = self._given[sender] = self._given.get(sender, 0) + len(body.own) // POINT_BYTES
        self._refuse_unless(
            given <= self.sizes[sender], sender, f"brings more ids than the {self.sizes[sender]} it said"
        )
        return [self._ask_for("match", body.bucket, partial(_matches, self._key, body.marks, body.own, sender))]

    def _computed(self, kind: str, bucket: int, result: Any) -> list[contract.Effect]:
        if kind == "answer":
            marks, own, order = result
            self._shown[bucket] = [self._bounds[bucket] + place for place in order]
            return [contract.Send(self.leader, Answered(bucket, marks, own))]
        if kind == "blind":
            points, order = result
            self._left[bucket] = ([self._bounds[bucket] + place for place in order], points, [])
        else:
            self._left[bucket] = _kept(self._left[bucket], result)
            self._stage[bucket] += 1
        if self._left[bucket][0] and self._stage[bucket] < len(self._order):
            return self._ask_member(bucket)
        places, _, picks = self._left.pop(bucket)
        self._done += places
        for member, picked in zip(self._order, picks, strict=False):  # none is left for those who were not asked
            self._picked[member] += [(bucket << 32) + place for place in picked]
        del self._stage[bucket]
        return self._start_buckets()

    def _join(self) -> list[contract.Effect]:
        rows = len(self._done)
        least, whose = max((least, name) for name, least in self._leasts.items())
        if rows < least:
            reason = f"{rows} rows are shared by all parties, and '{whose}' wants at least {least}"
            return [contract.Broadcast(self.members, TooFew(whose, least)), contract.Finish(TOO_FEW, reason)]
        self.joined = [self.column.tokens[place] for place in sorted(self._done)]
        parts = _parts(rows)
        effects: list[contract.Effect] = []
        for part in range(parts):
            for member, picked in self._picked.items():
                some = np.array(picked[part * JOINED_ROWS : (part + 1) * JOINED_ROWS], "<u8")
                effects.append(contract.Send(member, Joined(part, parts, some.tobytes())))
        return [*effects, *self._see()]

    # -- a member -------------------------------------------------------------------------------------------------

    def _on_blinded(self, sender: contract.PartyName, body: Blinded) -> list[contract.Effect]:
        self._refuse_unless(sender == self.leader, sender, f"asks for ids in an alignment that '{self.leader}' leads")
        fresh = 0 <= body.bucket < self._buckets and body.bucket not in self._asked
        self._refuse_unless(fresh, sender, f"asks for bucket {body.bucket} of {self._buckets} again, or it is none")
        self._refuse_unless(len(body.points) % POINT_BYTES == 0, sender, "sent half an id")
        self._asked[body.bucket] = len(body.points) // POINT_BYTES
        asked = sum(self._asked.values())
        said = self.sizes[sender]
        self._refuse_unless(asked <= said, sender, f"asks for {asked} ids, more than the {said} it said it brings")
        own = self._own(body.bucket)
        return [self._ask_for("answer", body.bucket, partial(_answer, self._key, own, body.points, sender, self.name))]

    def _on_joined(self, sender: contract.PartyName, body: Joined) -> list[contract.Effect]:
        in_turn = sender == self.leader and self.joined is None and body.part not in self._parts
        self._refuse_unless(in_turn, sender, "joins ids out of turn")
        most = _parts(min(self.sizes.values()))
        fits = 0 <= body.part < body.parts <= most and len(body.places) <= 8 * JOINED_ROWS and len(body.places) % 8 == 0
        self._refuse_unless(fits, sender, "joins more ids than the smallest party has")
        self._parts[body.part] = body.places
        if len(self._parts) < body.parts:
            return []
        self._refuse_unless(max(self._parts) < body.parts, sender, "joins ids in other parts than it said")
        named = np.frombuffer(b"".join(self._parts[part] for part in range(body.parts)), "<u8")
        self._parts.clear()
        tokens = [self.column.tokens[place] for place in self._places(sender, named.tolist())]
        if len(tokens) < self.least:
            return [contract.Finish(TOO_FEW, f"{len(tokens)} rows are shared, and '{self.name}' wants {self.least}")]
        self.joined = tokens
        return self._see()

    def _places(self, sender: contract.PartyName, named: Sequence[int]) -> list[int]:
        """Where the ids are whose points the leader names."""
        found = []
        for bucket, place in (divmod(name, 2**32) for name in named):
            shown = self._shown.get(bucket, [])
            self._refuse_unless(place < len(shown), sender, f"joins ids that '{self.name}' has not shown")
            found.append(shown[place])
        self._refuse_unless(len(set(found)) == len(found), sender, "joins an id twice")
        return sorted(found)

    def _on_too_few(self, sender: contract.PartyName, body: TooFew) -> list[contract.Effect]:
        self._refuse_unless(sender == self.leader, sender, f"ends an alignment that '{self.leader}' leads")
        self._refuse_unless(body.whose in self.parties, sender, "names nobody's limit")
        reason = f"fewer than {body.least} rows are shared by all parties, and '{body.whose}' wants at least so many"
        return [contract.Finish(TOO_FEW, reason)]

    # -- agreeing -------------------------------------------------------------------------------------------------

    def _see(self) -> list[contract.Effect]:
        assert self.joined is not None
        digest = digest_of((*self.joined, self._kept_coin))
        seen = Seen(len(self.joined), digest, promise_of(self.name, digest, self._number))
        return [contract.Broadcast(self._others, seen), *self._on_seen(self.name, seen)]

    def _on_seen(self, sender: contract.PartyName, body: Seen) -> list[contract.Effect]:
        self._refuse_unless(sender in self.parties and sender not in self._seen, sender, "shows its rows twice")
        self._seen[sender] = (body.rows, body.digest)
        self._promises[sender] = body.promise
        if len(self._seen) < len(self.parties):
            return []
        rows, digest = self._seen[self.name]
        odd = sorted(name for name, (_, theirs) in self._seen.items() if theirs != digest)
        if odd:
            listed = ", ".join(f"'{name}' has {self._seen[name][0]} rows" for name in odd)
            reason = f"the rows of {listed}, not the {rows} rows of '{self.name}' in its order (digest {digest[:16]})"
            return [contract.Finish("misaligned", reason)]
        self.agreed = digest
        if self._kept_coin:
            return self._aligned()
        return [
            contract.Broadcast(self._others, Tossed(self._number)),
            *self._on_tossed(self.name, Tossed(self._number)),
        ]

    def _on_tossed(self, sender: contract.PartyName, body: Tossed) -> list[contract.Effect]:
        in_turn = sender in self.parties and sender not in self._tossed and not self._kept_coin
        self._refuse_unless(in_turn, sender, "tosses a coin out of turn")
        self._tossed[sender] = body.number  # others may have everybody's promises before this party has
        if not self.agreed or len(self._tossed) < len(self.parties):
            return []
        for name, number in self._tossed.items():
            kept = self._promises[name] == promise_of(name, self.agreed, number)
            self._refuse_unless(kept, name, "tosses another coin than it promised")
        self.coin = hashlib.sha256(b"".join(self._tossed[name] for name in self.parties)).digest()
        return self._aligned()

    def _aligned(self) -> list[contract.Effect]:
        rows, _ = self._seen[self.name]
        reason = f"{rows} rows are shared by all {len(self.parties)} parties"
        return [contract.Observe("rows", rows), contract.Finish("aligned", reason)]

    @property
    def _others(self) -> tuple[contract.PartyName, ...]:
        return tuple(party for party in self.parties if party != self.name)

    # -- work and refusals ----------------------------------------------------------------------------------------

    def _refuse_unless(self, right: bool, sender: contract.PartyName, wrong: str) -> None:
        if not right:
            raise PeerFailed(f"'{self.name}' refuses the alignment: '{sender}' {wrong}.")

    def _ask_for(self, kind: str, bucket: int, job: Callable[[], Any]) -> contract.Compute:
        self._ticket += 1
        self._work[self._ticket] = (kind, bucket)
        return contract.Compute(self._ticket, job=job)

    # -- going on later -------------------------------------------------------------------------------------------

    _KEPT = (
        "agreed", "joined", "coin", "_promises", "_tossed", "_leasts", "_next_bucket", "_stage", "_done", "_asked",
        "_given", "_parts", "_picked", "_shown", "_seen", "_left", "_work", "_ticket",
    )  # fmt: skip

    def snapshot(self) -> contract.State:
        return {name: _copy(getattr(self, name)) for name in self._KEPT}

    def restore(self, state: contract.State) -> None:
        for name in self._KEPT:
            setattr(self, name, _copy(state[name]))


def promise_of(name: contract.PartyName, digest: str, number: bytes) -> bytes:
    """Bound to the party, so that nobody can repeat another's, and to the rows."""
    return hashlib.sha256(repr((name, digest, number)).encode()).digest()


def _copy(value: Any) -> Any:
    """What is changed in place; entries are replaced as a whole."""
    if isinstance(value, Mapping):
        return {key: list(entry) if isinstance(entry, list) else entry for key, entry in value.items()}
    return list(value) if isinstance(value, list) else value


def _parts(rows: int) -> int:
    return max(1, -(-rows // JOINED_ROWS))


# -- the arithmetic, as jobs ------------------------------------------------------------------------------------------


def _blinded(key: bytes, tokens: Sequence[bytes], who: str) -> tuple[bytes, list[int]]:
    """(the points of the tokens times the key, in the order of their bytes, which of the tokens each is of)."""
    points = _pieces(multiplied(key, points_of(tokens), who), POINT_BYTES)
    order = sorted(range(len(points)), key=points.__getitem__)
    return b"".join(points[place] for place in order), order


def _answer(key: bytes, own: Sequence[bytes], asked: bytes, asker: str, who: str) -> tuple[bytes, bytes, list[int]]:
    """(marks of the asker's ids under both keys, our own ids under ours, and which these are)."""
    if not own:  # nothing here can be shared: marks that match nothing
        return bytes(len(asked) // POINT_BYTES * MARK_BYTES), b"", []
    return b"".join(marks_of(multiplied(key, asked, asker), who)), *_blinded(key, own, who)


def _matches(key: bytes, marks: bytes, own: bytes, member: str) -> list[tuple[int, int]]:
    """Which of the asked ids the member has: those whose mark is among its ids' under both keys, and of which one."""
    theirs = {mark: place for place, mark in enumerate(marks_of(multiplied(key, own, member), member))}
    found = [(i, theirs[mark]) for i, mark in enumerate(_pieces(marks, MARK_BYTES)) if mark in theirs]
    if len({place for _, place in found}) < len(found):
        raise PeerFailed(f"'{member}' says of two ids in the alignment that they are the same one of its own.")
    return found


def marks_of(points: bytes, member: str) -> list[bytes]:
    """Of points that were blinded twice, once by this member. Only with its own key has the leader such a point itself:
    marks of two members cannot be compared, not even where it has passed the points of one to the other."""
    who = member.encode() + b"\0"
    return [hashlib.blake2b(who + point, digest_size=MARK_BYTES).digest() for point in _pieces(points, POINT_BYTES)]


def _pieces(whole: bytes, size: int) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _kept(left: Left, matches: Sequence[tuple[int, int]]) -> Left:
    places, points, picks = left
    found = [i for i, _ in matches]
    before = [[picked[i] for i in found] for picked in picks]
    kept = b"".join(points[i * POINT_BYTES : (i + 1) * POINT_BYTES] for i in found)
    return [places[i] for i in found], kept, [*before, [place for _, place in matches]]
