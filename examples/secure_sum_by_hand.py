"""A secure sum by hand: three parties, no runtime, every message in your own hands.

    python examples/secure_sum_by_hand.py

Ana learns the total of Bo's and Cy's shares and nothing finer. What Bo sends looks like noise, because it is: a uniform
word modulo 2^64 that Cy's word takes away again.
"""

import secrets

import numpy as np

from offbeat.errors import UnexpectedEvent
from offbeat.learning.blocks import fixed_point
from offbeat.party.contract import Effect, Send
from offbeat.party.masked_sum import PRODUCTS, KeyOffered, MaskedSum, ShareGiven, SumOptions
from offbeat.party.roster import Roster
from offbeat.party.scalars import decode

NAMES = ("ana", "bo", "cy")
SHARES = {"bo": np.array([0.5, 1.0, 1.5]), "cy": np.array([-0.25, -0.5, -0.75])}
QUESTION = (PRODUCTS, 0, 0)  # which kind of sum, of which survey (none), which one of that kind


def party(name: str) -> MaskedSum:
    sums = MaskedSum(
        roster=Roster(name, NAMES, ("ana",)), run="by hand", secret=secrets.token_bytes(32), options=SumOptions()
    )
    sums.stride = 3  # the words of one answer
    return sums


def answer(sums: MaskedSum, share: np.ndarray) -> list[Effect]:
    def encode(mask: np.ndarray | None) -> np.ndarray:
        return fixed_point(share, mask, sums.scale, sums.limit, "A share")

    return sums.answer("ana", QUESTION, 1, encode, len(share), version=0)


def main() -> None:
    parties = {name: party(name) for name in NAMES}
    for name, sums in parties.items():  # each pair agrees on a secret; the public keys may be seen by all
        for peer in sums.roster.peers:
            parties[peer].take_key(name, KeyOffered(sums.keys.public))

    ana = parties["ana"]
    ana.expect(*QUESTION, words=3, version=0)
    for name, share in SHARES.items():
        (sent,) = answer(parties[name], share)
        assert isinstance(sent, Send) and isinstance(sent.body, ShareGiven)
        print(f"{name}'s share is {share}, and Ana sees {decode(sent.body.words, ana.scale)}")
        done = ana.collect(name, sent.body)
    assert done is not None
    total = decode(done.words, ana.scale)
    print(f"the total is {total}: exact, and all that Ana learns")
    np.testing.assert_array_equal(total, SHARES["bo"] + SHARES["cy"])

    try:
        answer(parties["bo"], SHARES["bo"])
    except UnexpectedEvent as refusal:
        print(f"asked again, Bo refuses: {refusal}")


if __name__ == "__main__":
    main()
