"""Vertical and horizontal problems put together from tables, arrays and named sets."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from offbeat.data.dataset import DataSet
from offbeat.data.horizontal import horizontal_from_arrays, horizontal_from_dataset
from offbeat.data.labels import encode_labels
from offbeat.data.preparation import Preparation
from offbeat.data.synthetic import credit_like
from offbeat.data.table import read_table, table_from_arrays
from offbeat.data.vertical import vertical_from_arrays, vertical_from_dataset, vertical_from_tables
from offbeat.errors import BadData, BadJob

RNG = np.random.default_rng(5)
N = 60
IDS = RNG.permutation(np.arange(100, 100 + N))
AGE, SPEND, CALLS = RNG.normal(40, 9, N), RNG.lognormal(3, 1, N), RNG.poisson(4, N)
REGION = RNG.choice(["north", "south", "west"], N)
DEFAULT = (AGE + RNG.normal(0, 5, N) < 38).astype(int)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three parties' files, each with its own order of rows and a few strangers."""
    parts = {
        "bank": pd.DataFrame({"customer": IDS, "age": AGE, "default": DEFAULT}),
        "shop": pd.DataFrame({"customer": IDS, "spend": SPEND, "region": REGION}),
        "telecom": pd.DataFrame({"customer": IDS, "calls": CALLS}),
    }
    for seed, (name, frame) in enumerate(parts.items()):
        stranger = frame.iloc[:2].assign(customer=[9000 + seed, 9100 + seed])
        pd.concat([frame, stranger]).sample(frac=1, random_state=seed).to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def tables(files: Path) -> dict[str, object]:
    return {
        "bank": read_table(files / "bank.csv", id="customer", label="default"),
        "shop": read_table(files / "shop.csv", id="customer"),
        "telecom": read_table(files / "telecom.csv", id="customer"),
    }


def test_three_files_become_one_problem(files: Path) -> None:
    data = vertical_from_tables(
        tables(files), preparation=Preparation(how="none", columns={"region": "category"}), seed=1
    )
    assert data.names == ("bank", "shop", "telecom")
    assert data.labels_at == ("bank",)
    assert data.classes == (0, 1)
    assert (data.rows, data.test_rows) == (48, 12)
    assert data.widths == {"bank": 1, "shop": 4, "telecom": 1}
    assert list(data.columns["shop"]) == ["spend", "region=north", "region=south", "region=west"]
    assert len(data.notes) == 3
    assert "bank: 2 of 62 ids" in data.notes[0]
    truth = pd.DataFrame(
        {"age": AGE, "spend": SPEND, "calls": CALLS, "region": REGION, "y": 2.0 * DEFAULT - 1}, index=IDS
    )
    for ids, blocks, y in ((data.ids_train, data.train, data.y_train), (data.ids_test, data.test, data.y_test)):
        expected = truth.loc[ids]
        np.testing.assert_allclose(blocks["bank"][:, 0], expected["age"], rtol=1e-12)
        np.testing.assert_allclose(blocks["shop"][:, 0], expected["spend"], rtol=1e-12)
        np.testing.assert_array_equal(blocks["shop"][:, 2], expected["region"] == "south")
        np.testing.assert_array_equal(blocks["telecom"][:, 0], expected["calls"])
        np.testing.assert_array_equal(y, expected["y"])


def test_given_test_ids_and_given_label_holders(files: Path) -> None:
    chosen = [int(i) for i in IDS[:7]]
    options = {"preparation": Preparation(how="none", columns={"region": "category"})}
    data = vertical_from_tables(tables(files), labels_at=("bank", "shop"), test_ids=chosen, **options)
    assert sorted(data.ids_test.tolist()) == sorted(chosen)
    assert data.labels_at == ("bank", "shop")
    assert "shop brought no labels and is given those of bank." in data.notes


