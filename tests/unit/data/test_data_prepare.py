"""Preparing one party's columns from its own training rows: exact small numbers."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer

from offbeat.data.encode import bin_edges
from offbeat.data.fitting import about_codes, cuts, fit_preparation
from offbeat.data.matrix import scale_party_rows
from offbeat.data.preparation import AS_IS, Preparation, preparation_from
from offbeat.data.prepare import fitted_from, state_of
from offbeat.data.table import Table
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadData, BadJob

NAN = np.nan
SCALED = Preparation(how="scaled")


def column(values, how="auto", texts=None, **options):
    """One column 'x' prepared: its fitted preparation and the block."""
    cells = np.array(values, dtype=np.float64)[:, None]
    fitted = fit_preparation(cells, ("x",), Preparation(how=how, **options), {"x": texts} if texts else None)
    return fitted, np.asarray(fitted.apply(cells))


# -- auto ------------------------------------------------------------------------------------------------------------


def test_auto_standardises_fills_with_the_median_and_marks() -> None:
    fitted, block = column([1.0, NAN, 3.0, 5.0])
    assert list(fitted.columns) == ["x", "x is missing"]
    deviation = np.std([1, 3, 3, 5])
    np.testing.assert_allclose(block, [[-2 / deviation, 0], [0, 1], [0, 0], [2 / deviation, 0]])
    np.testing.assert_allclose(fitted.apply(np.array([[NAN], [7.0]])), [[0, 1], [4 / deviation, 0]])


def test_auto_fills_later_rows_where_training_lacked_nothing() -> None:
    fitted, _ = column([1.0, 2.0, 3.0])
    assert list(fitted.columns) == ["x"]
    np.testing.assert_array_equal(fitted.apply(np.array([[NAN]])), [[0.0]])


def test_auto_makes_a_column_of_each_category_and_one_for_rare_unseen_and_missing_ones() -> None:
    codes = [0.0] * 500 + [1.0] * 480 + [2.0] * 3 + [3.0] * 2 + [NAN] * 15
    fitted, block = column(codes, texts=("blue", "green", "grey", "violet"))
    assert list(fitted.columns) == ["x=blue", "x=green", "x=other", "x is missing"]
    assert block.sum(axis=0).tolist() == [500, 480, 5, 15]
    assert block.sum(axis=1).tolist() == [1.0] * 1000
    assert fitted.notes == ("Column 'x': 2 rare categories (5 training rows) count as one, 'other'.",)
    later = Table(np.arange(3), ("x",), np.array([[0.0], [1.0], [NAN]]), None, "later", {"x": ("green", "new")})
    np.testing.assert_array_equal(fitted.apply_table(later), [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    assert fitted.unseen(fitted.recoded(later)) == {"x": 1}


def test_without_rare_categories_an_unseen_one_is_zero_everywhere() -> None:
    fitted, _ = column([0.0, 1.0], texts=("a", "b"))
    later = Table(np.arange(2), ("x",), np.array([[0.0], [NAN]]), None, "later", {"x": ("c",)})
    np.testing.assert_array_equal(fitted.apply_table(later), np.zeros((2, 2)))


def test_at_most_a_hundred_categories_have_a_column_of_their_own() -> None:
    codes = np.repeat(np.arange(150.0), np.r_[np.full(100, 30), np.full(50, 25)])
    fitted, block = column(codes, texts=tuple(f"{k:03}" for k in range(150)))
    assert len(fitted.columns) == 101 and fitted.columns[-1] == "x=other"
    assert block[:, -1].sum() == 50 * 25


def test_categories_that_look_like_numbers_are_found_by_their_text_later() -> None:
    fitted, _ = column([0.0, 1.0], texts=("7", "north"))
    later = Table(np.arange(2), ("x",), np.array([[7.0], [8.0]]), None, "later")
    np.testing.assert_array_equal(fitted.apply_table(later), [[1, 0], [0, 0]])


def test_auto_leaves_out_what_says_nothing_and_tells_so() -> None:
    cells = np.array([[1.0, 4.0, NAN], [2.0, 4.0, NAN]])
    fitted = fit_preparation(cells, ("x", "still", "empty"), Preparation())
    assert list(fitted.columns) == ["x"]
    assert fitted.notes == (
        "Column 'still' has one value in all training rows and was left out.",
        "Column 'empty' has no value in the training rows and was left out.",
    )
    with pytest.raises(BadData, match=r"No column is left.*'empty' has no value"):
        fit_preparation(cells[:, 2:], ("empty",), Preparation())
    with pytest.raises(BadData, match="left out by `prepare`"):
        fit_preparation(cells[:, :1], ("x",), Preparation(columns={"x": "leave-out"}))


@pytest.mark.parametrize("how", ["auto", "bins"])
def test_a_party_of_constants_takes_part_with_a_column_of_zeros(how) -> None:
    cells = np.array([[4.0, 7.0, NAN], [4.0, 7.0, NAN]])
    fitted = fit_preparation(cells, ("still", "quiet", "empty"), Preparation(how=how))
    assert list(fitted.columns) == ["still"]
    np.testing.assert_array_equal(fitted.apply(cells), [[0.0], [0.0]])
    assert "No column varies. 'still' is kept: the party takes part, and adds nothing." in fitted.notes
    assert not any("'still' has one value" in note for note in fitted.notes)


def test_dates_are_days_with_a_note() -> None:
    fitted = fit_preparation(np.array([[0.0], [10.0]]), ("day",), Preparation(), forms={"day": "date"})
    np.testing.assert_array_equal(fitted.apply(np.array([[5.0]])), [[0.0]])
    assert fitted.notes == ("Column 'day' holds dates: they count as days since 1970-01-01.",)


def test_one_value_far_out_leaves_the_others_as_they_were() -> None:
    values = np.random.default_rng(0).standard_normal(1000)
    far = np.append(values, 1e13)
    fitted, block = column(far)
    without = column(values)[1]
    np.testing.assert_allclose(block[:1000], without, atol=0.1)
    assert 6 < block[-1, 0] < 8
    assert fitted.notes[0].startswith("Values far out count as the nearest bound") and "(1 row)" in fitted.notes[0]
    assert fitted.apply(np.array([[1e300]])) == block[-1]
    assert fitted.apply(np.array([[-1e300]])).item() == pytest.approx(-block[-1, 0], abs=0.5)


def test_where_values_are_cut() -> None:
    assert cuts(np.arange(101.0)) == (50, 1 - 98, 99 + 98)
    assert cuts(np.array([0.0] * 995 + [1, 2, 3, 4, 5])) == (0, -4.96, 9.92)  # the outer quantiles of the rare ones
    assert cuts(np.array([0.0] * 999 + [1.0])) == (0, -1, 2)  # a rare event is kept
    assert cuts(np.array([3.0])) == (3, 3, 3)


def test_ids_and_free_text_are_refused_together_with_what_to_write() -> None:
    rows = np.arange(100)
    cells = np.column_stack([rows, rows + 1000, rows * 1.7, rows % 7])
    with pytest.raises(BadData) as refused:
        fit_preparation(cells, ("mail", "number", "x", "k"), Preparation(), {"mail": [f"m{i}" for i in rows]})
    message = str(refused.value)
    assert (
        "'mail' (100 different values, such as 'm0'), 'number' (100 different values, such as '1000') look" in message
    )
    assert '{ columns = { "mail" = "leave-out", "number" = "leave-out" } }' in message
    chosen = Preparation(columns={"mail": "leave-out", "number": "scaled"})
    assert list(fit_preparation(cells, ("mail", "number", "x", "k"), chosen).columns) == ["number", "x", "k"]
    fit_preparation(cells[:49, 1:2], ("number",), Preparation())  # too few rows to tell


# -- bins ------------------------------------------------------------------------------------------------------------


def test_bins_have_one_for_missing_values() -> None:
    fitted, block = column([1.0, 2.0, 3.0, 4.0, NAN], how="bins", bins=2)
    assert list(fitted.columns) == ["x < 3", "x >= 3", "x is missing"]
    np.testing.assert_array_equal(block, [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
    complete, _ = column([1.0, 2.0, 3.0, 4.0, 5.0], how="bins", bins=2)
    np.testing.assert_array_equal(complete.apply(np.array([[NAN]])), complete.apply(np.array([[3.0]])))


def test_bins_hold_equally_many_rows() -> None:
    values = np.arange(100.0) * 1.5
    fitted, block = column(values, how="bins", bins=4)
    assert block.sum(axis=0).tolist() == [25, 25, 25, 25]
    assert list(fitted.columns) == ["x < 37.5", "x in [37.5, 75)", "x in [75, 112.5)", "x >= 112.5"]
    np.testing.assert_array_equal(fitted.apply(np.array([[-9.0], [37.5], [1e9]])), np.eye(4)[[0, 1, 3]])


def test_a_column_of_mostly_zeros_keeps_its_rare_values_apart() -> None:
    values = np.concatenate([np.zeros(94), [1, 1, 1, 2, 2, 98]])
    assert bin_edges(values, 4).tolist() == [1, 2, 98]
    assert bin_edges(np.ones(5), 4).tolist() == []


def test_columns_treated_otherwise() -> None:
    cells = np.array([[1.0, 0, 5, 1, 9], [2.0, 1, 6, 2, 9], [3.0, 1, 7, 3, NAN], [4.0, 0, 8, 4, 9]])
    preparation = Preparation(columns={"b": "bins", "c": "category", "n": "none", "gone": "leave-out"}, bins=2)
    fitted = fit_preparation(cells, ("b", "c", "n", "a", "gone"), preparation)
    assert list(fitted.columns) == ["b < 3", "b >= 3", "c=0", "c=1", "n", "a"]
    scaled = (np.arange(1, 5) - 2.5) / np.std([1, 2, 3, 4])
    expected = np.column_stack([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0], [5, 6, 7, 8], scaled])
    np.testing.assert_allclose(fitted.apply(cells), expected)
    with pytest.raises(BadData, match=r"'n' has a missing value \(row 2"):
        fit_preparation(np.array([[1.0], [NAN]]), ("n",), Preparation(columns={"n": "none"}))


# -- scaled and none: what there was before, and as published ---------------------------------------------------------


def test_one_hot_learns_levels_from_training_rows_and_leaves_unseen_ones_zero() -> None:
    train = np.array([[2.0, 10.0], [5.0, 20.0], [2.0, 30.0]])
    fitted = fit_preparation(train, ("kind", "x"), Preparation(how="none", columns={"kind": "category"}))
    assert list(fitted.columns) == ["kind=2", "kind=5", "x"]
    np.testing.assert_array_equal(fitted.apply(train), [[1, 0, 10], [0, 1, 20], [1, 0, 30]])
    np.testing.assert_array_equal(fitted.apply(np.array([[7.0, 1.0]])), [[0, 0, 1]])


def test_standardising_uses_training_rows_and_reports_constant_columns() -> None:
    train = np.array([[1.0, 4.0], [3.0, 4.0]])
    fitted = fit_preparation(train, ("x", "still"), SCALED)
    np.testing.assert_array_equal(fitted.apply(train), [[-1, 0], [1, 0]])
    np.testing.assert_array_equal(fitted.apply(np.array([[5.0, 6.0]])), [[3, 2]])
    assert fitted.notes == ("1 column is constant over the training rows (still).",)


def test_a_value_whose_square_overflows_is_refused_by_name(recwarn) -> None:
    train = np.arange(40.0).reshape(20, 2)
    train[7, 1] = -1e300
    with pytest.raises(BadData, match=r"'x'.*-1e\+300"):
        fit_preparation(train, ("a", "x"), SCALED)
    assert not recwarn.list
    blocks = {"bank": train[:, :1], "shop": train[:, 1:]}
    with pytest.raises(BadData, match="Party 'shop'"):
        vertical_from_arrays(blocks, np.arange(20) % 2, preparation=SCALED)


def test_a_column_that_one_value_swamps_is_told_of() -> None:
    train = np.random.default_rng(0).standard_normal((50, 3))
    train[3, 1] = 1e9
    train[:, 2] = np.arange(50) == 4  # rare, but all there is to learn from it
    (note,) = fit_preparation(train, ("a", "x", "rare"), SCALED).notes
    assert note.startswith("One value of column x is so far from the others")
    data = vertical_from_arrays({"shop": train}, np.arange(50) % 2, preparation="scaled")
    assert any(note.startswith("shop: One value of column x1") for note in data.notes)


def test_standardising_leaves_indicators_alone_unless_told() -> None:
    train = np.array([[0.0, 1.0], [1.0, 3.0]])
    options = {"how": "scaled", "columns": {"k": "category"}}
    numbers = fit_preparation(train, ("k", "x"), preparation_from(options))
    np.testing.assert_array_equal(numbers.apply(train), [[1, 0, -1], [0, 1, 1]])
    everything = fit_preparation(train, ("k", "x"), preparation_from({**options, "scale_indicators": True}))
    np.testing.assert_array_equal(everything.apply(train), [[1, -1, -1], [-1, 1, 1]])


def test_missing_values_are_refused_in_training_and_in_later_rows() -> None:
    for how in ("none", "scaled"):
        with pytest.raises(BadData, match=r"'z'.*row 2.*\"auto\".*\"bins\""):
            fit_preparation(np.array([[1.0, 2.0], [1.0, NAN]]), ("x", "z"), Preparation(how=how))
        fitted = fit_preparation(np.eye(2), ("x", "z"), Preparation(how=how))
        with pytest.raises(BadData, match="'x'"):
            fitted.apply(np.array([[NAN, 0.0]]))
    kept = fit_preparation(
        np.array([[1.0, NAN], [2.0, 3.0]]), ("x", "z"), Preparation(how="none", columns={"z": "leave-out"})
    )
    np.testing.assert_array_equal(kept.apply(np.array([[4.0, NAN]])), [[4.0]])


def test_tf_idf_is_scikit_learns() -> None:
    counts = np.random.default_rng(0).poisson(0.5, size=(30, 8)).astype(float)
    expected = TfidfTransformer(norm=None).fit(counts[:20]).transform(counts).toarray()
    for matrix in (counts, sp.csr_matrix(counts)):
        fitted = fit_preparation(matrix[:20], tuple("abcdefgh"), Preparation(how="none", counts="tf-idf"))
        got = fitted.apply(matrix)
        np.testing.assert_allclose(got.toarray() if sp.issparse(got) else got, expected, rtol=1e-14)


def test_log_counts() -> None:
    counts = np.array([[0.0, 1.0], [3.0, 0.0]])
    for matrix in (counts, sp.csr_matrix(counts)):
        got = fit_preparation(matrix, ("a", "b"), Preparation(how="none", counts="log1p")).apply(matrix)
        np.testing.assert_array_equal(got.toarray() if sp.issparse(got) else got, np.log1p(counts))


def test_sparse_columns_are_not_filled_up() -> None:
    with pytest.raises(BadJob, match="stay sparse"):
        fit_preparation(sp.csr_matrix(np.eye(3)), tuple("abc"), SCALED)


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
        ({"how": "autp"}, "'auto'"),
        ({"columns": {"a": "one-hot"}}, '"category"'),
        ({"columns": ["a"]}, "a table with"),
        ({"counts": "tfidf"}, "'tf-idf'"),
        ({"rows": "unit"}, "party-unit"),
        ({"bins": 1}, "between 2 and 1000"),
        ({"bin": 10}, "'bins'"),
        ("binned", '"bins"'),
        (3, "expected a word"),
    ],
)
def test_words_without_meaning_are_refused(options: object, expected: str) -> None:
    with pytest.raises(BadJob, match=expected) as refused:
        preparation_from(options)
    assert "\n" not in str(refused.value)


def test_columns_that_are_not_there_or_hold_text() -> None:
    with pytest.raises(BadJob, match=r"'knid'.*'kind'"):
        fit_preparation(np.eye(2), ("kind", "x"), Preparation(columns={"knid": "category"}))
    texts = {"kind": ("north", "south"), "x": ("a", "b")}
    with pytest.raises(BadJob, match=r"Columns 'kind', 'x' hold text.*\"kind\" = \"category\", \"x\" = \"category\""):
        fit_preparation(np.eye(2), ("kind", "x"), AS_IS, texts)
    with pytest.raises(BadJob, match=r'"bins" for column \'kind\', which holds text such as \'north\''):
        fit_preparation(np.eye(2), ("kind", "x"), Preparation(columns={"kind": "bins"}), texts)
    fitted = fit_preparation(np.eye(2), ("kind", "x"), AS_IS)
    with pytest.raises(BadData, match="learned on 2 columns; 3 came"):
        fitted.apply(np.eye(3))


def test_a_later_table_is_read_by_column_name_and_level_text() -> None:
    """Codes are a table's own; the texts behind them are what is meant."""
    first = Table(
        np.arange(3), ("kind", "x"), np.array([[0, 1], [1, 2], [2, 3.0]]), None, "first", {"kind": ("n", "s", "w")}
    )
    preparation = Preparation(how="none", columns={"kind": "category"})
    fitted = fit_preparation(first.features, first.columns, preparation, first.levels)
    later = Table(
        np.arange(3), ("x", "kind"), np.array([[9, 0], [8, 1], [7, 2.0]]), None, "later", {"kind": ("e", "s", "w")}
    )
    np.testing.assert_array_equal(fitted.apply_table(later), [[0, 0, 0, 9], [0, 1, 0, 8], [0, 0, 1, 7]])
    with pytest.raises(BadData, match=r"later lacks the column 'x', on which the model was trained"):
        fitted.apply_table(Table(np.arange(1), ("kind",), np.zeros((1, 1)), None, "later"))
    text = Table(np.arange(1), ("kind", "x"), np.zeros((1, 2)), None, "later", {"kind": ("n",), "x": ("none",)})
    with pytest.raises(BadData, match=r"later, column 'x': numbers were expected.*'none'"):
        fitted.apply_table(text)


