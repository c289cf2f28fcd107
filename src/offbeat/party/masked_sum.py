"""A sub-machine: the sum of every party's share, known to the asker alone.

The asker broadcasts `ShareAsked`; every other party answers with its share of the asked rows as fixed-point words
modulo 2^64, hidden as the scheme says; the asker adds what arrives, in any order, and owns the exact sum.

    pairwise   one hop; masks from pair secrets cancel in the total; the default
    two-tree   the papers' Algorithm 2: masked shares up one tree, masks up another, pairs checked for 1-privacy
    tree       the papers' Algorithm 1: partial sums in the clear; insecure, for comparison only

A request's number is its place in the asker's stream of mask words, so masks are bound to (run, roster epoch, asker,
request) and never used twice. A request is answered once; a repeated request gets the cached bytes; the same number
with other rows is refused. A sum that misses a share is abandoned after a bounded number of tries, and its number is
burnt: the asker learns nothing from it. Whoever had to give one up is more patient with the next, within bounds: else
a round trip longer than all tries together would never end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from offbeat.errors import BadJob, MaskReuse, UnexpectedEvent
from offbeat.party.contract import Broadcast, Effect, Message, PartyName, Send
from offbeat.party.expected import COUNTS, WORDS, expect, expect_array
from offbeat.privacy.masks import FRACTION_BITS, KeyStream, NetMask, PairKeys, range_limit, scale_of
from offbeat.privacy.trees import Tree, children, one_tree, two_trees

SCHEMES = ("pairwise", "two-tree", "tree")
CURRENT = -1
"""The point at which a share is taken: the block as it is now; snapshot s is the point s, from 0 up."""

ANSWERS_KEPT = 512
EARLY_KEPT = 256
STRETCH_MAX = 64


class ShareSource(Protocol):
    """Where a party's shares come from: its block, and the snapshots and scalars it holds."""

    def version(self) -> int:
        """How often the block has changed."""

    def knows(self, point: int) -> bool:
        """Whether shares at this point can be given (yet, or still)."""

    def words(
        self, start: int, stop: int, point: int, mask: np.ndarray | None, at: int, scale: float, limit: float
    ) -> np.ndarray:
        """Fixed-point words of the rows, plus mask[at:] where a mask is given; raises OutOfRange beyond `limit`."""

    def nonzeros(self, start: int, stop: int, point: int) -> int:
        """How much arithmetic that is."""


class KeyOffered(Message, frozen=True):
    """A public key for pairwise masks.

    Reveals: a public key, to every party; nothing about the data.
    """

    public: bytes
    answer: bool  # the sender still lacks the receiver's key


class ShareAsked(Message, frozen=True):
    """A request for the shares of rows [start, stop).

    Reveals: which rows the asker works on and how often its block has changed, to every party.
    """

    first: int  # position in the asker's stream of mask words; also the request's number
    start: int
    stop: int
    point: int
    version: int  # of the asker's block
    epoch: int
    done: int  # every request below this number is closed: answers to it may be forgotten


class ShareGiven(Message, frozen=True):
    """One party's masked share.

    Reveals: uniform noise to the asker until all shares are added; then the total of the others' shares. With two
    parties, that total is the other's share itself.
    """

    first: int
    words: np.ndarray
    version: int
    epoch: int


class PartialGiven(Message, frozen=True):
    """The sum over one subtree, for the parent.

    Reveals: with two trees, a masked sum or a sum of masks to the parent, never both for one set of parties; with
    the plain tree, the subtree's partial sum in the clear.
    """

    asker: str
    first: int
    tree: int
    words: np.ndarray
    versions: np.ndarray  # by roster position, -1 where outside the subtree
    epoch: int


MESSAGES = (KeyOffered, ShareAsked, ShareGiven, PartialGiven)


@dataclass(frozen=True)
class SumOptions:
    """How sums are protected, and how long the asker insists."""

    scheme: str = "pairwise"
    fraction_bits: int = FRACTION_BITS
    two_party_insecure: bool = False
    tries_max: int = 12

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise BadJob(f"secure_sum must be one of {', '.join(SCHEMES)}; got {self.scheme!r}.")

    def check_roster(self, count: int) -> None:
        if count == 2 and not self.two_party_insecure:
            raise BadJob(
                "Two parties cannot hide a share from each other: the asker subtracts its own share from the total "
                "and has the other's, whatever the scheme. Add a third party, or set two_party_insecure = true to "
                "accept that each learns the other's products."
            )