def test_labels_that_disagree_or_are_nowhere(files: Path) -> None:
    ours = tables(files)
    shop = table_from_arrays(SPEND[:, None], ids=IDS, labels=1 - DEFAULT, name="shop.csv")
    with pytest.raises(BadData, match=r"bank and shop disagree on 60 of 60 labels: [01] against [\w.-]+ at row"):
        vertical_from_tables({"bank": ours["bank"], "shop": shop})
    with pytest.raises(BadData, match="No party brought labels"):
        vertical_from_tables({"telecom": ours["telecom"]})


def test_arrays_sparse_matrices_and_frames_together() -> None:
    blocks = {
        "bank": AGE[:, None],
        "shop": sp.csr_matrix(CALLS[:, None]),
        "telecom": pd.DataFrame({"spend": SPEND, "region": REGION}),
    }
    preparation = {"telecom": Preparation(how="none", columns={"region": "category"})}
    data = vertical_from_arrays(blocks, np.where(DEFAULT, "yes", "no"), preparation=preparation)
    assert data.classes == ("no", "yes")
    assert data.rows == N
    assert data.test_rows == 0
    assert data.test["bank"].shape == (0, 1)
    assert sp.issparse(data.train["shop"])
    assert data.widths["telecom"] == 4
    np.testing.assert_array_equal(data.train["bank"][:, 0], AGE)
    masked = vertical_from_arrays({"bank": AGE[:, None]}, DEFAULT, test_mask=np.arange(N) < 10)
    np.testing.assert_array_equal(masked.test["bank"][:, 0], AGE[:10])


