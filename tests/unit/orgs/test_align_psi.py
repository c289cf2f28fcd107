"""Alignment by private set intersection, against a plain join of sets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadData, PeerFailed
from offbeat.orgs.align_psi import (
    TOO_FEW,
    Aligner,
    Answered,
    Blinded,
    Joined,
    ReadyToAlign,
    Seen,
    TooFew,
    Tossed,
    promise_of,
)
from offbeat.orgs.blinding import jacobi_symbols, multiplied, points_of
from offbeat.orgs.tokens import bucket_bounds, digest_of, id_column, tokens_of
from offbeat.orgs.x25519 import POINT_BYTES
from offbeat.party.contract import Broadcast, Computed, Received, Send, Started
from offbeat.runtime.simulator import Simulator

SALT = b"salt of the job"


def aligners(
    ids: dict[str, list[object]],
    leader: str = "bank",
    imported: dict[str, list[object]] | None = None,
    least: dict[str, int] | None = None,
) -> list[Aligner]:
    names = tuple(ids)
    columns = {name: id_column(np.array(own, dtype=object), SALT) for name, own in ids.items()}
    return [
        Aligner(
            name,
            names,
            leader,
            column,
            sizes={other: len(columns[other].tokens) for other in names},
            secret=name.encode().ljust(32, b"."),
            least=(least or {}).get(name, 0),
            imported=tokens_of(imported[name], SALT) if imported else None,
        )
        for name, column in columns.items()
    ]


def joined_ids(party: Aligner, ids: list[object]) -> list[object]:
    return [ids[row] for row in party.rows()]


def test_three_tables_in_different_orders_meet_row_by_row() -> None:
    ids: dict[str, list[object]] = {
        "bank": ["c3", "c1", "c9", "c4", "c7"],
        "shop": ["c4", "c8", "c3", "c7"],
        "telecom": ["c7", "c2", "c4", "c3", "c1"],
    }
    parties = aligners(ids)
    outcome = Simulator(seed=1).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"aligned"}
    orders = [joined_ids(party, ids[party.name]) for party in parties]
    assert orders[0] == orders[1] == orders[2]
    assert set(orders[0]) == {"c3", "c4", "c7"}
    assert len({party.agreed for party in parties}) == 1
    assert "3 rows are shared by all 3 parties" in outcome.finished["shop"].reason


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), min_size=2, max_size=4), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_any_tables_join_as_sets_do(tables: list[list[int]], leader: int) -> None:
    ids: dict[str, list[object]] = {f"p{i}": list(table) for i, table in enumerate(tables)}
    parties = aligners(ids, leader=f"p{leader % len(tables)}")
    outcome = Simulator(seed=0).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"aligned"}, outcome.stalled
    common = set.intersection(*(set(table) for table in tables))
    orders = [joined_ids(party, ids[party.name]) for party in parties]
    assert all(order == orders[0] for order in orders)
    assert set(orders[0]) == common and len(orders[0]) == len(common)


def test_many_buckets_join_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.orgs.align_psi.BUCKET_IDS", 7)
    rng = np.random.default_rng(0)
    ids: dict[str, list[object]] = {name: list(rng.permutation(120)[:80]) for name in ("bank", "shop", "telecom")}
    parties = aligners(ids)
    outcome = Simulator(seed=0).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"aligned"}
    assert set(joined_ids(parties[0], ids["bank"])) == set.intersection(*(set(own) for own in ids.values()))


def test_duplicates_and_missing_ids_are_counted_and_left_out() -> None:
    column = id_column(np.array(["a", "b", "a", None, float("nan"), " b", 7, 7.0], dtype=object), SALT)
    assert (column.duplicates, column.missing, len(column.tokens)) == (3, 2, 3)
    assert sorted(column.rows.tolist()) == [0, 1, 6]
    assert column.notes("shop") == [
        "shop: 3 rows with an id seen before; the first row of each id was kept.",
        "shop: 2 rows without an id, left out.",
    ]


def test_tokens_depend_on_the_salt_and_not_on_the_spelling() -> None:
    assert tokens_of([7, "7", 7.0, b"7"], SALT) == tokens_of(["7"] * 4, SALT)
    assert tokens_of([7], SALT) != tokens_of([7], b"another")


def test_no_id_and_no_plain_token_leaves_a_party() -> None:
    """What crosses before the join is known: blinded points only."""
    names = [f"customer-{i:06d}" for i in range(6)]
    ids: dict[str, list[object]] = {"bank": names[:2], "shop": names[1:3], "telecom": [names[1], names[5]]}
    parties = aligners(ids)
    tokens = {token for party in parties for token in party.column.tokens}
    sent: list[bytes] = []
    for party in parties:
        handle = party.handle

        def spy(event, handle=handle):  # type: ignore[no-untyped-def]
            effects = handle(event)
            for effect in effects:
                if isinstance(effect, Send):
                    sent.append(repr(effect.body).encode())
                    sent.extend(
                        v for f in effect.body.__struct_fields__ if isinstance(v := getattr(effect.body, f), bytes)
                    )
            return effects

        party.handle = spy  # type: ignore[method-assign]
    Simulator(seed=0).run(parties)
    whole = b"\0".join(sent)
    for token in tokens:
        assert token not in whole and token.hex().encode() not in whole
    assert all(text.encode() not in whole for text in names)


def test_an_imported_alignment_is_checked_by_digest() -> None:
    ids: dict[str, list[object]] = {"bank": ["a", "b", "c"], "shop": ["c", "b"], "telecom": ["b", "x", "c"]}
    good: dict[str, list[object]] = {name: ["c", "b"] for name in ids}
    parties = aligners(ids, imported=good)
    outcome = Simulator(seed=0).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"aligned"}
    assert joined_ids(parties[2], ids["telecom"]) == ["c", "b"]
    bad = {**good, "shop": ["b", "c"]}
    outcome = Simulator(seed=0).run(aligners(ids, imported=bad))
    assert {finish.verdict for finish in outcome.finished.values()} == {"misaligned"}
    assert "'shop' has 2 rows" in outcome.finished["bank"].reason
    with pytest.raises(BadData, match="1 ids that are not in this party's table"):
        Simulator(seed=0).run(aligners(ids, imported={**good, "shop": ["a", "b"]}))


def test_a_restored_aligner_goes_on() -> None:
    ids: dict[str, list[object]] = {"bank": [1, 2, 3], "shop": [2, 3, 4], "telecom": [3, 2, 9]}
    first = aligners(ids)
    Simulator(seed=0).run(first)
    second = aligners(ids)
    for party, done in zip(second, first, strict=True):
        party.restore(done.snapshot())
        assert party.rows().tolist() == done.rows().tolist()


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=60, unique=True), st.integers(1, 9))
def test_buckets_cut_sorted_tokens_by_their_first_bytes(tokens: list[bytes], buckets: int) -> None:
    tokens.sort()
    bounds = bucket_bounds(tokens, buckets)
    slow = [[t for t in tokens if int.from_bytes(t[:4], "big") * buckets >> 32 == bucket] for bucket in range(buckets)]
    assert [tokens[bounds[bucket] : bounds[bucket + 1]] for bucket in range(buckets)] == slow
    assert digest_of([]) != digest_of([b"x" * 16])


def test_fewer_common_ids_than_one_party_wants_are_told_to_the_leader_alone() -> None:
    ids: dict[str, list[object]] = {"bank": [1, 2, 3], "shop": [2, 3, 4], "telecom": [3, 2, 9]}
    parties = aligners(ids, least={"shop": 3})
    sent: list[object] = []
    for party in parties:
        handle = party.handle
        party.handle = lambda event, handle=handle: sent.extend(e := handle(event)) or e  # type: ignore[method-assign]
    outcome = Simulator(seed=0).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {TOO_FEW}
    assert outcome.finished["telecom"].reason.startswith("fewer than 3 rows are shared by all parties, and 'shop'")
    assert not any(isinstance(getattr(effect, "body", None), Joined) for effect in sent)
    assert parties[1].joined is None and parties[2].joined is None


# -- blinding ---------------------------------------------------------------------------------------------------------

PRIME = 2**255 - 19


def words(numbers: list[int]) -> np.ndarray:
    return np.frombuffer(b"".join(n.to_bytes(32, "little") for n in numbers), "<u8").reshape(-1, 4).astype(np.uint64)


@given(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=20))
@settings(deadline=None)
def test_squares_modulo_the_prime_are_found(numbers: list[int]) -> None:
    euler = [pow(number, (PRIME - 1) // 2, PRIME) for number in numbers]
    assert jacobi_symbols(words(numbers), words([PRIME])[0]).tolist() == [-1 if e == PRIME - 1 else e for e in euler]


@given(st.integers(0, 2**200), st.integers(0, 2**120))
@settings(deadline=None)
def test_jacobi_symbols_of_composite_moduli_are_those_of_their_factors(value: int, half: int) -> None:
    n = (2 * half + 1) * (2**61 - 1)
    whole = jacobi_symbols(words([value % n]), words([n])[0])[0]
    parts = [jacobi_symbols(words([value % m]), words([m])[0])[0] for m in (2 * half + 1, 2**61 - 1)]
    assert whole == parts[0] * parts[1]


def test_every_point_is_on_the_curve_and_none_on_its_twist() -> None:
    """A mixture of both would tell one bit of every id, whatever it is blinded with."""
    blinded = multiplied(b"k" * 32, points_of(tokens_of(range(300), SALT)), "bank")
    for at in range(0, len(blinded), POINT_BYTES):
        u = int.from_bytes(blinded[at : at + POINT_BYTES], "little")
        assert pow(u**3 + 486662 * u**2 + u, (PRIME - 1) // 2, PRIME) == 1


def test_two_keys_commute_and_other_keys_give_other_points() -> None:
    points = points_of(tokens_of(range(20), SALT))
    one, two = b"1" * 32, b"2" * 32
    assert multiplied(two, multiplied(one, points, "a"), "b") == multiplied(one, multiplied(two, points, "a"), "b")
    assert multiplied(one, points, "a") != multiplied(two, points, "a")


@pytest.mark.parametrize("wrong", [bytes(32), (1).to_bytes(32, "little"), b"short"])
def test_bytes_that_are_no_blinded_ids_name_their_sender(wrong: bytes) -> None:
    with pytest.raises(PeerFailed, match="'evil' sent something else than blinded ids"):
        multiplied(b"k" * 32, wrong, "evil")


# -- wrong messages ---------------------------------------------------------------------------------------------------

TABLES: dict[str, list[object]] = {"bank": [1, 2, 3], "shop": [2, 3, 4], "telecom": [3, 2, 9]}


@pytest.mark.parametrize(
    ("receiver", "sender", "body", "reason"),
    [
        ("shop", "telecom", Blinded(0, b"x" * 32), "'telecom' asks for ids in an alignment that 'bank' leads"),
        ("shop", "bank", Blinded(1, b"x" * 32), "asks for bucket 1 of 1 again, or it is none"),
        ("shop", "bank", Blinded(-1, b"x" * 32), "asks for bucket -1"),
        ("shop", "bank", Blinded(0, b"x" * 33), "sent half an id"),
        ("shop", "bank", Blinded(0, b"x" * 128), "asks for 4 ids, more than the 3 it said it brings"),
        ("shop", "telecom", Joined(0, 1, b""), "'telecom' joins ids out of turn"),
        ("shop", "bank", Joined(0, 2, b""), "joins more ids than the smallest party has"),
        ("shop", "bank", Joined(-1, 1, b""), "joins more ids"),
        ("shop", "bank", Joined(0, 1, bytes(7)), "joins more ids"),
        ("shop", "bank", Joined(0, 1, bytes(8)), "joins ids that 'shop' has not shown"),
        ("shop", "telecom", TooFew("shop", 3), "ends an alignment that 'bank' leads"),
        ("shop", "stranger", Seen(1, "x", b""), "shows its rows twice"),
        ("shop", "bank", ReadyToAlign(1), "is ready out of turn"),
        ("bank", "shop", Answered(0, b"", b""), "answered bucket 0 of the alignment out of turn"),
    ],
)
def test_a_message_out_of_turn_is_refused_and_names_its_sender(
    receiver: str, sender: str, body: object, reason: str
) -> None:
    party = next(party for party in aligners(TABLES) if party.name == receiver)
    party.handle(Started())
    with pytest.raises(PeerFailed, match=f"'{receiver}' refuses the alignment: '{sender}'") as refused:
        party.handle(Received(sender, body))  # type: ignore[arg-type]
    assert reason in str(refused.value)


def test_a_member_that_brings_more_ids_than_it_said_is_named_by_the_leader() -> None:
    bank, shop, _ = aligners(TABLES)
    (compute,) = [e for e in (*bank.handle(Started()),) if hasattr(e, "job")] or [None]
    assert compute is None  # nothing leaves before everybody is there
    bank.handle(Received("shop", ReadyToAlign(0)))
    effects = bank.handle(Received("telecom", ReadyToAlign(0)))
    (compute,) = [effect for effect in effects if hasattr(effect, "job")]
    (asked,) = bank.handle(Computed(compute.ticket, compute.job()))
    (work,) = shop.handle(Received("bank", asked.body))
    (answer,) = shop.handle(Computed(work.ticket, work.job()))
    more = Answered(0, answer.body.marks, answer.body.own + multiplied(b"k" * 32, answer.body.own[:32], "shop"))
    with pytest.raises(PeerFailed, match="'shop' brings more ids than the 3 it said"):
        bank.handle(Received("shop", more))


# -- the coin of the test rows ----------------------------------------------------------------------------------------


def test_all_parties_toss_one_coin_and_none_of_them_alone() -> None:
    coins = []
    for change in ("", "bank", "telecom"):
        parties = aligners(TABLES)
        for party in parties:
            if party.name == change:
                party._number = b"another number".ljust(32)
        Simulator(seed=len(coins)).run(parties)
        assert len({party.coin for party in parties}) == 1 and len(parties[0].coin) == 32
        coins.append(parties[0].coin)
    assert len(set(coins)) == 3


def test_a_kept_coin_is_not_tossed_again_and_must_be_the_same_at_all() -> None:
    kept: dict[str, list[object]] = {name: [2, 3] for name in TABLES}
    parties = aligners(TABLES, imported=kept)
    for party in parties:
        party.coin = party._kept_coin = b"c" * 32
    outcome = Simulator(seed=0).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"aligned"}
    assert {party.coin for party in parties} == {b"c" * 32}
    parties = aligners(TABLES, imported=kept)
    for party in parties:
        party.coin = party._kept_coin = (b"d" if party.name == "shop" else b"c") * 32
    outcome = Simulator(seed=0).run(parties)
    assert {finish.verdict for finish in outcome.finished.values()} == {"misaligned"}


def before_the_coin(victim: str = "shop") -> tuple[Aligner, Seen, list[Tossed]]:
    """A party that imported its rows and has everybody's promise but that of "telecom", its own promise, and what it
    has told of the coin so far: nothing."""
    one, *_ = [party for party in aligners(TABLES, imported={name: [2, 3] for name in TABLES}) if party.name == victim]
    effects = one.handle(Started())
    seen = next(effect.body for effect in effects if isinstance(effect, Broadcast))
    assert isinstance(seen, Seen)
    bank = Seen(2, seen.digest, promise_of("bank", seen.digest, b"b" * 32))
    told = [e.body for e in one.handle(Received("bank", bank)) if isinstance(e, Broadcast)]
    return one, seen, told


def test_a_number_is_told_after_all_promises_and_a_broken_promise_has_a_name() -> None:
    one, seen, told = before_the_coin()
    assert told == []
    last = Seen(2, seen.digest, promise_of("telecom", seen.digest, b"t" * 32))
    effects = one.handle(Received("telecom", last))
    assert [type(effect.body) for effect in effects if isinstance(effect, Broadcast)] == [Tossed]
    assert one.handle(Received("bank", Tossed(b"b" * 32))) == []
    with pytest.raises(PeerFailed, match="'telecom' tosses another coin than it promised"):
        one.handle(Received("telecom", Tossed(b"chosen to suit".ljust(32))))


def test_a_promise_that_repeats_another_party_s_is_worth_nothing() -> None:
    """Tried: repeat the victim's promise, then its number. Two equal numbers would leave the coin to the third."""
    one, seen, _ = before_the_coin()
    effects = one.handle(Received("telecom", Seen(2, seen.digest, seen.promise)))
    number = next(effect.body.number for effect in effects if isinstance(effect, Broadcast))
    one.handle(Received("bank", Tossed(b"b" * 32)))
    with pytest.raises(PeerFailed, match="'telecom' tosses another coin than it promised"):
        one.handle(Received("telecom", Tossed(number)))
