"""The schedule: every pass covers every row once, any block is known at once, blocks converge like single rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadJob
from offbeat.learning import central
from offbeat.learning.central_loops import BatchSolver
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2
from offbeat.learning.sampling import Schedule, generator_state, restore_generator

SIZES = {"rows": st.integers(1, 2000), "batch": st.integers(1, 300), "seed": st.integers(0, 2**62)}


def one_pass(schedule, which):
    first = which * schedule.blocks_a_pass
    return [schedule.block(number) for number in range(first, first + schedule.blocks_a_pass)]


@settings(max_examples=200, deadline=None)
@given(**SIZES)
def test_each_pass_visits_each_row_once(rows, batch, seed):
    schedule = Schedule(rows, batch, seed)
    for which in range(3):
        seen, sizes = np.zeros(rows, dtype=int), []
        for start, stop in one_pass(schedule, which):
            seen[start:stop] += 1
            sizes.append(stop - start)
        assert np.all(seen == 1)
        assert min(sizes) >= 1 and max(sizes) <= batch
        if rows > batch >= 4:
            nominal = rows / (schedule.blocks_a_pass - 0.5)
            assert min(sizes) >= np.floor(nominal / 2)
            assert len(sizes) == np.ceil(rows / batch + 0.5)


@settings(max_examples=60, deadline=None)
@given(**SIZES, numbers=st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_random_access_equals_one_after_the_other(rows, batch, seed, numbers):
    """Whoever forgot a pass, or never came by, knows it as well as who went through all."""
    in_order, jumping = Schedule(rows, batch, seed), Schedule(rows, batch, seed)
    expected = [in_order.block(number) for number in range(max(numbers) + 1)]
    assert [jumping.block(number) for number in numbers] == [expected[number] for number in numbers]


def test_exact_blocks():
    assert one_pass(Schedule(3, 5, 1), 0) == [(0, 3)]
    assert sorted(one_pass(Schedule(7, 3, 1), 0)) == [(0, 3), (3, 6), (6, 7)]
    assert one_pass(Schedule(1, 1, 1), 7) == [(0, 1)]
    blocks = sorted(one_pass(Schedule(100, 40, 1), 0))  # 3 blocks of 40: the two at the ends are 60 together
    assert len(blocks) == 3 and blocks[1][1] - blocks[1][0] == 40
    assert 20 <= blocks[0][1] <= 40


def test_passes_differ_in_cuts_and_order():
    schedule = Schedule(1000, 64, 0)
    first, second = one_pass(schedule, 0), one_pass(schedule, 1)
    assert {start for start, _ in first} & {start for start, _ in second} == {0}
    assert [start for start, _ in first] != sorted(start for start, _ in first)


def test_the_seed_alone_decides():
    assert one_pass(Schedule(1000, 64, 5), 3) == one_pass(Schedule(1000, 64, 5), 3)
    assert one_pass(Schedule(1000, 64, 5), 3) != one_pass(Schedule(1000, 64, 6), 3)


def test_a_long_run_remembers_a_few_passes_alone():
    schedule = Schedule(1000, 64, 0)
    for number in range(100 * schedule.blocks_a_pass):
        schedule.block(number)
    assert len(schedule._passes) <= 4


@pytest.mark.parametrize(("rows", "batch"), [(0, 4), (4, 0)])
def test_empty_is_refused(rows, batch):
    with pytest.raises(BadJob, match="at least one row"):
        Schedule(rows, batch, 0)


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.Philox, np.random.MT19937])
def test_a_generator_goes_on_from_its_written_state(bits):
    rng, other = (np.random.Generator(bits(seed)) for seed in (1, 2))
    rng.random(13)
    restore_generator(other, generator_state(rng))
    assert np.array_equal(rng.random(100), other.random(100))


def problem():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((603, 12))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X @ rng.standard_normal(12) + 0.3 * rng.standard_normal(603) > 0, 1.0, -1.0)
    return X, y


@pytest.mark.parametrize("method", ["svrg", "saga"])
def test_blocks_converge_like_uniform_rows(method):
    """603 rows are no multiple of 16: rows that were never visited would leave SAGA stuck above 1e-6."""
    X, y = problem()
    _, best = central.optimum(X, y, LOGISTIC, 1e-3)

    def gap_after(make_batches):
        gaps = []
        for seed in range(3):
            w = central.run(X, y, LOGISTIC, L2, 1e-3, method, 8.0, make_batches(seed))
            gaps.append(central.objective(X, y, w, LOGISTIC, L2, 1e-3) - best)
        return max(gaps)

    def blocks(seed):
        schedule = Schedule(603, 16, seed)
        for which in range(30):
            yield None
            yield from one_pass(schedule, which)

    def single_rows(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            yield None
            for _ in range(603):
                i = int(rng.integers(603))
                yield i, i + 1

    assert gap_after(blocks) < 1e-9
    if method == "svrg":
        assert gap_after(blocks) < 10.0 * max(gap_after(single_rows), 1e-12)


@pytest.mark.parametrize("batch", [1, 2, 5, 16, 100, 603])
def test_every_row_of_a_pass_counts_as_much_as_every_other(batch):
    """Steps so short that the gradient hardly changes within a pass: together they follow the gradient of all rows."""
    X, y = problem()
    solver = BatchSolver(X, y, LOGISTIC, L2, 1e-3, "sgd", batch, np.random.default_rng(3))
    eta = 1e-7
    solver.one_pass(eta)
    whole = Schedule(603, batch, 0).whole
    gradient = X.T @ LOGISTIC.derivative(np.zeros(603), y) / 603
    np.testing.assert_allclose(solver.weights(), -eta * 603 / whole * gradient, rtol=1e-3, atol=1e-10)
