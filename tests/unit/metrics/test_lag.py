"""Lags are counted exactly, bucket by bucket, against a slow count of the same lags."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.metrics.lag import Lags, bucket_label


def counted(lags):
    return Lags.counted(np.bincount(lags).tolist() if lags else [])


def slow_bucket(lag):
    edges = [(0, 0), (1, 1)] + [(2**k, 2 ** (k + 1) - 1) for k in range(1, 40)]
    return next(bucket for bucket, (low, high) in enumerate(edges) if low <= lag <= high)


def test_the_first_sixteen_lags_fall_into_five_buckets():
    assert counted(list(range(16))) == Lags(16, 7.5, 15, (1, 1, 2, 4, 8))


def test_nothing_counted_is_nothing():
    assert counted([]) == Lags() == Lags.counted([0, 0]) == Lags.bucketed([0] * 40, 0, 0)


def test_what_a_party_kept_in_buckets_loses_only_its_empty_end():
    assert Lags.bucketed([2, 0, 3, 0, 0], 8, 3) == Lags(5, 1.6, 3, (2, 0, 3))


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_counts_agree_with_a_slow_count(lags):
    found = counted(lags)
    slow = [sum(slow_bucket(lag) == bucket for lag in lags) for bucket in range(len(found.histogram))]
    assert list(found.histogram) == slow
    assert found.number == len(lags) == sum(slow)
    assert found.most == max(lags, default=0)
    assert found.mean == pytest.approx(sum(lags) / len(lags) if lags else 0.0)


def test_labels_name_the_lags_of_a_bucket():
    assert [bucket_label(bucket) for bucket in range(6)] == ["0", "1", "2-3", "4-7", "8-15", "16-31"]