def test_sentences() -> None:
    assert AS_IS.sentence() == "columns as they are"
    assert Preparation(how="scaled", columns={"a": "category"}, rows="party-unit").sentence() == (
        "numbers standardised, 1 column as categories, each party's part of a row scaled to norm 1/sqrt(q)"
    )


def test_sparse_columns_say_in_words_what_cannot_be_done_to_them() -> None:
    with pytest.raises(BadJob, match="Came: numbers standardised") as refused:
        fit_preparation(sp.csr_matrix(np.eye(3)), ("a", "b", "c"), SCALED)
    assert "Preparation(" not in str(refused.value)
    as_they_are = fit_preparation(sp.csr_matrix(np.eye(3)), ("a", "b", "c"), Preparation())
    assert as_they_are.preparation.sentence() == "columns as they are"


def test_a_probable_code_for_a_missing_value_is_told_of() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=200)
    values[:7] = -999
    (note,) = about_codes("pressure", values)
    assert "holds -999 in 7 rows" in note
    assert about_codes("pressure", np.where(values == -999, -998, values)) == []
    assert about_codes("grade", np.array([1.0, 5, 9, 9, 9, 9, 9, 9])) == []  # no gap: 9 is a grade
    values[4:7] = 0
    assert about_codes("pressure", values) == []  # in four rows