@dataclass(slots=True)
class Sum:
    """One request of ours: what was asked, what has come."""

    first: int
    start: int
    stop: int
    point: int
    version: int  # of our block when asked
    words: np.ndarray
    missing: set[Any]
    versions: dict[PartyName, int] = field(default_factory=dict)
    tries: int = 0
    fresh: bool = True  # asked since the last patrol: not late yet
    order: int = 0  # how many requests came before it
    insist: bool = False  # there is nothing else to ask instead: never give up

    def plain(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.__slots__}
        return state | {"words": self.words.copy(), "versions": dict(self.versions), "missing": sorted(self.missing)}

    @classmethod
    def from_plain(cls, state: Mapping[str, Any]) -> "Sum":
        missing = {tuple(item) if isinstance(item, list) else item for item in state["missing"]}
        return cls(**{**state, "missing": missing})


class MaskedSum:
    """Both sides of the secure sum for one party."""

    def __init__(
        self,
        *,
        me: PartyName,
        roster: tuple[PartyName, ...],
        run: str,
        secret: bytes,
        options: SumOptions,
        source: ShareSource,
    ) -> None:
        options.check_roster(len(roster))
        self.me, self.run, self.options, self.source = me, run, options, source
        self._pairwise = options.scheme == "pairwise"
        self.scale = scale_of(options.fraction_bits)
        self.keys = PairKeys(secret)
        self.publics: dict[PartyName, bytes] = {}
        self._secret = secret
        self.next_first = self.asked = 0
        self.retried = self.abandoned = self.refused = 0
        self.stretch = 1  # how many times longer than usual this party now waits for a sum
        self.seen: dict[PartyName, int] = {}  # newest block version heard of, by party
        self._enter_epoch(0, roster)

    def _enter_epoch(self, epoch: int, roster: tuple[PartyName, ...]) -> None:
        self.epoch, self.roster = epoch, roster
        self.peers = tuple(name for name in roster if name != self.me)
        self.limit = range_limit(len(roster), self.options.fraction_bits)
        self.open: dict[int, Sum] = {}
        self.answers: dict[PartyName, dict[int, tuple[ShareAsked, list[Send]]]] = {name: {} for name in self.peers}
        self.closed_below: dict[PartyName, int] = dict.fromkeys(self.peers, 0)
        self.nets: dict[PartyName, NetMask] = {}
        self.private_streams: dict[PartyName, KeyStream] = {}
        self.partials: dict[tuple[PartyName, int, int], _Partial] = {}
        self.early: list[tuple[PartyName, ShareAsked]] = []
        self._note_readiness()

    # -- keys ----------------------------------------------------------------------------------------------------

    def _note_readiness(self) -> None:
        """`ready`: whether every peer's key is known."""
        self.ready = self.options.scheme != "pairwise" or all(self.keys.knows(peer) for peer in self.peers)

    def offer_key(self) -> list[Effect]:
        return [] if self.ready else [Broadcast(self.peers, KeyOffered(self.keys.public, True))]

    def take_key(self, sender: PartyName, offer: KeyOffered) -> list[Effect]:
        if not self.keys.knows(sender):
            self._agree(sender, offer.public)
        elif self.publics[sender] != offer.public:
            raise UnexpectedEvent(
                f"{sender} offered another key than before in the same run; no sum with it would be right. A party "
                "that comes back must bring the key it began with."
            )
        effects: list[Effect] = [Send(sender, KeyOffered(self.keys.public, False))] if offer.answer else []
        if self.ready and self.early:
            early, self.early = self.early, []
            for asker, ask in early:
                effects += self.answer(asker, ask)
        return effects

    def _agree(self, peer: PartyName, public: bytes) -> None:
        try:
            self.keys.agree(peer, public)
        except ValueError as problem:
            raise UnexpectedEvent(f"{peer} offered {len(public)} bytes that are no usable key: {problem}") from problem
        self.publics[peer] = public
        self._note_readiness()

    def enter_epoch(self, epoch: int, roster: tuple[PartyName, ...]) -> list[Sum]:
        """A new roster: new mask streams; every open request is abandoned and returned."""
        self.options.check_roster(len(roster))
        dropped = list(self.open.values())
        self.abandoned += len(dropped)
        self._enter_epoch(epoch, roster)
        return dropped

    # -- asking --------------------------------------------------------------------------------------------------

    def ask(self, start: int, stop: int, point: int, version: int, insist: bool = False) -> list[Effect]:
        """Begin a sum over rows [start, stop). Its number is `next_first` before the call."""
        ask = self._book(start, stop, point, version, insist)
        return [Broadcast(self.peers, ask)]

    def expect(self, start: int, stop: int, version: int) -> list[Effect]:
        """Book a sum whose shares the others send unasked, since they know the order of rounds too."""
        self._book(start, stop, CURRENT, version, insist=True)
        return []

    def _book(self, start: int, stop: int, point: int, version: int, insist: bool = False) -> ShareAsked:
        first = self.next_first
        self.next_first = first + (stop - start)
        wanted = Sum(first, start, stop, point, version, np.zeros(stop - start, np.uint64), self._expected())
        wanted.order, wanted.insist = self.asked, insist
        self.asked += 1
        self.open[first] = wanted
        return self._request(wanted)

    @property
    def open_at_current(self) -> int:
        """How many of our requests for current products are under way."""
        return sum([wanted.point == CURRENT for wanted in self.open.values()])

    def _request(self, wanted: Sum) -> ShareAsked:
        done = min(self.open)
        return ShareAsked(wanted.first, wanted.start, wanted.stop, wanted.point, wanted.version, self.epoch, done)

    def _expected(self) -> set[Any]:
        if self.options.scheme == "pairwise":
            return set(self.peers)
        return {(tree, child) for tree, shape in enumerate(self._trees(self.me)) for child in children(shape, self.me)}

    def collect(self, sender: PartyName, given: ShareGiven) -> Sum | None:
        """Add one share; return the sum when it is complete."""
        version, words = given.version, given.words
        if version > self.seen.get(sender, -1):
            self.seen[sender] = version
        wanted = self.open.get(given.first)
        if wanted is None or given.epoch != self.epoch or sender not in wanted.missing:
            return None  # late, repeated, or of another epoch
        expect_array(sender, "its answer to request", words, len(wanted.words), WORDS, given.first)
        wanted.missing.discard(sender)
        wanted.words += words
        wanted.versions[sender] = version
        return None if wanted.missing else self._close(wanted)

    def _close(self, wanted: Sum) -> Sum | None:
        if wanted.missing:
            return None
        del self.open[wanted.first]
        while self.stretch > 1 and 4 * wanted.tries <= self.options.tries_max * self.stretch:
            self.stretch //= 2
        return wanted

    def patrol(self) -> tuple[list[Effect], list[Sum]]:
        """Called now and then: ask again where an answer is late; give up where it is too late.

        Returns what to send, and the sums given up."""
        effects: list[Effect] = self.offer_key()
        given_up = []
        for wanted in list(self.open.values()):
            if wanted.fresh:
                wanted.fresh = False
                continue
            if not wanted.insist and self._hopeless(wanted):
                del self.open[wanted.first]
                given_up.append(wanted)
                continue
            wanted.tries = min(wanted.tries + 1, self._tries_most)
            if wanted.tries % self.stretch == 0:
                effects.append(Broadcast(self._late(wanted), self._request(wanted)))
                self.retried += 1
        self.abandoned += len(given_up)
        if any(lost.tries >= self._tries_most for lost in given_up):
            self.stretch = min(2 * self.stretch, STRETCH_MAX)
        return effects, given_up

    @property
    def _tries_most(self) -> int:
        return self.options.tries_max * self.stretch

    def _hopeless(self, wanted: Sum) -> bool:
        """Asked for often enough, or so many requests ago that its answers may have been forgotten."""
        return wanted.tries >= self._tries_most or self.asked - wanted.order >= ANSWERS_KEPT

    def _late(self, wanted: Sum) -> tuple[PartyName, ...]:
        """Whom to ask again: in a tree the missing subtree may lack anybody's answer."""
        if self.options.scheme != "pairwise":
            return self.peers
        return tuple(peer for peer in self.peers if peer in wanted.missing)

    def lag(self, own_versions: int, versions: Mapping[PartyName, int]) -> int:
        """How many versions behind the oldest part of a product is, as far as this party has heard: the steps of its
        own block since it asked, or the steps of a peer's block since its share."""
        behind = own_versions
        for name, version in versions.items():
            newest = self.seen.get(name, version)
            if newest - version > behind:
                behind = newest - version
        return behind

    # -- answering -----------------------------------------------------------------------------------------------

    def answer(self, asker: PartyName, ask: ShareAsked) -> list[Effect]:
        """One masked share, once; the same bytes again if the request is repeated."""
        first, version, done = ask.first, ask.version, ask.done
        if version > self.seen.get(asker, -1):
            self.seen[asker] = version
        kept = self.answers.get(asker)
        if kept is None or ask.epoch != self.epoch or not 0 <= ask.start < ask.stop or first < 0:
            self.refused += 1
            return []
        if not self.ready:
            self.early = [*self.early[-EARLY_KEPT:], (asker, ask)]
            return []
        closed = self.closed_below[asker]
        if done > closed:
            closed = self.closed_below[asker] = done
            self._forget_answers(kept, done)
        if first in kept:
            return self._again(asker, ask, kept[first])
        if first < closed:
            self.refused += 1
            return []
        if ask.point != CURRENT and not self.source.knows(ask.point):
            return []  # a snapshot this party has not taken yet: the asker will ask again
        try:
            sends = self._masked_answer(asker, ask) if self._pairwise else self._tree_answer(asker, ask)
        except MaskReuse:  # answered so long ago that the answer was forgotten; a second one would use its mask again
            self.refused += 1
            return []
        except (IndexError, ValueError) as problem:
            raise UnexpectedEvent(f"{asker} asked for rows {ask.start} to {ask.stop}: {problem}") from problem
        kept[first] = (ask, sends)
        if len(kept) > ANSWERS_KEPT:
            del kept[next(iter(kept))]
        return list(sends)

    @staticmethod
    def _forget_answers(kept: dict[int, Any], below: int) -> None:
        """Requests mostly come in order, so the closed ones stand first."""
        while kept and (first := next(iter(kept))) < below:
            del kept[first]

    def is_news(self, asker: PartyName, ask: ShareAsked) -> bool:
        """Whether answering would take a fresh share, now."""
        known = asker in self.answers and ask.first not in self.answers[asker]
        return known and self.ready and ask.epoch == self.epoch and ask.first >= self.closed_below[asker]

    def _again(self, asker: PartyName, ask: ShareAsked, before: tuple[ShareAsked, list[Send]]) -> list[Effect]:
        old, sends = before
        if (old.start, old.stop, old.point) != (ask.start, ask.stop, ask.point):
            raise MaskReuse(
                f"{asker} repeated request {ask.first} for rows {ask.start} to {ask.stop}; it was answered for rows "
                f"{old.start} to {old.stop}. Answering would use one mask twice; refused."
            )
        if self.options.scheme == "pairwise":
            return list(sends)
        return [
            partial.sent for tree in (0, 1) if (partial := self.partials.get((asker, ask.first, tree))) and partial.sent
        ]

    def _masked_answer(self, asker: PartyName, ask: ShareAsked) -> list[Send]:
        net = self.nets.get(asker)
        if net is None:
            net = self.nets[asker] = self._net_for(asker)
        first, start, stop, point, source = ask.first, ask.start, ask.stop, ask.point, self.source
        mask, at = net.take(first, stop - start)
        words = source.words(start, stop, point, mask, at, self.scale, self.limit)
        given = ShareGiven(first, words, source.version(), self.epoch)
        # The product is half of a batch's work.
        return [Send(asker, given, (stop - start + 1) // 2, source.nonzeros(start, stop, point) // 2)]

    def _net_for(self, asker: PartyName) -> NetMask:
        others = [name for name in self.peers if name != asker]
        keys = {name: self.keys.stream_key(name, self._context(name, asker)) for name in others}
        return NetMask([keys[n] for n in others if self.me < n], [keys[n] for n in others if self.me > n])

    def _context(self, peer: PartyName, asker: PartyName) -> bytes:
        return "\0".join((self.run, str(self.epoch), *sorted((self.me, peer)), asker)).encode()

    # -- trees ---------------------------------------------------------------------------------------------------

    def _trees(self, root: PartyName) -> tuple[Tree, ...]:
        if self.options.scheme == "tree":
            return (one_tree(self.roster, root),)
        if len(self.roster) == 2:  # allowed by two_party_insecure alone; there is nobody to hide behind
            return (one_tree(self.roster, root),)
        return two_trees(self.roster, root)

    def _tree_answer(self, asker: PartyName, ask: ShareAsked) -> list[Send]:
        words = self.source.words(ask.start, ask.stop, ask.point, None, 0, self.scale, self.limit)
        parts = [words]
        if len(self._trees(asker)) == 2:
            mask = self._private_mask(asker, ask.first, ask.stop - ask.start)
            parts = [words + mask, mask]
        nonzeros = self.source.nonzeros(ask.start, ask.stop, ask.point)
        sends: list[Send] = []
        for tree, part in enumerate(parts):
            sends += self._add_partial(asker, ask.first, tree, self.me, part, self._own_version(tree), nonzeros)
        return sends

    def _private_mask(self, asker: PartyName, first: int, count: int) -> np.ndarray:
        stream = self.private_streams.get(asker)
        if stream is None:
            own = PairKeys(self._secret)
            own.agree(self.me, own.public)
            stream = self.private_streams[asker] = KeyStream(own.stream_key(self.me, self._context(self.me, asker)))
        return stream.words(first, count)

    def _own_version(self, tree: int) -> np.ndarray:
        versions = np.full(len(self.roster), -1, np.int64)
        if tree == 0:
            versions[self.roster.index(self.me)] = self.source.version()
        return versions

    def collect_partial(self, sender: PartyName, given: PartialGiven) -> tuple[list[Effect], Sum | None]:
        """A child's subtree sum: pass it on, or, at the root, add it to the request."""
        if given.epoch != self.epoch:
            return [], None
        if given.asker != self.me:
            if given.first < self.closed_below.get(given.asker, given.first + 1):
                return [], None
            expect(not self._pairwise and 0 <= given.tree < len(self._trees(given.asker)), sender, "a sum for no tree")
            expect_array(sender, "the versions of a sum", given.versions, len(self.roster), COUNTS)
            sends = self._add_partial(given.asker, given.first, given.tree, sender, given.words, given.versions, 0)
            return list(sends), None
        wanted = self.open.get(given.first)
        if wanted is None or (given.tree, sender) not in wanted.missing:
            return [], None
        expect_array(sender, "a sum for request", given.words, len(wanted.words), WORDS, given.first)
        expect_array(sender, "the versions of a sum", given.versions, len(self.roster), COUNTS)
        wanted.missing.discard((given.tree, sender))
        wanted.words += given.words if given.tree == 0 else -given.words
        for name, version in zip(self.roster, given.versions.tolist(), strict=True):
            if version >= 0:
                wanted.versions[name] = version
                self.seen[name] = max(version, self.seen.get(name, -1))
        return [], self._close(wanted)

    def _add_partial(
        self,
        asker: PartyName,
        first: int,
        tree: int,
        source: PartyName,
        words: np.ndarray,
        versions: np.ndarray,
        nonzeros: int,
    ) -> list[Send]:
        key = (asker, first, tree)
        partial = self.partials.get(key)
        if partial is None:
            self._forget_partials(asker)
            shape = self._trees(asker)[tree]
            partial = self.partials[key] = _Partial(shape[self.me], {self.me, *children(shape, self.me)})
        if source not in partial.missing:
            return []
        expect_array(source, "a sum for request", words, len(partial.words) or len(words), WORDS, first)
        partial.add(source, words, versions)
        if partial.missing:
            return []
        body = PartialGiven(asker, first, tree, partial.words, partial.versions, self.epoch)
        partial.sent = Send(partial.parent, body, (len(words) + 1) // 2, nonzeros // 2)
        return [partial.sent]

    def _forget_partials(self, asker: PartyName) -> None:
        closed = self.closed_below.get(asker, 0)
        for key in [key for key in self.partials if key[0] == asker and key[1] < closed]:
            del self.partials[key]

    # -- going on later ------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything but the private key: requests under way, answers given, and where every mask stream stands."""
        return {
            "epoch": self.epoch,
            "roster": list(self.roster),
            "public": self.keys.public,
            "next_first": self.next_first,
            "asked": self.asked,
            "counts": [self.retried, self.abandoned, self.refused],
            "stretch": self.stretch,
            "seen": dict(self.seen),
            "publics": dict(self.publics),
            "nets": {name: net.snapshot() for name, net in self.nets.items()},
            "closed_below": dict(self.closed_below),
            "open": [wanted.plain() for wanted in self.open.values()],
            "answers": {name: [_plain_answer(*kept) for kept in rows.values()] for name, rows in self.answers.items()},
            "partials": [[*key, partial.plain()] for key, partial in self.partials.items()],
            "early": [[name, list(_fields(ask))] for name, ask in self.early],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["public"] != self.keys.public:
            raise BadJob(
                f"{self.me} was restored with another private key than the one it took its snapshot with: no sum would "
                "be right. Build it with the same secret (or the same secrets_seed) as before."
            )
        self._enter_epoch(state["epoch"], tuple(state["roster"]))
        self.next_first, self.asked = state["next_first"], state["asked"]
        self.retried, self.abandoned, self.refused = state["counts"]
        self.stretch = state["stretch"]
        self.seen = dict(state["seen"])
        for name, public in state["publics"].items():
            self._agree(name, public)
        for name, net in state["nets"].items():
            self.nets[name] = self._net_for(name)
            self.nets[name].restore(net)
        self.closed_below.update(state["closed_below"])
        self.open = {wanted.first: wanted for wanted in map(Sum.from_plain, state["open"])}
        for name, rows in state["answers"].items():
            kept = [_answer_from(row) for row in rows]
            self.answers[name] = {ask.first: (ask, sends) for ask, sends in kept}
        for asker, first, tree, partial in state["partials"]:
            self.partials[asker, first, tree] = _Partial.from_plain(partial)
        self.early = [(name, ShareAsked(*fields)) for name, fields in state["early"]]


def _fields(body: Message) -> tuple[Any, ...]:
    return tuple(getattr(body, name) for name in body.__struct_fields__)


def _plain_answer(ask: ShareAsked, sends: list[Send]) -> list[Any]:
    return [list(_fields(ask)), [_plain_send(send) for send in sends]]


def _plain_send(send: Send) -> list[Any]:
    return [send.to, type(send.body).__name__, list(_fields(send.body)), send.samples, send.nonzeros]


def _send_from(plain: list[Any]) -> Send:
    to, kind, fields, samples, nonzeros = plain
    body = {"ShareGiven": ShareGiven, "PartialGiven": PartialGiven}[kind](*fields)
    return Send(to, body, samples, nonzeros)


def _answer_from(plain: list[Any]) -> tuple[ShareAsked, list[Send]]:
    ask, sends = plain
    return ShareAsked(*ask), [_send_from(send) for send in sends]


class _Partial:
    """A subtree's sum in the making, at one inner node."""

    __slots__ = ("missing", "parent", "sent", "versions", "words")

    def __init__(self, parent: PartyName, missing: set[PartyName]) -> None:
        self.parent, self.missing = parent, missing
        self.sent: Send | None = None
        self.words = np.empty(0, np.uint64)
        self.versions = np.empty(0, np.int64)

    def add(self, source: PartyName, words: np.ndarray, versions: np.ndarray) -> None:
        self.missing.discard(source)
        self.words = words + self.words if len(self.words) else words.copy()
        self.versions = np.maximum(versions, self.versions) if len(self.versions) else versions.copy()

    def plain(self) -> dict[str, Any]:
        return {
            "parent": self.parent,
            "missing": sorted(self.missing),
            "sent": _plain_send(self.sent) if self.sent else None,
            "words": self.words.copy(),
            "versions": self.versions.copy(),
        }

    @classmethod
    def from_plain(cls, state: Mapping[str, Any]) -> "_Partial":
        partial = cls(state["parent"], set(state["missing"]))
        partial.sent = _send_from(state["sent"]) if state["sent"] else None
        partial.words, partial.versions = state["words"], state["versions"]
        return partial
