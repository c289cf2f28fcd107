"""Alignment by private set intersection, against a plain join of sets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadData, PeerFailed
from offbeat.orgs.align_psi import Aligner
from offbeat.orgs.tokens import IdColumn, bucket_of, digest_of, id_column, tokens_of
from offbeat.party.contract import Send
from offbeat.runtime.simulator import Simulator

pytest.importorskip("private_set_intersection", reason="needs the extra 'psi'")

SALT = b"salt of the job"


def aligners(
    ids: dict[str, list[object]], leader: str = "bank", imported: dict[str, list[object]] | None = None
) -> list[Aligner]:
    names = tuple(ids)
    return [
        Aligner(
            name,
            names,
            leader,
            id_column(np.array(own, dtype=object), SALT),
            secret=name.encode().ljust(32, b"."),
            imported=tokens_of(imported[name], SALT) if imported else None,
        )
        for name, own in ids.items()
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
        "shop: 3 rows repeat an id seen before; the first row of each id was kept.",
        "shop: 2 rows have no id and were left out.",
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


def test_buckets_cover_the_range() -> None:
    assert bucket_of(b"\0" * 16, 7) == 0 and bucket_of(b"\xff" * 16, 7) == 6
    assert digest_of([]) != digest_of([b"x" * 16])


def test_an_answer_out_of_turn_is_refused() -> None:
    from offbeat.orgs.align_psi import Answered
    from offbeat.party.contract import Received

    leader = Aligner(
        "bank", ("bank", "shop", "telecom"), "bank", IdColumn((), np.empty(0, np.int64), 0, 0), secret=b"s" * 32
    )
    with pytest.raises(PeerFailed, match="out of turn"):
        leader.handle(Received("shop", Answered(0, b"", b"")))
