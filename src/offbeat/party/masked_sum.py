"""A sub-machine: the sum of every party's share, known to the asker alone.

The asker puts a *question*; every other party answers with its share as fixed-point words modulo 2^64, hidden as the
scheme says; the asker adds what arrives, in any order, and owns the exact sum.

    pairwise   one hop; masks from pair secrets cancel in the total; the default
    two-tree   the papers' Algorithm 2: masked shares up one tree, masks up another (`two_tree.py`)
    tree       the papers' Algorithm 1: partial sums in the clear; insecure, for comparison only

There is a closed list of kinds of question, and none leaves the asker a choice: the rows of the k-th product follow
from the run's schedule, those of a survey are its rows in order, probes are drawn from everybody's keys. The masks are
bound to run, epoch, roster, asker, kind and number (`privacy/masks.py`), and to all that the asker has told so far that
moves a block (`told.py`), so two parties that were asked, or told, different things give words that do not cancel. A
question is answered once; the same one again is refused, since it would use its masks again. Only a party whose role
includes a kind may ask it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np

from offbeat.errors import BadJob, MaskReuse, OutOfRange, UnexpectedEvent
from offbeat.learning.blocks import fixed_point
from offbeat.party.contract import Broadcast, Effect, Message, PartyName, Send
from offbeat.party.expected import WORDS, expect, expect_array
from offbeat.party.memory import Memory, plain
from offbeat.party.roster import Roster
from offbeat.party.told import NOTHING, Key, Told
from offbeat.party.two_tree import PartialGiven as PartialGiven
from offbeat.party.two_tree import Trees
from offbeat.privacy.masks import CHUNK_WORDS, FRACTION_BITS, NetMask, PairKeys, pair_of, range_limit, scale_of

SCHEMES = ("pairwise", "two-tree", "tree")

PRODUCTS, SURVEY, POINTS, CERTIFICATE, PROBES = range(5)
"""What is summed: the products of one block of rows with the current model; of rows with a survey's frozen point; the
inner products of that point with earlier ones; what the certificate needs; how steep the problem is."""
KINDS = ("products", "survey", "points", "certificate", "probes")
EPOCH_STRIDE = 2**32
"""Surveys of roster epoch e are numbered from e * EPOCH_STRIDE + 1 on."""
SURVEY_PLACES = 2**32
"""How many places of a mask stream belong to one survey of an epoch: more than any table has rows."""


class KeyOffered(Message, frozen=True):
    """A public key for pairwise masks.

    Reveals: a public key, to every party; nothing about the data.
    """

    public: bytes


ASK, UNASKED, AFTER_SURVEY = range(3)
"""How the share of the next block of rows comes: when asked for; by itself, after the giver's step; or, as the chair
says, by itself after a survey, before which everybody rests."""


class ShareAsked(Message, frozen=True):
    """A question: of which kind, and which one of that kind.

    Reveals: how far the asker has come and how often its block has changed, to every party.
    """

    epoch: int
    kind: int
    survey: int  # 0 where the kind belongs to no survey
    first: int  # the block's number, or the first row
    count: int  # of rows or numbers; 0 where the block's number says it
    version: int  # of the asker's block


class ShareGiven(Message, frozen=True):
    """One party's masked share.

    Reveals: uniform noise to the asker until all shares are added; then the total of the others' shares. With two
    parties, that total is the other's share itself. How often the giver's block has changed, how many seconds it needs
    for a row, and whether its next share comes unasked, to the asker.

    With product_epsilon: uniform noise to the asker until all shares are added; then a noisy total of the others'
    bounded shares, which is differentially private for any one row at one party, over the whole run.
    """

    epoch: int
    kind: int
    survey: int
    first: int
    words: np.ndarray
    version: int
    seconds: float
    then: int = ASK


MESSAGES = (KeyOffered, ShareAsked, ShareGiven, PartialGiven)


@dataclass(frozen=True)
class SumOptions:
    """How sums are protected."""

    scheme: str = "pairwise"
    fraction_bits: int = FRACTION_BITS
    two_party_insecure: bool = False
    parties_least: int = 2  # this party answers no sum of fewer, whatever the job says
    in_step: bool = False
    """Every share is of a block that has done all that the asker has told, and nothing more of it: nobody is late,
    answers at once or drops derivatives. Else totals tell apart who has moved, and who has not yet."""

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise BadJob(f"secure_sum must be one of {', '.join(SCHEMES)}; got {self.scheme!r}.")

    def check_roster(self, count: int) -> None:
        if count < 3 and not self.two_party_insecure:
            raise BadJob(
                "Two parties cannot hide a share from each other: the asker subtracts its own share from the total "
                "and has the other's, whatever the scheme. Add a third party, or set two_party_insecure = true to "
                "accept that each learns the other's products."
            )
        if count < self.parties_least:
            raise BadJob(f"This party hides its share among at least {self.parties_least} parties; {count} take part.")


Encode = Callable[[np.ndarray | None], np.ndarray]
"""mask -> fixed-point words with the mask added."""


@dataclass(slots=True)
class Sum:
    """One question of ours: what has come."""

    kind: int
    survey: int
    first: int
    version: int  # of our block when asked
    words: np.ndarray
    missing: set[Any]
    versions: dict[PartyName, int] = field(default_factory=dict)

    def snapshot(self) -> dict[str, Any]:
        return {name: plain(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_plain(cls, state: Mapping[str, Any]) -> "Sum":
        missing = {tuple(item) if isinstance(item, list) else item for item in state["missing"]}
        return cls(**{**state, "missing": missing})


class MaskedSum(Memory):
    """Both sides of the secure sum for one party."""

    KEPT = ("stride", "refused", "over", "seen", "seconds", "own_seconds", "timed")

    def __init__(self, *, roster: Roster, run: str, secret: bytes, options: SumOptions, outputs: int = 1) -> None:
        options.check_roster(len(roster.names))
        self.roster, self.run, self.options, self.outputs = roster, run, options, outputs
        self.scale = scale_of(options.fraction_bits)
        self.keys = PairKeys(secret)
        self.trees = (
            None if options.scheme == "pairwise" else Trees(roster, run, secret, two=options.scheme == "two-tree")
        )
        self.binds_products = True  # not where products come unasked: each giver has then heard as much as it has
        self.stride = 1  # how many words the products of a block take at most
        self.own_seconds, self.timed = 0.0, 0  # what a row costs here, and how often that was measured
        self.seen: dict[PartyName, int] = {}  # newest block version heard of, by party
        self.seconds: dict[PartyName, float] = {}  # what a row costs, by party
        self.refused = 0
        self.over = False  # a share did not fit into fixed point: the run ends, and nothing more is answered
        self.enter_epoch()

    def enter_epoch(self) -> None:
        """There is a new roster: new mask streams; every open question is void."""
        self.options.check_roster(len(self.roster.names))
        self.limit = range_limit(len(self.roster.names), self.options.fraction_bits)
        self.open: dict[Key, Sum] = {}
        self.nets: dict[tuple[PartyName, int], NetMask] = {}
        self.told = Told()
        if self.trees is not None:
            self.trees.enter_epoch()

    # -- keys ----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether every peer's key is known."""
        return self.options.scheme != "pairwise" or all(self.keys.knows(peer) for peer in self.roster.peers)

    def offer_key(self) -> list[Effect]:
        return [] if self.options.scheme != "pairwise" else [Broadcast(self.roster.peers, KeyOffered(self.keys.public))]

    def take_key(self, sender: PartyName, offer: KeyOffered) -> None:
        if self.keys.knows(sender):
            expect(self.keys.publics[sender] == offer.public, sender, "another key than before in the same run")
            return
        try:
            self.keys.agree(sender, offer.public)
        except ValueError as problem:
            raise UnexpectedEvent(
                f"{sender} offered {len(offer.public)} bytes that are no usable key: {problem}"
            ) from problem

    def joint_coin(self) -> bytes:
        """Bytes that all parties know and that none of them chose: a digest of all public keys."""
        publics = {self.roster.me: self.keys.public, **self.keys.publics}
        names = sorted(publics) if self.options.scheme == "pairwise" else sorted(self.roster.everybody)
        parts = [f"{self.run}\0{name}\0".encode() + publics.get(name, b"") for name in names]
        return sha256(b"offbeat coin\0" + b"".join(parts)).digest()

    # -- asking --------------------------------------------------------------------------------------------------

    def ask(self, kind: int, survey: int, first: int, count: int, words: int, version: int) -> list[Effect]:
        """Put a question to everybody whose answer has so many words."""
        self.expect(kind, survey, first, words, version)
        return self.put(self.roster.peers, kind, survey, first, count, version)

    def put(
        self, peers: tuple[PartyName, ...], kind: int, survey: int, first: int, count: int, version: int
    ) -> list[Effect]:
        """Put a question that is open to those who do not answer it unasked."""
        if not peers:
            return []
        return [Broadcast(peers, ShareAsked(self.roster.epoch, kind, survey, first, count, version))]

    def expect(self, kind: int, survey: int, first: int, words: int, version: int) -> None:
        """Open a question that the others know of already, from another message or from the order of rounds."""
        empty = np.zeros(words, np.uint64)
        missing = set(self.roster.peers) if self.trees is None else self.trees.expected()
        self.open[kind, survey, first] = Sum(kind, survey, first, version, empty, missing)

    def collect(self, sender: PartyName, given: ShareGiven) -> Sum | None:
        """Add one share; return the sum when it is complete."""
        key = (given.kind, given.survey, given.first)
        wanted = self.open.get(key)
        if wanted is None or sender not in wanted.missing:
            raise UnexpectedEvent(f"{sender} answered a question that was not asked, or answered it twice: {key}.")
        words = given.words
        if words.shape != wanted.words.shape or words.dtype != WORDS:
            expect_array(sender, "its answer to question", words, len(wanted.words), WORDS, given.first)
        self.seen[sender] = wanted.versions[sender] = given.version
        self.seconds[sender] = given.seconds
        wanted.missing.discard(sender)
        wanted.words += words
        if wanted.missing:
            return None
        del self.open[key]
        return wanted

    def collect_partial(self, sender: PartyName, given: PartialGiven) -> tuple[list[Effect], Sum | None]:
        """A child's subtree sum: pass it on, or, at the root, add it to the question."""
        assert self.trees is not None
        if given.asker != self.roster.me:
            return self.trees.pass_on(sender, given), None
        key = (given.kind, given.survey, given.first)
        wanted = self.open.get(key)
        if wanted is None or (given.tree, sender) not in wanted.missing:
            raise UnexpectedEvent(f"{sender} answered a question that was not asked, or answered it twice: {key}.")
        self.trees.check(sender, given)
        expect_array(sender, "a sum for question", given.words, len(wanted.words), WORDS, given.first)
        wanted.missing.discard((given.tree, sender))
        wanted.words += given.words if given.tree == 0 else -given.words
        for name, version in zip(self.roster.names, given.versions.tolist(), strict=True):
            if version >= 0:
                self.seen[name] = wanted.versions[name] = version
        if wanted.missing:
            return [], None
        del self.open[key]
        return [], wanted

    def lag(self, own_versions: int, versions: Mapping[PartyName, int]) -> int:
        """How many versions behind the oldest part of a product is, as far as this party has heard: the steps of its
        own block since it asked, or the steps of a peer's block since its share, but for one: in rounds, too, all take
        one step from the same products."""
        behind = own_versions
        for name, version in versions.items():
            newest = self.seen.get(name, version) - 1
            if newest - version > behind:
                behind = newest - version
        return behind

    # -- answering -----------------------------------------------------------------------------------------------

    def may_ask(self, asker: PartyName, kind: int) -> bool:
        return asker in self.roster.labelled if kind == PRODUCTS else asker == self.roster.chair

    def mask(self, asker: PartyName, kind: int, survey: int, first: int, places: int, count: int) -> np.ndarray:
        """The words that hide this answer. A survey's places follow those of the survey before it in one stream."""
        stream = (asker, kind)
        net = self.nets.get(stream)
        if net is None:
            net = self.nets[stream] = self._net_for(*stream)
        try:
            told = self.told.when_asked(asker, (kind, survey, first)) if self.binds(kind) else NOTHING
            return net.take(survey % EPOCH_STRIDE * SURVEY_PLACES + first, places, count, told)
        except MaskReuse as problem:
            self.refused += 1
            raise UnexpectedEvent(f"{asker} asked for {KINDS[kind]} {first} again: {problem}") from problem

    def binds(self, kind: int) -> bool:
        """Whether answers of this kind are bound to what the asker had told when it asked."""
        return self.trees is None and (kind != PRODUCTS or self.binds_products)

    def _net_for(self, asker: PartyName, kind: int) -> NetMask:
        me = self.roster.me
        others = [name for name in self.roster.peers if name != asker]
        context = self._context(asker, kind)
        keys = {name: self.keys.stream_key(name, context + pair_of(me, name)) for name in others}
        plus, minus = [keys[n] for n in others if me < n], [keys[n] for n in others if me > n]
        return NetMask(plus, minus, self._stride_of(kind), CHUNK_WORDS if kind == PRODUCTS else 0)

    def _stride_of(self, kind: int) -> int:
        """How many words a place of this kind takes at most: a place is a block of rows, a row, or a number."""
        return self.stride if kind == PRODUCTS else self.outputs if kind == SURVEY else 1

    def _context(self, asker: PartyName, kind: int) -> bytes:
        """What masks are for."""
        roster, stride = self.roster, self._stride_of(kind)
        return repr((self.run, roster.epoch, *roster.names, asker, KINDS[kind], stride)).encode()

    def forget_surveys_below(self, survey: int) -> None:
        """Nobody answers a question about one of them any more."""
        nets = self.trees.nets if self.trees is not None else {}
        for stream in [stream for stream in nets if 0 < stream[2] < survey]:
            del nets[stream]

    def answer(
        self,
        asker: PartyName,
        key: Key,
        places: int,
        encode: Encode,
        count: int,
        version: int,
        nonzeros: int = 0,
        then: int = ASK,
    ) -> list[Effect]:
        """This party's share for one question: `encode(mask)` gives its `count` words. `nonzeros`: what a cost
        model may charge the listener for, beside the words."""
        if self.over:
            return []
        kind, survey, first = key
        mask = self.mask(asker, kind, survey, first, places, count) if self.trees is None else None
        try:
            words = encode(mask)
        except OutOfRange:
            self.over = True
            raise
        if self.trees is not None:
            return self.trees.answer(asker, key, (places, self._stride_of(kind)), words, version)
        body = ShareGiven(self.roster.epoch, kind, survey, first, words, version, self.own_seconds, then)
        return [Send(asker, body, count if nonzeros else 0, nonzeros)]

    def answer_scalars(self, asker: PartyName, ask: ShareAsked, values: np.ndarray, version: int) -> list[Effect]:
        """The answer to a question for a vector of numbers."""
        what, count = f"A number for the {KINDS[ask.kind]}", len(values)
        encode = partial(fixed_point, values, scale=self.scale, limit=self.limit, what=what)
        return self.answer(asker, (ask.kind, ask.survey, ask.first), count, encode, count, version)

    # -- going on later ------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything but the private key: questions under way, and where every mask stream stands."""
        return {
            "public": self.keys.public,
            "publics": dict(self.keys.publics),
            **super().snapshot(),
            "nets": [[*stream, net.snapshot()] for stream, net in self.nets.items()],
            "open": [wanted.snapshot() for wanted in self.open.values()],
            "trees": plain(self.trees),
            "told": plain(self.told),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["public"] != self.keys.public:
            raise BadJob(
                f"{self.roster.me} was restored with another private key than the one it took its snapshot with: no "
                "sum would be right. Build it with the same secret (or the same secrets_seed) as before."
            )
        self.enter_epoch()
        for name, public in state["publics"].items():
            self.keys.agree(name, public)
        super().restore(state)
        self.told.restore(state["told"])
        for asker, kind, net in state["nets"]:
            self.nets[asker, kind] = self._net_for(asker, kind)
            self.nets[asker, kind].restore(net)
        opened = [Sum.from_plain(kept) for kept in state["open"]]
        self.open = {(wanted.kind, wanted.survey, wanted.first): wanted for wanted in opened}
        if self.trees is not None:
            self.trees.restore(state["trees"])
