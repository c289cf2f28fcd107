"""Joining on ids, keeping rows for testing, sharing out columns and rows."""

import numpy as np
import pytest
import scipy.sparse as sp

from offbeat.data.align import align
from offbeat.data.columns import NumberedColumns
from offbeat.data.holdout import held_out, id_text
from offbeat.data.matrix import cut_columns, stack_columns
from offbeat.data.split import split_columns, split_rows
from offbeat.data.table import Table, table_from_arrays
from offbeat.errors import BadData
from offbeat.names import nearest, party_names


def table(ids: list[object], name: str = "t") -> Table:
    keys = np.array(ids, dtype=np.int64 if all(isinstance(i, int) for i in ids) else object)
    return Table(keys, ("x",), np.arange(len(ids), dtype=float)[:, None], None, name)


def test_rows_are_joined_whatever_their_order() -> None:
    joined = align({"bank": table([30, 12, 7, 9]), "shop": table([7, 30, 55, 12])})
    assert joined.ids.tolist() == [7, 12, 30]
    assert joined.rows["bank"].tolist() == [2, 1, 0]
    assert joined.rows["shop"].tolist() == [0, 3, 1]
    assert joined.notes == (
        "bank: 1 of 4 ids have no partner elsewhere and were left out.",
        "shop: 1 of 4 ids have no partner elsewhere and were left out.",
    )


def test_numbers_in_one_file_and_text_in_another() -> None:
    joined = align({"bank": table([30, 7]), "shop": table(["7", "Eve", " 30"])})
    assert joined.ids.tolist() == ["30", "7"]
    assert joined.rows["shop"].tolist() == [2, 0]
    assert id_text(7.0) == id_text("7 ") == id_text(b"7") == "7"


def test_repeated_ids_keep_their_first_row_and_are_counted() -> None:
    joined = align({"bank": table([5, 6, 5, 5]), "shop": table([6, 5])})
    assert joined.rows["bank"].tolist() == [0, 1]
    assert "bank: 2 rows with an id seen before" in joined.notes[0]


def test_digest_is_the_same_for_all_orders_and_another_for_other_ids() -> None:
    one = align({"a": table([1, 2, 3]), "b": table([3, 2, 1])})
    two = align({"a": table([3, 1, 2]), "b": table([2, 1, 3])})
    other = align({"a": table([1, 2, 4]), "b": table([4, 2, 1])})
    assert one.digest == two.digest != other.digest
    assert len(one.digest) == 64


def test_empty_intersection_is_refused_with_examples() -> None:
    with pytest.raises(BadData, match=r"No id is common.*bank.*'1'.*shop.*'c1'"):
        align({"bank": table([1, 2], "bank.csv"), "shop": table(["c1", "c2"], "shop.csv")})


def test_held_out_rows_are_exact_in_number_and_follow_the_id() -> None:
    ids = np.arange(30_000)
    test = held_out(ids, seed=3)
    assert test.sum() == 6_000
    shuffled = np.random.default_rng(0).permutation(ids)
    assert set(shuffled[held_out(shuffled, seed=3)]) == set(ids[test])
    assert set(ids[held_out(ids, seed=4)]) != set(ids[test])
    as_text = np.array([str(i) for i in ids], dtype=object)
    np.testing.assert_array_equal(held_out(as_text, seed=3), test)


def test_held_out_rows_of_these_seeds_never_change() -> None:
    """The hash is a promise between parties: changing it would put their test rows apart."""
    assert np.flatnonzero(held_out(np.arange(20), seed=0, rows=5)).tolist() == [5, 7, 8, 12, 17]


@pytest.mark.parametrize(("fraction", "rows"), [(1.0, None), (-0.1, None), (0.2, 10), (0.2, 11)])
def test_no_training_row_left(fraction: float, rows: int | None) -> None:
    with pytest.raises(BadData):
        held_out(np.arange(10), seed=0, fraction=fraction, rows=rows)


COLUMNS = tuple("abcdefg")


def test_equal_mod_and_counted_splits() -> None:
    assert {k: v.tolist() for k, v in split_columns(COLUMNS, 3).items()} == {
        "bank": [0, 1, 2], "shop": [3, 4], "telecom": [5, 6],
    }  # fmt: skip
    assert [v.tolist() for v in split_columns(COLUMNS, ["u", "v"], "mod").values()] == [[0, 2, 4, 6], [1, 3, 5]]
    assert [v.tolist() for v in split_columns(COLUMNS, 2, [6, 1]).values()] == [[0, 1, 2, 3, 4, 5], [6]]
    assert split_columns(COLUMNS, 2, [list("gfa"), list("bcde")])["bank"].tolist() == [6, 5, 0]