def test_numbers_of_any_size_are_standardised() -> None:
    values = np.random.default_rng(1).standard_normal(60)
    cells = np.column_stack([values * 1e-300, values * 1e300, values * 1e-14, values])
    fitted = fit_preparation(cells, ("a", "b", "c", "d"), SCALED)
    block = np.asarray(fitted.apply(cells))
    for column in range(3):
        np.testing.assert_allclose(block[:, column], block[:, 3], rtol=1e-9, atol=1e-12)


def test_the_notes_say_which_columns_must_rise_or_fall() -> None:
    chosen = Preparation(how="bins", columns={"a": "rising", "b": "falling"})
    notes = fit_preparation(np.arange(60.0).reshape(20, 3), ("a", "b", "c"), chosen).notes
    assert [note.partition(":")[0] for note in notes] == ["Column 'a' must rise", "Column 'b' must fall"]


# -- far from 1 ------------------------------------------------------------------------------------------------------


def test_a_small_spread_around_a_large_number_is_no_constant() -> None:
    fitted, block = column(1e9 + 1e-4 * np.arange(20.0))
    assert fitted.notes == () and np.ptp(block) == pytest.approx(3.295, abs=1e-2)
    strict, _ = column([0.1] * 19 + [0.1 + 2e-17], how="scaled")
    assert strict.notes == ("1 column is constant over the training rows (x).",)
    strict, block = column([0.3] * 10 + [0.1 + 0.2] * 10, how="scaled")  # which differ by a program's rounding
    assert strict.notes == ("1 column is constant over the training rows (x).",) and np.ptp(block) < 1e-15


