"""Attacks on the matching of ids by parties that deviate: a leader that counts, a member that answers as it likes.

The population is known to everybody, and so is the salt: what is secret is who has whom.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from offbeat.errors import PeerFailed
from offbeat.orgs import align_psi
from offbeat.orgs.align_psi import Aligner, Answered, Blinded, Joined, ReadyToAlign, marks_of
from offbeat.orgs.blinding import multiplied, points_of
from offbeat.orgs.tokens import id_column, tokens_of
from offbeat.orgs.x25519 import POINT_BYTES
from offbeat.party.contract import Broadcast, Compute, Computed, Effect, Received, Send, Started

SALT = b"known to every party of the job."
KEY = b"the key of whoever deviates.".ljust(32)
PEOPLE = [f"07{i:06d}" for i in range(1200)]


def aligner(name: str, leader: str, ids: Sequence[str], sizes: dict[str, int]) -> Aligner:
    column = id_column(np.array(ids, dtype=object), SALT)
    return Aligner(name, tuple(sizes), leader, column, sizes=sizes, secret=name.encode().ljust(32, b"."))


def pieces(points: bytes, size: int = POINT_BYTES) -> list[bytes]:
    return [points[at : at + size] for at in range(0, len(points), size)]


def done(party: Aligner, effects: Sequence[Effect]) -> list[Effect]:
    """What leaves, once all work is done."""
    left: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Compute):
            assert effect.job is not None
            left += done(party, party.handle(Computed(effect.ticket, effect.job())))
        else:
            left.append(effect)
    return left


# -- a leader that counts ---------------------------------------------------------------------------------------------


def deduced(known: dict[bytes, int], people: Sequence[bytes]) -> dict[bytes, bool]:
    """If points came in the order of tokens: between two known ids lie none of these people, or all of them."""
    found: dict[bytes, bool] = {}
    for low, high in pairwise(sorted(known)):
        between = [token for token in people if low < token < high]
        members = known[high] - known[low] - 1
        if members in (0, len(between)):
            found |= dict.fromkeys(between, members > 0)
    return found


def test_the_order_of_points_says_nothing_of_people_the_leader_did_not_bring() -> None:
    """Before: of 93 of the 1,050 people whom the leader did not bring, it knew whether the member has them."""
    rng = np.random.default_rng(1)
    table = [PEOPLE[i] for i in rng.choice(len(PEOPLE), 900, replace=False)]
    brought = [PEOPLE[i] for i in rng.choice(len(PEOPLE), 150, replace=False)]
    member = aligner("m", "evil", table, {"evil": 150, "m": 900})
    (answer,) = done(member, member.handle(Received("evil", Blinded(0, asked_for(brought)))))
    assert isinstance(answer, Send) and isinstance(answer.body, Answered)
    place = {mark: at for at, mark in enumerate(marks_of(multiplied(KEY, answer.body.own, "m"), "m"))}
    marks = pieces(answer.body.marks, 16)
    known = {token: place[mark] for token, mark in zip(tokens_of(brought, SALT), marks, strict=True) if mark in place}
    assert len(known) == len(set(brought) & set(table))  # the matching itself is as it should be
    truth = dict(zip(tokens_of(PEOPLE, SALT), (person in set(table) for person in PEOPLE), strict=True))
    guesses = deduced(known, [token for token in truth if token not in set(tokens_of(brought, SALT))])
    assert len(guesses) < 30, (len(guesses), sum(truth[token] == guess for token, guess in guesses.items()))


def asked_for(ids: Sequence[str]) -> bytes:
    return multiplied(KEY, points_of(tokens_of(ids, SALT)), "evil")


# -- a member that answers as it likes --------------------------------------------------------------------------------

Marks = Callable[[list[bytes]], list[bytes]]


def matched(theirs: Sequence[str], chosen: Marks) -> list[Any]:
    """What 'evil' is told at the end: it has shown these ids, and answers the leader's 300 by marks of its choice."""
    sizes = {"bank": 300, "evil": len(theirs)}
    leader = aligner("bank", "bank", PEOPLE[:300], sizes)
    leader.handle(Started())
    (asked,) = done(leader, leader.handle(Received("evil", ReadyToAlign(1)))[1:])
    assert isinstance(asked, Send) and isinstance(asked.body, Blinded)
    blinded = marks_of(multiplied(KEY, asked.body.points, "bank"), "evil")
    answer = Answered(0, b"".join(chosen(blinded)), asked_for(theirs))
    effects = done(leader, leader.handle(Received("evil", answer)))
    return [effect.body for effect in effects if isinstance(effect, Send | Broadcast)]


