"""Lags are counted exactly, bucket by bucket, against a slow count of the same lags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import BadInput
from offbeat.metrics.staleness import LagHistogram, bucket_label, lag_at_most


def histogram(lags):
    counted = LagHistogram()
    counted.extend(lags)
    return counted


def slow_bucket(lag):
    edges = [(0, 0), (1, 1)] + [(2**k, 2 ** (k + 1) - 1) for k in range(1, 40)]
    return next(bucket for bucket, (low, high) in enumerate(edges) if low <= lag <= high)


def test_the_first_sixteen_lags_fall_into_five_buckets():
    counted = histogram(range(16))
    assert counted.counts == (1, 1, 2, 4, 8)
    assert counted.mean == 7.5
    assert counted.largest == 15
    assert counted.number == 16


def test_nothing_counted_is_nothing():
    assert histogram([]).counts == ()
    assert histogram([]).mean == 0.0
    assert histogram([]).largest == 0


def test_times_counts_like_repeated_calls():
    once = LagHistogram()
    once.add(5, times=3)
    assert once.counts == histogram([5, 5, 5]).counts == (0, 0, 0, 3)
    assert once.mean == 5.0


def test_a_negative_lag_is_refused():
    with pytest.raises(BadInput, match="cannot be negative; -1 came"):
        LagHistogram().add(-1)


@given(st.lists(st.integers(0, 10**6), max_size=60))
def test_counts_agree_with_a_slow_count(lags):
    counted = histogram(lags)
    slow = [sum(slow_bucket(lag) == bucket for lag in lags) for bucket in range(len(counted.counts))]
    assert list(counted.counts) == slow
    assert counted.number == len(lags) == sum(slow)
    assert counted.largest == max(lags, default=0)
    assert counted.mean == pytest.approx(sum(lags) / len(lags) if lags else 0.0)


def test_labels_name_the_lags_of_a_bucket():
    assert [bucket_label(bucket) for bucket in range(6)] == ["0", "1", "2-3", "4-7", "8-15", "16-31"]


def test_lag_at_most_answers_with_a_bucket_edge():
    counts = (50, 30, 10, 6, 4)
    assert lag_at_most(counts, 0.5) == 0
    assert lag_at_most(counts, 0.8) == 1
    assert lag_at_most(counts, 0.9) == 3
    assert lag_at_most(counts, 0.99) == 15
    assert lag_at_most((), 0.5) == 0
