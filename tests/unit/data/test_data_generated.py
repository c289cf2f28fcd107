"""Generated sets: planted models, shapes, balance; and how real ones are looked for."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from offbeat.data import places
from offbeat.data.image_sets import views
from offbeat.data.load import dataset_names, describe_datasets, load_dataset, load_images, load_series, load_solids
from offbeat.data.shaped import SHAPES, shaped
from offbeat.data.synthetic import credit_like, digits_like
from offbeat.data.synthetic_embeddings import icu_like, solids_like
from offbeat.errors import BadData


@pytest.mark.parametrize("loss", ["logistic", "ridge"])
def test_known_sets_have_a_planted_model(loss: str) -> None:
    table = load_dataset(f"known-{loss}", seed=4).table
    features, labels = np.asarray(table.features), table.labels
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0)
    fitted = features @ np.linalg.lstsq(features, labels, rcond=None)[0]
    if loss == "ridge":
        assert np.std(fitted - labels) == pytest.approx(0.1, rel=0.2)
    else:
        assert {*labels.tolist()} == {-1.0, 1.0} and np.mean(np.sign(fitted) == labels) > 0.7


def test_credit_like_has_the_shape_of_credit() -> None:
    data = credit_like(4_000, seed=1)
    columns = {name: np.asarray(data.table.features)[:, j] for j, name in enumerate(data.table.columns)}
    assert len(columns) == 23
    assert data.table.labels is not None
    assert data.table.labels.mean() == pytest.approx(0.2212, abs=0.001)
    assert np.corrcoef(columns["BILL_AMT1"], columns["BILL_AMT2"])[0, 1] > 0.8
    assert np.corrcoef(columns["PAY_0"], columns["PAY_2"])[0, 1] > 0.3
    assert np.corrcoef(columns["PAY_0"], data.table.labels)[0, 1] > 0.2
    assert set(np.unique(columns["PAY_0"])) <= set(range(-2, 9))
    assert set(np.unique(columns["SEX"])) == {1, 2}
    again = credit_like(4_000, seed=1)
    np.testing.assert_array_equal(again.table.features, data.table.features)
    assert not np.array_equal(credit_like(4_000, seed=2).table.features, data.table.features)


@pytest.mark.parametrize("name", SHAPES)
def test_shaped_sets_have_their_shape(name: str) -> None:
    scale = {"rcv1-shaped": 0.003, "url-shaped": 0.001, "webspam-shaped": 0.0005}.get(name, 0.02)
    data, shape = shaped(name, scale, seed=7), SHAPES[name]
    features, labels = data.table.features, data.table.labels
    assert labels is not None
    assert data.name.endswith("-shaped")
    assert "generated" in data.about
    assert features.shape[0] == round(shape.rows * scale)
    assert features.nnz / features.shape[0] == pytest.approx(shape.row_nonzeros, rel=0.1)
    assert features.has_sorted_indices
    assert features.has_canonical_format
    np.testing.assert_allclose(features.multiply(features).sum(axis=1), 1.0, rtol=1e-12)
    frequency = np.bincount(features.indices, minlength=features.shape[1])
    assert frequency[: frequency.size // 20].sum() > 0.2 * frequency.sum()  # a twentieth of the columns, the busy ones
    if shape.positive is not None:
        assert (labels > 0).mean() == pytest.approx(shape.positive, abs=0.06)
        assert set(np.unique(labels)) == {-1, 1}
    else:
        assert labels.mean() == pytest.approx(-3.5, abs=0.1)


def test_shaped_sets_can_be_learned_and_repeat() -> None:
    from sklearn.linear_model import LogisticRegression

    data = shaped("rcv1-shaped", 0.006, seed=0)
    features, labels = data.table.features, data.table.labels
    model = LogisticRegression(C=3.0).fit(features[:3_000], labels[:3_000])
    assert model.score(features[3_000:], labels[3_000:]) > 0.75
    again = shaped("rcv1-shaped", 0.006, seed=0).table.features
    assert (again != features).nnz == 0


def test_pictures_solids_and_series() -> None:
    pictures = digits_like(300, seed=1, side=16)
    assert pictures.x_train.shape == (300, 256)
    assert pictures.x_train.dtype == np.float32
    assert (pictures.x_train.min(), pictures.x_train.max()) == (0.0, 1.0)
    solids = solids_like(20, seed=1)
    seen = views(solids.x_train)
    assert seen.shape == (20, 12, 30, 30)
    assert (seen >= 0).all()
    assert (seen <= 1).all()
    series = icu_like(100, seed=1)
    assert series.clients == ("monitor", "chemistry", "blood", "ward")
    assert series.stacked("blood").shape == (80, 48, 4)
    assert series.stacked("blood", test=True).shape == (20, 48, 4)
    assert np.isfinite(series.stacked("monitor")).all()


def test_views_of_one_cube() -> None:
    grid = np.zeros((1, 30, 30, 30), dtype=np.uint8)
    grid[0, 6, 2, 3] = 1
    seen = views(grid)
    assert seen[0, 0, 2, 3] == pytest.approx(24 / 30)  # six cells away from the first end
    assert seen[0, 1, 2, 3] == pytest.approx(7 / 30)
    assert seen[0, 2, 2, 3] == pytest.approx(1 / 30)
    assert seen[0, 3].sum() == 0  # not in the middle third
    assert seen[0, 4, 6, 3] == pytest.approx(28 / 30)
    assert np.count_nonzero(seen) == 9


def test_series_are_filled_and_scaled_from_training_stays_alone() -> None:
    from offbeat.data.series import build_series

    nan = np.nan
    raw = {"a": np.array([[[nan], [1], [nan]], [[3], [nan], [3]], [[100], [nan], [nan]]], dtype=np.float32)}
    test = np.array([False, False, True])
    series = build_series("s", raw, {"a": ("x",)}, np.array([0, 1, 1]), np.arange(3), test, "made up")
    spread = np.sqrt(0.96)  # of 1, 1, 3, 3, 3 around 2.2
    np.testing.assert_allclose(series.values_train["a"][0, :, 0], [0, -1.2 / spread, -1.2 / spread], rtol=1e-6)
    np.testing.assert_array_equal(series.masks_train["a"][0, :, 0], [0, 1, 0])
    np.testing.assert_array_equal(series.values_test["a"][0, :, 0], [5, 5, 5])


def test_names_and_factors() -> None:
    with pytest.raises(BadData, match="'uci_credit_card'"):
        load_dataset("uci_credit_cards")
    with pytest.raises(BadData, match="'url-shaped'"):
        load_dataset("url-shape")
    with pytest.raises(BadData, match=r"in \(0, 1\]"):
        load_dataset("url-shaped@2")
    with pytest.raises(BadData, match=r"'webspam-shaped@0\.23' fits"):
        load_dataset("webspam-shaped")
    with pytest.raises(BadData, match="Only generated sets"):
        load_dataset("mnist@0.5")
    with pytest.raises(BadData, match="load_solids"):
        load_dataset("modelnet10_voxel")
    for load in (load_images, load_solids, load_series):
        with pytest.raises(BadData, match="There "):
            load("nothing")
    assert "news20_ngrams_47k" in dataset_names()


def test_a_missing_set_says_where_it_was_sought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadData) as refused:
        load_dataset("uci_credit_card", tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert "credit-like" in str(refused.value)
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "there"))
    assert places.places_to_look()[0] == tmp_path / "there"
    assert places.places_to_look(tmp_path) == [tmp_path]


def test_shared_data_is_found_above_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shared" / "data" / "usps"
    folder.mkdir(parents=True)
    (folder / "usps.h5").write_bytes(b"not really")
    inner = tmp_path / "checkout" / "src"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    monkeypatch.delenv(places.VARIABLE, raising=False)
    assert places.find_set("usps") == folder
    with pytest.raises(BadData, match=hashlib.sha256(b"not really").hexdigest()):
        places.set_folder("usps")


def test_described_sets(tmp_path: Path) -> None:
    rows = {row.name: row for row in describe_datasets(tmp_path)}
    assert rows["uci_credit_card"].where == "not found"
    assert rows["credit-like"].where == "generated"
    assert rows["credit-like"].stands_in_for == "uci_credit_card, give_me_some_credit"
    assert set(places.SHA256) <= set(rows)
