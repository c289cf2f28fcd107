"""A secure sum by hand: three parties, no runtime, every message in your own hands.

    python examples/secure_sum_by_hand.py

Ana learns the total of Bo's and Cy's shares and nothing finer. What Bo sends looks like noise, because it is: a uniform
word modulo 2^64 that Cy's word takes away again.
"""

import secrets

import numpy as np

from offbeat.learning.blocks import make_block
from offbeat.learning.penalties import L2
from offbeat.party.contract import Broadcast, Send
from offbeat.party.masked_sum import CURRENT, KeyOffered, MaskedSum, ShareGiven, SumOptions
from offbeat.party.shares import BlockShares, decode

ROSTER = ("ana", "bo", "cy")
ROWS = np.array([[1.0], [2.0], [3.0]])  # everybody's one column, for simplicity
WEIGHTS = {"ana": 10.0, "bo": 0.5, "cy": -0.25}


def party(name: str) -> MaskedSum:
    block = make_block(ROWS, penalty=L2, strength=0.0)
    block.set_weights(np.array([WEIGHTS[name]]))
    source = BlockShares(block)
    return MaskedSum(
        me=name, roster=ROSTER, run="by hand", secret=secrets.token_bytes(32), options=SumOptions(), source=source
    )


def main() -> None:
    parties = {name: party(name) for name in ROSTER}
    for name, sums in parties.items():  # each pair agrees on a secret; the public keys may be seen by all
        for peer in sums.peers:
            parties[peer].take_key(name, KeyOffered(sums.keys.public, False))

    ana = parties["ana"]
    (question,) = ana.ask(0, 3, CURRENT, version=0)
    assert isinstance(question, Broadcast)
    for name in question.to:
        (answer,) = parties[name].answer("ana", question.body)
        assert isinstance(answer, Send) and isinstance(answer.body, ShareGiven)
        print(f"{name}'s share is {WEIGHTS[name] * ROWS[:, 0]}, and Ana sees {decode(answer.body.words, ana.scale)}")
        done = ana.collect(name, answer.body)
    assert done is not None
    total = decode(done.words, ana.scale)
    print(f"the total is {total}: exact, and all that Ana learns")
    np.testing.assert_array_equal(total, 0.25 * ROWS[:, 0])

    (again,) = parties["bo"].answer("ana", question.body)
    assert isinstance(again, Send) and again.body is not None
    print("asked again, Bo sends the same bytes from memory: no mask hides two different values")


if __name__ == "__main__":
    main()