BAD_ARRAYS = {
    "row counts": (({"a": np.ones((3, 1)), "b": np.ones((4, 1))}, [0, 1, 1]), {}, "a: 3, b: 4, y: 3"),
    "one class": (({"a": np.eye(3)}, [1, 1, 1]), {}, r"two classes or more; y has 1: 1 \(3 rows\)"),
    "a number": (({"a": np.eye(3)}, [1.5, 2.0, 7.0]), {}, r"has 3 different values, with digits.*1.5 \(1 row\), 2 "),
    "many numbers": (
        ({"a": np.eye(101)}, np.arange(101)),
        {},
        r"101 different values, more than 100: 0 \(1 row\)",
    ),
    "a class of test rows": (
        ({"a": np.eye(5)}, ["u", "v", "w", "u", "v"]),
        {"test_mask": np.arange(5) == 2},
        r"lack one of the 3 classes of y: 'w', with 1 row\(s\) in all, is in the test rows only",
    ),
    "numbers taken for classes": (
        ({"a": np.eye(5)}, [0, 1, 2, 3, 7]),
        {"test_mask": np.arange(5) > 2, "task": "auto"},
        r"lack 2 of the 5 classes of y: '3.0', .* If the labels are numbers to be predicted, .* task = \"regression\"",
    ),
    "nan": (({"a": np.array([[1.0], [np.nan]])}, [0, 1]), {}, r"party 'a', column 'x0', row 2: .*empty cell"),
    "label nan": (({"a": np.eye(2)}, [0, np.nan]), {}, "row 2"),
    "no parties": (({}, [0, 1]), {}, "No party"),
    "holder": (({"bank": np.eye(2)}, [0, 1]), {"labels_at": ["bnak"]}, "'bank'"),
    "preparation": (({"bank": np.eye(2)}, [0, 1]), {"preparation": {"bnak": Preparation()}}, "'bank'"),
    "mask": (({"bank": np.eye(2)}, [0, 1]), {"test_mask": [0, 1]}, "2 booleans"),
    "all test": (({"bank": np.eye(2)}, [0, 1]), {"test_mask": [True, True]}, "none is left"),
    "class gone": (({"bank": np.eye(3)}, [0, 1, 1]), {"test_mask": [True, False, False]}, "lack one of the 2 classes"),
    "task": (({"bank": np.eye(2)}, [0, 1]), {"task": "regresion"}, "'regression'"),
    "flat y": (({"bank": np.eye(2)}, np.eye(2)), {}, "one label per row"),
    "text": (({"bank": pd.DataFrame({"r": ["u", "v"]})}, [0, 1]), {}, "'r'"),
    "one-hot": (
        ({"bank": np.eye(2)}, [0, 1]),
        {"preparation": Preparation(columns={"x7": "category"})},
        "no party has",
    ),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(case: str) -> None:
    arguments, options, expected = BAD_ARRAYS[case]
    with pytest.raises((BadData, BadJob), match=expected):
        vertical_from_arrays(*arguments, **options)


def test_labels_as_numbers() -> None:
    assert encode_labels(np.array([2.0, 1.0]), "classification", "y")[1] == (1, 2)
    y, classes = encode_labels(np.array(["c", "a", "b", "a"]), "multiclass", "y")
    assert (y.tolist(), classes) == ([2, 0, 1, 0], ("a", "b", "c"))
    assert encode_labels(np.array([1.5, 2.0]), "regression", "y") == (pytest.approx([1.5, 2.0]), None)
    with pytest.raises(BadData, match="Regression needs numbers"):
        encode_labels(np.array(["a"], dtype=object), "regression", "y")


CREDIT = credit_like(600, seed=2)


def test_named_set_is_cut_into_raw_columns() -> None:
    data = vertical_from_dataset(CREDIT, parties=3)
    assert data.names == data.labels_at == ("bank", "shop", "telecom")
    assert (data.rows, data.test_rows) == (480, 120)
    assert "generated" in data.source
    assert "preparation '01'" in data.source
    norms = {party: np.linalg.norm(np.asarray(block), axis=1) for party, block in data.train.items()}
    for norm in norms.values():
        np.testing.assert_allclose(norm, 1 / np.sqrt(3), rtol=1e-12)


def test_splitting_after_one_hot_changes_the_owners_and_not_the_values() -> None:
    early = vertical_from_dataset(CREDIT, parties=4, rows="as-is", preparation="standardised")
    late = vertical_from_dataset(CREDIT, parties=4, rows="as-is", preparation="standardised", split_after_one_hot=True)
    pooled = [np.hstack([data.train[name] for name in data.names]) for data in (late, early)]
    np.testing.assert_allclose(*pooled, rtol=1e-13, atol=1e-13)
    assert [c for p in late.names for c in late.columns[p]] == [c for p in early.names for c in early.columns[p]]
    assert max(late.widths.values()) - min(late.widths.values()) == 1


def test_columns_by_name_limit_and_own_preparation() -> None:
    months = {"bank": list(CREDIT.table.columns[:5]), "shop": list(CREDIT.table.columns[5:])}
    data = vertical_from_dataset(CREDIT, split=months, limit_rows=200, preparation=Preparation(how="scaled"))
    assert data.names == ("bank", "shop")
    assert data.widths == {"bank": 5, "shop": 18}
    assert data.rows + data.test_rows == 200
    assert "200 of its rows" in data.source
    with pytest.raises(BadJob, match="'standardised'"):
        vertical_from_dataset(CREDIT, preparation="standardized")


def test_regression_labels_are_centred_by_their_training_mean() -> None:
    table = table_from_arrays(np.random.default_rng(0).random((50, 4)), labels=np.linspace(100, 110, 50))
    data = vertical_from_dataset(DataSet("t", "made up", table, "regression", centre_labels=True), parties=2)
    assert abs(data.y_train.mean()) < 1e-12
    assert data.y_offset == pytest.approx(105, abs=1)
    assert "centred" in data.notes[-1]


def test_multiclass_pictures_keep_their_official_test_rows() -> None:
    data = vertical_from_dataset("digits-like@0.1", parties=7)
    assert (data.rows, data.test_rows) == (300, 50)
    assert data.task == "multiclass"
    assert data.classes == tuple(range(10))
    assert sum(data.widths.values()) == 784


def test_horizontal_data_covers_all_rows() -> None:
    data = horizontal_from_dataset("digits-like@0.1", 5, "dirichlet", seed=3)
    assert data.names == ("edge1", "edge2", "edge3", "edge4", "edge5")
    assert sum(data.rows.values()) == 300
    assert data.x_test.shape == (50, 784)
    assert data.classes is not None
    few = horizontal_from_dataset("digits-like@0.1", 5, limit_rows=100)
    assert sum(few.rows.values()) == 100
    with pytest.raises(BadData, match="no test rows of its own"):
        horizontal_from_dataset("known-logistic", 2)
    with pytest.raises(BadData, match="columns"):
        horizontal_from_arrays(np.eye(3), [0, 1, 2], np.eye(2), [0, 1], 2)


def test_a_class_that_is_lost_in_the_join_is_laid_to_the_ids() -> None:
    labels = np.repeat([0, 1], 20)
    bank = table_from_arrays(np.zeros((40, 1)), ids=np.arange(40), labels=labels, name="bank.csv")
    shop = table_from_arrays(np.zeros((5, 1)), ids=np.arange(5), name="shop.csv")
    with pytest.raises(BadData, match=r"5 of its 40 rows whose ids all parties have.*enough ids"):
        vertical_from_tables({"bank": bank, "shop": shop})


def test_a_wrong_column_is_told_of_with_its_party() -> None:
    blocks = {"bank": np.zeros((4, 1)), "shop": np.zeros((4, 1))}
    with pytest.raises(BadJob, match="Party 'shop': prepare names column 'regoin'"):
        vertical_from_arrays(blocks, [0, 1, 0, 1], preparation={"shop": Preparation(columns={"regoin": "category"})})


def test_measurements_that_are_treated_as_categories_are_a_warning():
    rng = np.random.default_rng(0)
    own = {
        "bank": pd.DataFrame({"x": np.round(rng.normal(size=60), 1), "k": np.arange(60) % 3}),
        "shop": rng.normal(size=(60, 2)),
    }
    prepare = {"bank": Preparation(columns={"x": "category", "k": "category"}), "shop": "auto"}
    (told,) = vertical_from_arrays(own, np.arange(60) % 2, preparation=prepare).warnings
    assert told.startswith("bank: column 'x' is treated as a category and has") and '"scaled" or "bins"' in told
    assert vertical_from_arrays(own, np.arange(60) % 2).warnings == ()


@pytest.mark.parametrize(
    ("labels", "task", "said"),
    [
        ([0.0, 1.0] * 6, "classification", ""),
        ([1.0, 2.0, 3.0] * 4, "multiclass", "3 whole numbers and are taken as classes"),
        ([0.5, 1.0, 2.5] * 4, "regression", "numbers and are predicted as such"),
        (["a", "b", "c"] * 4, "multiclass", ""),
    ],
)
def test_auto_is_what_labels_look_like_and_is_told(labels, task, said) -> None:
    features = np.arange(12.0)[:, None]
    tables = {
        "bank": table_from_arrays(features, labels=np.array(labels, dtype=object if labels[0] == "a" else float)),
        "shop": table_from_arrays(features % 5),
    }
    data = vertical_from_tables(tables, test_fraction=0.0, task="auto")
    assert data.task == task
    assert [note for note in data.notes if note.startswith("The labels")] == ([data.notes[0]] if said else [])
    assert said in " ".join(data.notes)


def test_classes_that_are_probably_mistakes_are_told_of() -> None:
    labels = np.array(["Yes", "YES", "no", "?"] * 3, dtype=object)
    tables = {"bank": table_from_arrays(np.arange(12.0)[:, None], labels=labels)}
    tables["shop"] = table_from_arrays(np.arange(12.0)[:, None] % 5)
    spelled, unknown = vertical_from_tables(tables, test_fraction=0.0).warnings
    assert "'YES', 'Yes'" in spelled and "'?'" in unknown