def test_one_id_of_a_member_does_not_stand_for_all_of_the_leaders() -> None:
    """Before: a member that brought 20 ids was given the tokens of all 300, and with the salt their ids."""
    joined, *_ = matched(PEOPLE[:20], lambda honest: honest)
    assert len(joined.places) == 20 * 8
    with pytest.raises(PeerFailed, match="'evil' says of two ids in the alignment that they are the same one"):
        for guess in range(300):  # it does not know which of the leader's points is of an id that it has
            matched(PEOPLE[:20], lambda honest, guess=guess: [honest[guess]] * 300)  # type: ignore[misc]


def test_a_member_that_exchanges_its_marks_learns_no_id_that_it_lacks() -> None:
    """Before: the tokens of as many of the leader's rows as it had ids, others than its own."""
    rng = np.random.default_rng(2)
    told = matched(PEOPLE[:20], lambda honest: [honest[i] for i in rng.permutation(300)])
    joined = told[0]
    assert sorted(np.frombuffer(joined.places, "<u8").tolist()) == list(range(20))  # of the points that it has shown
    heard = b"".join(getattr(body, name) for body in told for name in ("places", "promise") if hasattr(body, name))
    assert not any(token in heard for token in tokens_of(PEOPLE, SALT))


# -- a leader between two members --------------------------------------------------------------------------------------


def test_a_leader_does_not_learn_whom_two_members_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a leader that passed each member's points of one bucket to the other, as its own of another bucket,
    learned which of them both have, having brought no such id: all of them. It could join those rows, too."""
    monkeypatch.setattr(align_psi, "BUCKET_IDS", 80)
    sizes = {"evil": 150, "m": 120, "n": 120}
    tables = {"m": PEOPLE[:120], "n": PEOPLE[40:160]}
    members = {name: aligner(name, "evil", ids, sizes) for name, ids in tables.items()}

    def answered(name: str, bucket: int, points: bytes) -> Answered:
        (answer,) = done(members[name], members[name].handle(Received("evil", Blinded(bucket, points))))
        assert isinstance(answer, Send) and isinstance(answer.body, Answered)
        return answer.body

    nobody = asked_for(PEOPLE[1000:1001])
    points = {name: answered(name, 0, nobody).own for name in members}
    assert len(points["m"]) > 40 * POINT_BYTES and len(points["n"]) > 40 * POINT_BYTES
    marks = {name: set(pieces(answered(name, 1, points[other]).marks, 16)) for name, other in (("m", "n"), ("n", "m"))}
    assert len(marks["m"]) > 40 and not marks["m"] & marks["n"]


def test_parts_of_a_joined_list_are_all_of_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: the third of three parts, then the first of two, ended with an error that nobody had foreseen."""
    monkeypatch.setattr(align_psi, "JOINED_ROWS", 10)
    member = aligner("m", "evil", PEOPLE[:100], {"evil": 100, "m": 100})
    assert member.handle(Received("evil", Joined(2, 3, b""))) == []
    with pytest.raises(PeerFailed, match="'evil' joins ids in other parts than it said"):
        member.handle(Received("evil", Joined(0, 2, b"")))