def test_bins_and_categories_are_told_apart_by_their_names() -> None:
    fitted, _ = column(1e9 + 0.5 * np.arange(100.0), how="bins", bins=5)
    assert list(fitted.columns)[:2] == ["x < 1.00000001e+09", "x in [1.00000001e+09, 1.00000002e+09)"]
    assert len(set(fitted.columns)) == 5
    categories, _ = column([1.0000001, 1.0000002] * 10, columns={"x": "category"})
    assert list(categories.columns) == ["x=1.0000001", "x=1.0000002"]


def test_sparse_columns_far_from_1_in_size_are_scaled_and_stay_sparse() -> None:
    features = sp.csr_matrix(np.array([[300.0, 1.0, 0.0, 1e-6], [0.0, 2.0, 0.0, 0.0], [400.0, 0.0, 0.0, 3e-6]]))
    names = ("a", "b", "c", "d")
    fitted = fit_preparation(features, names, Preparation())
    found = fitted.apply(features)
    size = np.sqrt((300.0**2 + 400.0**2) / 2)
    expected = [[300 / size, 1, 0, 1 / np.sqrt(5)], [0, 2, 0, 0], [400 / size, 0, 0, 3 / np.sqrt(5)]]
    np.testing.assert_allclose(found.toarray(), expected)
    assert fitted.notes == (
        "What 2 sparse columns store is far from 1 in size, and was divided by its root mean square: a by 354, "
        "d by 2.24e-06.",
    )
    untouched = fit_preparation(features, names, Preparation(how="none"))
    assert (untouched.apply(features) != features).nnz == 0 and untouched.notes == ()
    kept = fitted_from(state_of(fitted))
    assert (kept.apply(features) != found).nnz == 0
