"""A standing scoring session: keys are agreed once, and from then on a question is one round trip.

    asker -> each   OpenScoring    each answers with a public key for this session, signed with its certificate's key
    asker -> each   ScoringKeys    all signed keys, which each checks against its roster
    asker -> each   ScoreAsked     a number and the rows' tokens; each answers with its words of the sum, masked

The sum is that of `predict.py`. The asker carries the keys of the others to each other: the signatures keep it from
putting keys of its own in their place. Masks belong to one session, one question number and the tokens in their order.
A number is answered once. So parties that were asked different things give words that do not cancel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Floats
from offbeat.errors import MaskReuse, Refused
from offbeat.orgs.predict import words_of
from offbeat.party.masked_sum import SumOptions
from offbeat.privacy.masks import NetMask, Once, PairKeys, pair_of, range_limit, scale_of
from offbeat.runtime.grpc.identity import Identity, Member

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session is for; all parties have the same."""

    run: str
    service: str
    asker: str
    parties: tuple[str, ...]
    sums: SumOptions
    told: bytes = b""  # what the model's training was told: it is in the masks, and nobody says it

    def signed_by(self, name: str, public: bytes) -> bytes:
        """What a party signs: this key is its own, for this session and no other."""
        parts = ("offbeat scoring key", self.run, self.service, self.asker, *sorted(self.parties), name, public.hex())
        return "\n".join(parts).encode()


class Lane:
    """The session at one of the parties that are asked. `secret` is fresh, and forgotten with the session."""

    def __init__(self, terms: Terms, me: str, secret: bytes) -> None:
        terms.sums.check_roster(len(terms.parties))
        self.terms, self.me = terms, me
        self._secret, self._keys, self._used = secret, PairKeys(secret), Once()
        self._others = tuple(name for name in terms.parties if name not in (me, terms.asker))
        self._scale = scale_of(terms.sums.fraction_bits)
        self._limit = range_limit(len(terms.parties), terms.sums.fraction_bits)

    def offer(self, identity: Identity) -> tuple[bytes, bytes]:
        """(public key, signature)."""
        return self._keys.public, identity.sign(self.terms.signed_by(self.me, self._keys.public))

    def take(self, keys: Mapping[str, tuple[bytes, bytes]], members: Mapping[str, Member]) -> None:
        """The others' keys, each under its owner's signature."""
        for name in self._others:
            public, signature = keys.get(name, (b"", b""))
            if not members[name].signed(self.terms.signed_by(name, public), signature):
                raise Refused(f"'{self.me}' was given a key of '{name}' for scoring that '{name}' did not sign.")
            if self._keys.knows(name) and self._keys.publics[name] != public:
                raise Refused(f"'{self.me}' was given two keys of '{name}' for one scoring session.")
            try:
                self._keys.agree(name, public)
            except ValueError as problem:
                raise Refused(f"'{name}' signed {len(public)} bytes that are no key.") from problem

    def claim(self, number: int) -> None:
        """A question's number is used up before its rows are looked at."""
        if not all(self._keys.knows(name) for name in self._others):
            raise Refused(f"'{self.me}' has not been given the others' keys for scoring yet.")
        try:
            self._used.claim(number, number + 1)
        except MaskReuse:
            raise Refused(f"'{self.me}' has answered question {number} of this scoring session before.") from None

    def words(self, number: int, tokens: bytes, values: Floats, known: NDArray[np.bool_]) -> Words:
        """This party's words for a claimed question, under its masks."""
        context = self._context(number, tokens)
        lacking = sha256(b"rows that are lacking\0" + self._secret + context).digest()[:16]
        words = words_of(values, known, lacking, scale=self._scale, limit=self._limit)
        keys = {name: self._keys.stream_key(name, context + pair_of(self.me, name)) for name in self._others}
        plus = [key for name, key in keys.items() if self.me < name]
        minus = [key for name, key in keys.items() if self.me > name]
        masked: Words = words + NetMask(plus, minus, len(words), len(words)).take(0, 1, len(words))
        return masked

    def _context(self, number: int, tokens: bytes) -> bytes:
        terms = self.terms
        parts = ("scoring", terms.run, terms.service, terms.asker, *sorted(terms.parties), number)
        return repr((*parts, terms.told, sha256(tokens).hexdigest())).encode()
