"""What must hold for any data: cutting loses nothing, preparing needs nobody else, ids alone decide the test rows."""

import numpy as np
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offbeat.data.align import align
from offbeat.data.encode import bin_edges
from offbeat.data.fitting import fit_preparation
from offbeat.data.holdout import held_out
from offbeat.data.matrix import cut_columns, scale_party_rows, stack_columns
from offbeat.data.preparation import Preparation
from offbeat.data.prepare import fitted_from, state_of
from offbeat.data.split import split_columns, split_rows
from offbeat.data.table import Table
from offbeat.data.vertical import vertical_from_tables

NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))  # squares of 1e-200 are zero in float64
seeds = st.integers(0, 2**32 - 1)


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 10)))
    values = draw(hnp.arrays(np.float64, shape, elements=NUMBERS))
    kept = draw(hnp.arrays(np.bool_, shape))
    return np.where(kept, values, 0.0)


@given(matrices(), st.data(), seeds, st.booleans())
def test_cut_then_rejoined_is_the_same_matrix(matrix: np.ndarray, data: st.DataObject, seed: int, sparse: bool) -> None:
    parties = data.draw(st.integers(1, matrix.shape[1]))
    how = data.draw(st.sampled_from(["equal", "mod", "random"]))
    columns = tuple(f"c{j}" for j in range(matrix.shape[1]))
    parts = split_columns(columns, parties, how, np.random.default_rng(seed))
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(matrix.shape[1]))
    cut = cut_columns(sp.csr_matrix(matrix) if sparse else matrix, parts)
    whole = stack_columns(list(cut.values()))[:, np.argsort(np.concatenate(list(parts.values())))]
    np.testing.assert_array_equal(whole.toarray() if sp.issparse(whole) else whole, matrix)


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 5), seeds, st.sampled_from(["iid", "dirichlet"]))
def test_every_row_goes_to_one_edge(rows: int, edges: int, classes: int, seed: int, how: str) -> None:
    labels = np.arange(rows, dtype=np.float64) % classes
    if edges > rows:
        return
    parts = split_rows(labels, edges, np.random.default_rng(seed), how)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(rows))
    assert min(part.size for part in parts.values()) > 0


ids_of_rows = st.lists(st.one_of(st.integers(0, 10**9), st.text("abc xyz", min_size=1).filter(str.strip)), min_size=2)


@given(ids_of_rows, seeds, st.randoms(use_true_random=False))
def test_parties_agree_on_the_test_rows_without_a_word(ids: list[object], seed: int, random: object) -> None:
    unique = list({str(i).strip(): i for i in ids}.values())
    mine = np.array(unique, dtype=object)
    theirs = np.array(random.sample(unique, len(unique)), dtype=object)  # type: ignore[attr-defined]
    chosen = {str(i).strip() for i in mine[held_out(mine, seed=seed, fraction=0.3)]}
    assert chosen == {str(i).strip() for i in theirs[held_out(theirs, seed=seed, fraction=0.3)]}
    assert len(chosen) == round(0.3 * len(unique))


def party(ids: np.ndarray, values: np.ndarray, labels: np.ndarray | None, order: np.ndarray, name: str) -> Table:
    columns = tuple(f"{name}{j}" for j in range(values.shape[1]))
    return Table(ids[order], columns, values[order], None if labels is None else labels[order], name)


FULL = Preparation(how="scaled", rows="party-unit")


@settings(max_examples=40)
@given(seeds, st.integers(8, 30), st.integers(1, 4), st.integers(1, 4))
def test_a_partys_block_depends_neither_on_row_orders_nor_on_another_partys_values(
    seed: int, rows: int, width: int, other_width: int
) -> None:
    rng = np.random.default_rng(seed)
    ids, labels = rng.permutation(1000)[:rows], np.arange(rows) % 2
    values, others = rng.normal(size=(rows, width)), rng.normal(size=(rows, other_width))
    identity = np.arange(rows)
    first = vertical_from_tables(
        {"bank": party(ids, values, labels, identity, "b"), "shop": party(ids, others, None, identity, "s")},
        preparation=FULL, task="multiclass", test_fraction=0.25,
    )  # fmt: skip
    second = vertical_from_tables(
        {
            "bank": party(ids, values, labels, rng.permutation(rows), "b"),
            "shop": party(ids, rng.normal(size=(rows, 3)) * 100, None, rng.permutation(rows), "s"),
        },
        preparation=FULL, task="multiclass", test_fraction=0.25,
    )  # fmt: skip
    assert first.digest == second.digest
    for one, two in ((first.train, second.train), (first.test, second.test)):
        np.testing.assert_allclose(one["bank"], two["bank"], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(first.ids_test, second.ids_test)
    np.testing.assert_array_equal(first.y_train, second.y_train)


@given(st.lists(st.permutations(range(12)), min_size=1, max_size=4), st.data())
def test_joined_rows_carry_the_same_id_everywhere(orders: list[list[int]], data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 12)) for _ in orders]
    tables = {
        f"p{i}": Table(np.array(order[:size]), ("x",), np.array(order[:size], float)[:, None], None, f"p{i}")
        for i, (order, size) in enumerate(zip(orders, sizes, strict=True))
    }
    shared = set.intersection(*(set(table.ids.tolist()) for table in tables.values()))
    if not shared:
        return
    joined = align(tables)
    assert joined.ids.tolist() == sorted(shared)
    for name, table in tables.items():
        np.testing.assert_array_equal(table.ids[joined.rows[name]], joined.ids)