def test_named_and_random_splits() -> None:
    named = split_columns(COLUMNS, 2, {"x": ["g", "a"], "y": list("bcdef")})
    assert named["x"].tolist() == [6, 0]
    draw = [split_columns(COLUMNS, 2, "random", np.random.default_rng(s)) for s in (1, 1, 2)]
    assert draw[0]["bank"].tolist() == draw[1]["bank"].tolist() != draw[2]["bank"].tolist()


BAD_SPLITS = {
    "unknown rule": ("eqal", "equal"),
    "too few": ({"x": list("abc")}, "4 columns of the table have no party: d, e, f, g"),
    "twice": ({"x": list("abcd"), "y": list("defg")}, "both 'x' and 'y'"),
    "unknown column": ({"x": [*COLUMNS, "ag"]}, "'ag'"),
    "wrong sum": ([3, 3], "add up to 7"),
    "wrong count": ([1, 2, 4], "3 parts for 2 parties"),
    "mixture": ([3, ["a"]], "not a mixture"),
    "empty party": ({"x": list(COLUMNS), "y": []}, "no column"),
    "no seed": ("random", "seed"),
}


@pytest.mark.parametrize("case", BAD_SPLITS)
def test_bad_splits(case: str) -> None:
    how, expected = BAD_SPLITS[case]
    with pytest.raises(BadData, match=expected):
        split_columns(COLUMNS, 2, how)


def test_more_parties_than_columns() -> None:
    with pytest.raises(BadData, match="8 parties cannot share 7 columns"):
        split_columns(COLUMNS, 8)
    with pytest.raises(BadData, match="differ from one another"):
        split_columns(COLUMNS, ["a", "a"])


def test_sparse_cut_equals_dense_cut() -> None:
    dense = np.random.default_rng(0).random((9, 7)) * (np.random.default_rng(1).random((9, 7)) < 0.4)
    parts = split_columns(COLUMNS, 3, [list("gb"), list("cae"), list("df")])
    sparse = cut_columns(sp.csr_matrix(dense), parts)
    for party, block in cut_columns(dense, parts).items():
        np.testing.assert_array_equal(sparse[party].toarray(), block)
        assert sparse[party].has_sorted_indices
        assert sparse[party].indices.dtype == np.int32
    order = np.argsort(np.concatenate(list(parts.values())))
    np.testing.assert_array_equal(stack_columns(list(sparse.values())).toarray()[:, order], dense)


def test_party_names_and_near_names() -> None:
    assert party_names(6) == ("bank", "shop", "telecom", "insurer", "party5", "party6")
    assert nearest("Defualt", ["age", "default"]) == ["default"]


def test_numbered_columns_behave_like_a_list_of_names() -> None:
    columns = NumberedColumns(range(1_000_000))
    assert len(columns) == 1_000_000
    assert columns[17] == "x17"
    assert columns[5:7] == ("x5", "x6")
    assert columns.take(np.array([9, 3])) == ("x9", "x3")


LABELS = np.repeat(np.arange(4.0), 25)


@pytest.mark.parametrize("how", ["iid", "shards", "dirichlet"])
def test_rows_go_to_exactly_one_edge(how: str) -> None:
    parts = split_rows(LABELS, 7, np.random.default_rng(0), how, concentration=0.05)
    assert list(parts)[:2] == ["edge1", "edge2"]
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(100))
    assert all(part.size for part in parts.values())


def test_shards_hold_few_labels() -> None:
    parts = split_rows(LABELS, 4, np.random.default_rng(0), "shards", shards_per_edge=1)
    assert [len(set(LABELS[rows])) for rows in parts.values()] == [1, 1, 1, 1]


@pytest.mark.parametrize(("edges", "how"), [(101, "iid"), (0, "iid"), (3, "uneven"), (60, "shards")])
def test_bad_row_splits(edges: int, how: str) -> None:
    with pytest.raises(BadData):
        split_rows(LABELS, edges, np.random.default_rng(0), how)


def test_table_from_a_flat_array_is_refused() -> None:
    with pytest.raises(BadData, match="rows by columns"):
        table_from_arrays(np.arange(3.0))


def test_a_poor_match_is_a_warning() -> None:
    def table(ids: range, name: str) -> Table:
        return table_from_arrays(np.ones((len(ids), 1)), list(ids), name=name)

    few = align({"bank": table(range(10), "bank"), "shop": table(range(7, 12), "shop")})
    (told,) = few.warnings
    assert told.startswith("Most ids have no partner: 7 of 10 of bank. 3 rows were left")
    assert align({"bank": table(range(10), "bank"), "shop": table(range(2, 12), "shop")}).warnings == ()
