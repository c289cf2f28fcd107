"""The real sets, where they are at hand: their published counts, and what the loaders make of them."""

import numpy as np
import pytest

from offbeat.data.image_sets import views
from offbeat.data.load import load_dataset, load_images, load_series, load_solids
from offbeat.data.places import find_set
from offbeat.data.vertical import vertical_from_dataset

pytestmark = pytest.mark.shared


def need(name: str) -> None:
    if find_set(name) is None:
        pytest.skip(f"the real data set {name} is not at hand; its loader was not tried")


def test_uci_credit_card() -> None:
    need("uci_credit_card")
    data = vertical_from_dataset("uci_credit_card", parties=4)
    assert (data.rows, data.test_rows) == (24_000, 6_000)
    assert 88 <= sum(data.widths.values()) <= 91
    assert np.concatenate([data.y_train, data.y_test]).tolist().count(1.0) == 6_636
    assert "preparation '01'" in data.source
    standardised = vertical_from_dataset("uci_credit_card", parties=4, preparation="standardised", rows="as-is")
    assert "0/1 columns standardised too" in standardised.source
    for block in standardised.train.values():
        np.testing.assert_allclose(np.asarray(block).mean(axis=0), 0, atol=1e-10)
        np.testing.assert_allclose(np.asarray(block).std(axis=0), 1, rtol=1e-8)


def test_give_me_some_credit() -> None:
    need("give_me_some_credit")
    data = vertical_from_dataset("give_me_some_credit", parties=8, split_after_one_hot=True)
    assert (data.rows, data.test_rows) == (96_257, 24_012)
    assert 88 <= sum(data.widths.values()) <= 96
    assert data.ids_train.size + data.ids_test.size == 120_269
    plain = vertical_from_dataset("give_me_some_credit", parties=2, preparation="plain", limit_rows=1_000)
    assert sum(plain.widths.values()) == 10


def test_news20_ngrams() -> None:
    need("news20_ngrams")
    data = load_dataset("news20_ngrams_47k")
    assert data.table.features.shape == (18_846, 47_236)
    assert data.table.labels is not None
    assert data.table.labels.mean() == pytest.approx(0.512, abs=0.001)
    by_date = load_dataset("news20_ngrams_by_date")
    assert by_date.table.features.shape == (18_846, 1_403_214)
    assert by_date.table.features.nnz == 6_785_826
    assert by_date.test is not None
    assert by_date.test.sum() == 7_532
    cut = vertical_from_dataset(data, parties=8, split="mod")
    assert (cut.rows, cut.test_rows) == (15_077, 3_769)
    shares = [block.nnz for block in cut.train.values()]
    assert max(shares) < 1.5 * min(shares)


def test_regressions() -> None:
    need("sgemm_gpu")
    need("parkinsons_telemonitoring")
    sgemm = vertical_from_dataset("sgemm_gpu", parties=4)
    assert sgemm.rows + sgemm.test_rows == 241_600
    assert sum(sgemm.widths.values()) == 14
    assert abs(sgemm.y_train.mean()) < 1e-9
    voices = load_dataset("parkinsons_telemonitoring")
    assert voices.table.features.shape == (5_875, 19)
    assert voices.test is not None
    assert voices.test.mean() == pytest.approx(0.2, abs=0.05)
    assert np.count_nonzero(np.diff(voices.test.astype(int))) <= 2 * 8  # eight whole people, whose rows lie together
    high = load_dataset("parkinsons_telemonitoring_high")
    assert high.table.labels is not None
    assert set(np.unique(high.table.labels)) == {0, 1}


def test_pictures() -> None:
    need("mnist")
    need("usps")
    need("fashion_mnist")
    need("cifar10_subset")
    mnist, usps, cifar = load_images("mnist"), load_images("usps"), load_images("cifar10_subset")
    assert (mnist.x_train.shape, mnist.x_test.shape) == ((60_000, 784), (10_000, 784))
    assert np.bincount(mnist.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.x_train.mean() == pytest.approx(0.1307, abs=1e-4)
    assert (usps.x_train.shape, usps.x_test.shape) == ((7_291, 256), (2_007, 256))
    assert np.bincount(load_images("fashion_mnist").y_train).tolist() == [6000] * 10
    assert cifar.x_train.shape == (15_000, 3_072)
    assert cifar.x_train.reshape(-1, 3).mean(axis=0) == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.005)


def test_solids() -> None:
    need("modelnet10_voxel")
    solids = load_solids("modelnet10_voxel")
    assert solids.x_train.shape == (3_991, 30, 30, 30)
    assert np.bincount(solids.y_test).tolist() == [50, 100, 100, 86, 86, 100, 86, 100, 100, 100]
    seen = views(solids.x_test)
    assert seen.shape == (908, 12, 30, 30)
    assert (seen.reshape(908, -1).max(axis=1) == 0).sum() == 1  # one test grid is empty, as stored


def test_series() -> None:
    need("physionet2012_set_a")
    series = load_series("physionet2012_set_a")
    assert (series.y_train.size, series.y_test.size) == (3_200, 800)
    assert series.y_train.sum() + series.y_test.sum() == 554
    widths = [series.values_train[client].shape for client in series.clients]
    assert widths == [(3_200, 48, 9), (3_200, 48, 15), (3_200, 48, 10), (3_200, 48, 10)]
    for client in series.clients:
        values = series.stacked(client)
        assert np.isfinite(values).all()
        assert np.abs(values).max() <= 5
    units = series.masks_train["ward"][:, 0, 6:]
    assert (units == 1).all()  # the type of unit is known from the first hour
