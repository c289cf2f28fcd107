"""Sums through trees: the papers' Algorithms 1 and 2.

With one tree partial sums travel in the clear: insecure, for comparison only. With two trees every party masks its
share with words of its own; masked shares go up the first tree and the masks up the second, and no party sees a masked
sum and the masks of the same set of parties (`privacy/trees.py` checks the pair of trees). The masks are words of a
private key stream, bound to the question like pairwise ones, and used once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.errors import MaskReuse, UnexpectedEvent
from offbeat.party.contract import Effect, Message, PartyName, Send
from offbeat.party.expected import COUNTS, WORDS, expect, expect_array
from offbeat.party.memory import Memory
from offbeat.party.roster import Roster
from offbeat.privacy.masks import NetMask, PairKeys
from offbeat.privacy.trees import Tree, children, one_tree, two_trees

PARTIALS_MOST = 4096
"""How many sums may be in the making at one inner node: more than any protocol here has open at once."""


class PartialGiven(Message, frozen=True):
    """The sum over one subtree, for the parent.

    Reveals: with two trees, a masked sum or a sum of masks to the parent, never both for one set of parties; with
    the plain tree, the subtree's partial sum in the clear.
    """

    epoch: int
    asker: str
    kind: int
    survey: int
    first: int
    tree: int
    words: np.ndarray
    versions: np.ndarray  # by roster position, -1 where outside the subtree


MESSAGES = (PartialGiven,)
PartialKey = tuple[PartyName, int, int, int, int]
"""(asker, kind, survey, first, tree)."""


class Trees:
    """Both sides, for one party."""

    def __init__(self, roster: Roster, run: str, secret: bytes, *, two: bool) -> None:
        self.roster, self.run, self.two = roster, run, two
        self._keys = PairKeys(secret)
        self._keys.agree_with_itself(roster.me)
        self.enter_epoch()

    def enter_epoch(self) -> None:
        self.nets: dict[tuple[PartyName, int, int], NetMask] = {}
        self.partials: dict[PartialKey, _Partial] = {}

    def of(self, root: PartyName) -> tuple[Tree, ...]:
        """The trees of one asker. With two parties (allowed by two_party_insecure alone) there is nobody to hide
        behind."""
        names = self.roster.names
        return two_trees(names, root) if self.two and len(names) > 2 else (one_tree(names, root),)

    def expected(self) -> set[Any]:
        """Whose partial sums an own question waits for, as (tree, child)."""
        me = self.roster.me
        return {(tree, child) for tree, shape in enumerate(self.of(me)) for child in children(shape, me)}

    def answer(
        self, asker: PartyName, key: tuple[int, int, int], places: tuple[int, int], words: np.ndarray, version: int
    ) -> list[Effect]:
        """This party's part of a question; `places` is (how many, words in each at most)."""
        parts = [words]
        if len(self.of(asker)) == 2:
            mask = self._mask(asker, key, places, len(words))
            parts = [words + mask, mask]
        effects: list[Effect] = []
        for tree, part in enumerate(parts):
            effects += self._add((asker, *key, tree), self.roster.me, part, self._own_version(tree, version))
        return effects

    def _mask(self, asker: PartyName, key: tuple[int, int, int], places: tuple[int, int], count: int) -> np.ndarray:
        kind, survey, first = key
        stream = (asker, kind, survey)
        if stream not in self.nets:
            self.nets[stream] = self._net(*stream, places[1])
        try:
            return self.nets[stream].take(first, places[0], count)
        except MaskReuse as problem:
            raise UnexpectedEvent(f"{asker} asked question {key} again: {problem}") from problem

    def _net(self, asker: PartyName, kind: int, survey: int, stride: int) -> NetMask:
        context = repr((self.run, self.roster.epoch, *self.roster.names, asker, kind, survey, stride)).encode()
        return NetMask([self._keys.stream_key(self.roster.me, context)], [], stride)

    def _own_version(self, tree: int, version: int) -> np.ndarray:
        versions = np.full(len(self.roster.names), -1, np.int64)
        if tree == 0:
            versions[self.roster.names.index(self.roster.me)] = version
        return versions

    def pass_on(self, sender: PartyName, given: PartialGiven) -> list[Effect]:
        """A child's subtree sum, on its way to the asker."""
        known = given.asker in self.roster.labelled and 0 <= given.tree < len(self.of(given.asker))
        expect(known, sender, "a sum for no tree")
        self.check(sender, given)
        key = (given.asker, given.kind, given.survey, given.first, given.tree)
        return self._add(key, sender, given.words, given.versions)

    def check(self, sender: PartyName, given: PartialGiven) -> None:
        expect(given.words.dtype == WORDS and given.words.ndim == 1, sender, "a sum that is no row of words")
        expect_array(sender, "the versions of a sum", given.versions, len(self.roster.names), COUNTS)

    def _add(self, key: PartialKey, source: PartyName, words: np.ndarray, versions: np.ndarray) -> list[Effect]:
        partial = self.partials.get(key)
        if partial is None:
            expect(len(self.partials) < PARTIALS_MOST, source, "sums for more questions than can be open")
            shape = self.of(key[0])[key[4]]
            me = self.roster.me
            partial = self.partials[key] = _Partial(shape[me], {me, *children(shape, me)})
        expect(source in partial.missing, source, f"a second sum for question {key}")
        expect_array(source, "a sum for question", words, len(partial.words) or len(words), WORDS, key[3])
        partial.add(source, words, versions)
        if partial.missing:
            return []
        del self.partials[key]
        return [Send(partial.parent, PartialGiven(self.roster.epoch, *key, partial.words, partial.versions))]

    def snapshot(self) -> dict[str, Any]:
        return {
            "nets": [[*stream, net.stride, net.snapshot()] for stream, net in self.nets.items()],
            "partials": [[list(key), partial.snapshot()] for key, partial in self.partials.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.enter_epoch()
        for asker, kind, survey, stride, used in state["nets"]:
            net = self.nets[asker, kind, survey] = self._net(asker, kind, survey, stride)
            net.restore(used)
        for key, kept in state["partials"]:
            self.partials[tuple(key)] = _Partial(kept["parent"], set())
            self.partials[tuple(key)].restore(kept)


class _Partial(Memory):
    """A subtree's sum in the making, at one inner node."""

    KEPT = ("parent", "missing", "words", "versions")

    def __init__(self, parent: PartyName, missing: set[PartyName]) -> None:
        self.parent, self.missing = parent, missing
        self.words, self.versions = np.empty(0, np.uint64), np.empty(0, np.int64)

    def add(self, source: PartyName, words: np.ndarray, versions: np.ndarray) -> None:
        self.missing.discard(source)
        self.words = words + self.words if len(self.words) else words.copy()
        self.versions = np.maximum(versions, self.versions) if len(self.versions) else versions.copy()
