"""Preparing one party's columns from its own training rows: exact small numbers."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer

from offbeat.data.encode import bin_edges
from offbeat.data.prepare import AS_IS, Preparation, check_preparation, fit_preparation
from offbeat.data.row_scale import scale_party_rows
from offbeat.data.table import Table
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadData, BadJob


def test_one_hot_learns_levels_from_training_rows_and_leaves_unseen_ones_zero() -> None:
    train = np.array([[2.0, 10.0], [5.0, 20.0], [2.0, 30.0]])
    fitted = fit_preparation(train, ("kind", "x"), Preparation(one_hot=("kind",)))
    assert list(fitted.columns) == ["kind=2", "kind=5", "x"]
    np.testing.assert_array_equal(fitted.apply(train), [[1, 0, 10], [0, 1, 20], [1, 0, 30]])
    np.testing.assert_array_equal(fitted.apply(np.array([[7.0, 1.0]])), [[0, 0, 1]])


def test_standardising_uses_training_rows_and_reports_constant_columns() -> None:
    train = np.array([[1.0, 4.0], [3.0, 4.0]])
    fitted = fit_preparation(train, ("x", "still"), Preparation(standardise="all"))
    np.testing.assert_array_equal(fitted.apply(train), [[-1, 0], [1, 0]])
    np.testing.assert_array_equal(fitted.apply(np.array([[5.0, 6.0]])), [[3, 2]])
    assert fitted.constant == ("still",)


def test_a_value_whose_square_overflows_is_refused_by_name(recwarn) -> None:
    train = np.arange(40.0).reshape(20, 2)
    train[7, 1] = -1e300
    with pytest.raises(BadData, match=r"'x'.*-1e\+300"):
        fit_preparation(train, ("a", "x"), Preparation(standardise="numeric"))
    assert not recwarn.list
    blocks = {"bank": train[:, :1], "shop": train[:, 1:]}
    with pytest.raises(BadData, match="Party 'shop'"):
        vertical_from_arrays(blocks, np.arange(20) % 2, preparation=Preparation(standardise="numeric"))


def test_a_column_that_one_value_swamps_is_told_of() -> None:
    train = np.random.default_rng(0).standard_normal((50, 3))
    train[3, 1] = 1e9
    train[:, 2] = np.arange(50) == 4  # rare, but all there is to learn from it
    fitted = fit_preparation(train, ("a", "x", "rare"), Preparation(standardise="numeric"))
    assert fitted.swamped == ("x",)
    data = vertical_from_arrays({"shop": train}, np.arange(50) % 2, preparation=Preparation(standardise="numeric"))
    assert any("one value of column x1" in note for note in data.notes)


def test_numeric_standardising_leaves_indicators_alone() -> None:
    train = np.array([[0.0, 1.0], [1.0, 3.0]])
    numeric = fit_preparation(train, ("k", "x"), Preparation(one_hot=("k",), standardise="numeric"))
    np.testing.assert_array_equal(numeric.apply(train), [[1, 0, -1], [0, 1, 1]])
    everything = fit_preparation(train, ("k", "x"), Preparation(one_hot=("k",), standardise="all"))
    np.testing.assert_array_equal(everything.apply(train), [[1, -1, -1], [-1, 1, 1]])


def test_medians_fill_what_is_missing() -> None:
    train = np.array([[1.0, 2.0], [np.nan, 4.0], [5.0, 6.0], [9.0, np.nan]])
    fitted = fit_preparation(train, ("x", "z"), Preparation(missing="median"))
    np.testing.assert_array_equal(fitted.apply(train)[:, 0], [1, 5, 5, 9])
    np.testing.assert_array_equal(fitted.apply(np.array([[np.nan, np.nan]])), [[5, 4]])


def test_missing_values_are_refused_in_training_and_in_later_rows() -> None:
    with pytest.raises(BadData, match=r"'z'.*row 2.*median"):
        fit_preparation(np.array([[1.0, 2.0], [1.0, np.nan]]), ("x", "z"), AS_IS)
    fitted = fit_preparation(np.eye(2), ("x", "z"), AS_IS)
    with pytest.raises(BadData, match="'x'"):
        fitted.apply(np.array([[np.nan, 0.0]]))
    with pytest.raises(BadData, match="no value in the training rows"):
        fit_preparation(np.array([[np.nan], [np.nan]]), ("x",), Preparation(missing="median"))


def test_a_missing_category_is_no_category() -> None:
    train = np.array([[1.0], [np.nan], [2.0]])
    fitted = fit_preparation(train, ("k",), Preparation(one_hot=("k",), missing="median"))
    np.testing.assert_array_equal(fitted.apply(train), [[1, 0], [0, 0], [0, 1]])


def test_bins_hold_equally_many_rows() -> None:
    values = np.arange(100.0)
    assert bin_edges(values, 4).tolist() == [25, 50, 75]
    fitted = fit_preparation(values[:, None], ("x",), Preparation(bins=4))
    block = fitted.apply(values[:, None])
    assert block.sum(axis=0).tolist() == [25, 25, 25, 25]
    assert list(fitted.columns) == ["x < 25", "x in [25, 50)", "x in [50, 75)", "x >= 75"]
    np.testing.assert_array_equal(fitted.apply(np.array([[-9.0], [25.0], [1e9]])), np.eye(4)[[0, 1, 3]])


def test_a_column_of_mostly_zeros_keeps_its_rare_values_apart() -> None:
    values = np.concatenate([np.zeros(94), [1, 1, 1, 2, 2, 98]])
    assert bin_edges(values, 4).tolist() == [1, 2, 98]
    assert bin_edges(np.ones(5), 4).tolist() == []


def test_tf_idf_is_scikit_learns() -> None:
    counts = np.random.default_rng(0).poisson(0.5, size=(30, 8)).astype(float)
    expected = TfidfTransformer(norm=None).fit(counts[:20]).transform(counts).toarray()
    for matrix in (counts, sp.csr_matrix(counts)):
        fitted = fit_preparation(matrix[:20], tuple("abcdefgh"), Preparation(counts="tf-idf"))
        got = fitted.apply(matrix)
        np.testing.assert_allclose(got.toarray() if sp.issparse(got) else got, expected, rtol=1e-14)


def test_log_counts() -> None:
    counts = np.array([[0.0, 1.0], [3.0, 0.0]])
    for matrix in (counts, sp.csr_matrix(counts)):
        got = fit_preparation(matrix, ("a", "b"), Preparation(counts="log1p")).apply(matrix)
        np.testing.assert_array_equal(got.toarray() if sp.issparse(got) else got, np.log1p(counts))


def test_sparse_columns_are_not_filled_up() -> None:
    with pytest.raises(BadJob, match="stay sparse"):
        fit_preparation(sp.csr_matrix(np.eye(3)), tuple("abc"), Preparation(standardise="all"))


def test_party_unit_rows_need_one_party_at_a_time() -> None:
    blocks = {"a": np.array([[3.0, 4.0], [0.0, 0.0]]), "b": sp.csr_matrix(np.array([[5.0], [2.0]]))}
    scaled = scale_party_rows(blocks, "party-unit")
    np.testing.assert_allclose(scaled["a"], [[0.6 / np.sqrt(2), 0.8 / np.sqrt(2)], [0, 0]])
    np.testing.assert_allclose(scaled["b"].toarray(), [[1 / np.sqrt(2)], [1 / np.sqrt(2)]])
    np.testing.assert_allclose(scale_party_rows({**blocks, "b": 9 * blocks["b"]}, "party-unit")["a"], scaled["a"])


def test_pooled_unit_rows_have_norm_one() -> None:
    blocks = {"a": np.array([[3.0], [0.0]]), "b": np.array([[4.0], [0.0]])}
    scaled = scale_party_rows(blocks, "pooled-unit")
    np.testing.assert_allclose(np.hstack(list(scaled.values())), [[0.6, 0.8], [0, 0]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"missing": "mean"}, "'median'"),
        ({"counts": "tfidf"}, "'tf-idf'"),
        ({"rows": "unit"}, "party-unit"),
        ({"standardise": "yes"}, "none"),
        ({"bins": 1}, "at least 2"),
        ({"one_hot": ("a", "a")}, "twice"),
    ],
)
def test_words_without_meaning_are_refused(options: dict[str, object], expected: str) -> None:
    with pytest.raises(BadJob, match=expected):
        check_preparation(Preparation(**options))  # type: ignore[arg-type]


def test_columns_that_are_not_there_or_hold_text() -> None:
    with pytest.raises(BadJob, match=r"'knid'.*'kind'"):
        fit_preparation(np.eye(2), ("kind", "x"), Preparation(one_hot=("knid",)))
    with pytest.raises(BadJob, match=r"'kind' holds text"):
        fit_preparation(np.eye(2), ("kind", "x"), AS_IS, {"kind": ("north", "south")})
    fitted = fit_preparation(np.eye(2), ("kind", "x"), AS_IS)
    with pytest.raises(BadData, match="learned on 2 columns; 3 came"):
        fitted.apply(np.eye(3))


def test_a_later_table_is_read_by_column_name_and_level_text() -> None:
    """Codes are a table's own; the texts behind them are what is meant."""
    first = Table(
        np.arange(3), ("kind", "x"), np.array([[0, 1], [1, 2], [2, 3.0]]), None, "first", {"kind": ("n", "s", "w")}
    )
    fitted = fit_preparation(first.features, first.columns, Preparation(one_hot=("kind",)), first.levels)
    later = Table(
        np.arange(3), ("x", "kind"), np.array([[9, 0], [8, 1], [7, 2.0]]), None, "later", {"kind": ("e", "s", "w")}
    )
    np.testing.assert_array_equal(fitted.apply_table(later), [[0, 0, 0, 9], [0, 1, 0, 8], [0, 0, 1, 7]])
    with pytest.raises(BadData, match=r"lacks the column 'x'"):
        fitted.apply_table(Table(np.arange(1), ("kind",), np.zeros((1, 1)), None, "later"))


def test_sentences() -> None:
    assert AS_IS.sentence() == "columns as they are"
    assert Preparation(one_hot=("a",), standardise="numeric", rows="party-unit").sentence() == (
        "categorical columns one-hot, numeric columns standardised and one-hot left 0/1, "
        "each party's part of a row scaled to norm 1/sqrt(q)"
    )


def test_sparse_columns_say_in_words_what_cannot_be_done_to_them() -> None:
    with pytest.raises(BadJob, match="Came: numeric columns standardised") as refused:
        fit_preparation(sp.csr_matrix(np.eye(3)), ("a", "b", "c"), Preparation(standardise="numeric"))
    assert "Preparation(" not in str(refused.value)