HOWS = st.sampled_from(["auto", "bins"])


def with_holes(matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Some cells empty, none of the first two rows, which differ in every column."""
    matrix = np.vstack([np.zeros(matrix.shape[1]), np.ones(matrix.shape[1]), matrix])
    holes = rng.random(matrix.shape) < 0.2
    holes[:2] = False
    return np.where(holes, np.nan, matrix)


@given(matrices(), seeds, HOWS, st.booleans())
def test_preparing_columns_one_by_one_is_preparing_them_together(
    matrix: np.ndarray, seed: int, how: str, scale_indicators: bool
) -> None:
    rng = np.random.default_rng(seed)
    matrix = with_holes(matrix, rng)
    columns = tuple(f"c{j}" for j in range(matrix.shape[1]))
    preparation = Preparation(how=how, bins=3, scale_indicators=scale_indicators)  # type: ignore[arg-type]
    together = fit_preparation(matrix, columns, preparation)
    alone = [fit_preparation(matrix[:, [j]], columns[j : j + 1], preparation) for j in range(matrix.shape[1])]
    later = with_holes(rng.normal(size=(5, matrix.shape[1])) * 100, rng)
    np.testing.assert_array_equal(
        together.apply(later), np.hstack([one.apply(later[:, [j]]) for j, one in enumerate(alone)])
    )
    assert list(together.columns) == [name for one in alone for name in one.columns]


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(2, 30), st.integers(1, 4)), elements=st.floats(-1e150, 1e150)),
    seeds,
    HOWS,
)
def test_whatever_the_scale_prepared_rows_are_finite_and_bounded(matrix: np.ndarray, seed: int, how: str) -> None:
    rng = np.random.default_rng(seed)
    matrix = with_holes(matrix, rng)
    columns = tuple(f"c{j}" for j in range(matrix.shape[1]))
    fitted = fit_preparation(matrix, columns, Preparation(how=how))  # type: ignore[arg-type]
    train = fitted.apply(matrix)
    assert np.isfinite(train).all()
    assert np.abs(train).max() <= np.sqrt(matrix.shape[0]) + 1e-6
    kept = fitted_from(state_of(fitted))
    np.testing.assert_array_equal(kept.apply(matrix), train)
    assert kept.columns == fitted.columns


@given(hnp.arrays(np.float64, st.integers(1, 60), elements=st.integers(-3, 9).map(float)), st.integers(2, 8))
def test_bins_are_few_ordered_and_never_empty(values: np.ndarray, bins: int) -> None:
    edges = bin_edges(values, bins)
    assert edges.size < bins
    assert (np.diff(edges) > 0).all()
    filled = np.bincount(np.searchsorted(edges, values, side="right"), minlength=edges.size + 1)
    assert (filled > 0).all()


@given(st.lists(matrices(), min_size=1, max_size=4), st.booleans())
def test_no_row_is_longer_than_one_after_scaling(blocks: list[np.ndarray], pooled: bool) -> None:
    rows = min(block.shape[0] for block in blocks)
    parties = {f"p{i}": block[:rows] for i, block in enumerate(blocks)}
    scaled = scale_party_rows(parties, "pooled-unit" if pooled else "party-unit")
    norms = np.sqrt(sum((np.asarray(block) ** 2).sum(axis=1) for block in scaled.values()))
    assert (norms <= 1 + 1e-9).all()
    empty = np.array([all(not block[i].any() for block in parties.values()) for i in range(rows)])
    assert (norms[empty] == 0).all()
    if pooled:
        np.testing.assert_allclose(norms[~empty], 1, rtol=1e-9)
