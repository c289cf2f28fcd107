"""Wrong input: each mistake is answered by one typed paragraph that says what was expected, what came, and where.

The words are looked for in part; that there is no traceback of numpy, pandas or scikit-learn is the type's to show.
"""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import offbeat
from offbeat import PartyColumns, VerticalClassifier, VerticalRegressor
from offbeat.data.holdout import held_out
from offbeat.errors import BadData, BadInput, BadJob, OutOfRange
from offbeat.jobs.reading import read_job
from offbeat.run.parties import training_of

ROWS = 60
rng = np.random.default_rng(0)
FRAMES = {
    "bank": pd.DataFrame({"income": rng.normal(size=ROWS), "age": rng.normal(size=ROWS)}),
    "shop": pd.DataFrame({"spend": rng.normal(size=ROWS)}),
    "telecom": pd.DataFrame({"calls": rng.normal(size=ROWS)}),
}
ARRAYS = {name: frame.to_numpy() for name, frame in FRAMES.items()}
WHOLE = pd.concat(FRAMES.values(), axis=1)
Y = np.arange(ROWS) % 2
ONES = np.ones(ROWS)


def first(value, rest=1.0):
    """A column whose first cell is this one."""
    return np.r_[value, np.full(ROWS - 1, rest)]


def income(cells):
    return {**FRAMES, "bank": FRAMES["bank"].assign(income=cells)}


def shop(block):
    return {**ARRAYS, "shop": block}


def classify(X=FRAMES, y=Y, sample_weight=None, **options):
    return VerticalClassifier(**{"passes": 2, "target": None, **options}).fit(X, y, sample_weight)


def regress(y, X=FRAMES, exposure=None, **options):
    return VerticalRegressor(**{"passes": 2, "target": None, **options}).fit(X, y, exposure=exposure)


def is_a_paragraph(problem):
    """At least a sentence, on one line but where scikit-learn prescribes the words, and nobody's internals."""
    text = str(problem)
    assert len(text) > 25
    assert text.rstrip().endswith((".", "?"))
    for leak in (
        "Traceback",
        "inhomogeneous",
        "ufunc",
        "unhashable",
        "np.str_",
        "compute_sample_weight",
        "NoneType' obj",
    ):
        assert leak not in text, text


# -- columns ---------------------------------------------------------------------------------------------------------

COLUMNS = {
    "nothing": (lambda: classify(None), "Expected 2D array, got 0D array"),
    "a path": (lambda: classify("table.csv"), "Expected 2D array, got 0D array"),
    "one column": (lambda: classify(WHOLE["income"]), "Expected 2D array, got 1D array"),
    "a list of frames": (lambda: classify([FRAMES["bank"], FRAMES["shop"]]), "not all of one length"),
    "ragged rows": (lambda: classify([[1.0, 2.0], [1.0]] * 30), "not all of one length"),
    "no party": (lambda: classify({}), "columns of at least one party"),
    "a party without columns": (lambda: classify({**FRAMES, "shop": None}), "party 'shop': expected rows by columns"),
    "a party's path": (lambda: classify({**FRAMES, "shop": "shop.csv"}), "came str. Read a file first"),
    "a party's dictionary": (lambda: classify(shop({"spend": [1.0] * ROWS})), "came dict. Read a file first"),
    "a party's generator": (lambda: classify(shop(iter(range(ROWS)))), "expected rows by columns"),
    "a party's series": (
        lambda: classify({**FRAMES, "shop": FRAMES["shop"]["spend"]}),
        r"array of shape \(60,\).*to_frame",
    ),
    "three dimensions": (lambda: classify(shop(ARRAYS["shop"][:, :, None])), r"array of shape \(60, 1, 1\)"),
    "a party's ragged rows": (lambda: classify(shop([[1.0], [1.0, 2.0]] * 30)), "as many in every row"),
    "a structured array": (lambda: classify(shop(np.zeros(ROWS, [("a", float)]))), "rows by columns"),
    "a party's number": (lambda: classify({1: ARRAYS["bank"], 2: ARRAYS["shop"]}), "Parties must be named by text"),
    "a party's path-like name": (lambda: classify({"a/b": ARRAYS["bank"], **ARRAYS}), "'a/b' cannot be a party's name"),
    "one party": (lambda: classify({"bank": ARRAYS["bank"]}), "two parties or more; got 1"),
    "no rows": (lambda: classify({n: f.iloc[:0] for n, f in FRAMES.items()}, []), "y is empty"),
    "no rows but labels": (lambda: classify({n: f.iloc[:0] for n, f in FRAMES.items()}), "has no rows"),
    "no columns": (lambda: classify({**FRAMES, "shop": pd.DataFrame(index=range(ROWS))}), "no feature column"),
    "an empty frame": (lambda: classify(pd.DataFrame()), r"0 sample\(s\)"),
    "names twice": (lambda: classify(shop(pd.DataFrame(np.ones((ROWS, 2)), columns=["a", "a"]))), "column 'a'. Give"),
    "names twice in one frame": (
        lambda: classify(WHOLE.set_axis(["a", "a", "b", "c"], axis=1)),
        "more than one column 'a'",
    ),
    "other numbers of rows": (lambda: classify(shop(ARRAYS["shop"][1:])), "bank: 60, shop: 59, telecom: 60, y: 60[.]"),
    "infinity": (lambda: classify(income(first(np.inf))), "'income', row 1: expected a finite number, came inf"),
    "sparse infinity": (lambda: classify(shop(scipy.sparse.csr_matrix(ARRAYS["shop"] * np.inf))), "came -?inf"),
    "beyond all squares": (
        lambda: classify(shop(1.7e308 * np.where(np.arange(ROWS) < 2, -1, 1)[:, None])),
        "beyond what a computer",
    ),
    "a gap where none may be": (lambda: classify(income(first(np.nan)), prepare="scaled"), "came an empty cell"),
    "gaps alone": (
        lambda: classify({**FRAMES, "shop": pd.DataFrame({"spend": ONES * np.nan})}),
        "has no value in the training rows .* or leave the party out",
    ),
    "mixed cells": (lambda: classify(income([1, "a", 2.0, None] * 15)), "row 2: expected a number, came 'a'"),
    "lists": (lambda: classify(income([[1, 2]] * ROWS)), "holds list, such as"),
    "dictionaries": (lambda: classify(income([{"a": 1}] * ROWS)), "holds dict, such as"),
    "arrays": (lambda: classify(income(pd.Series([np.ones(2)] * ROWS))), "holds ndarray, such as"),
    "bytes of no text": (lambda: classify(income([b"\xff\xfe", b"a"] * 30)), "holds bytes, such as"),
    "complex": (lambda: classify(shop(ARRAYS["shop"] + 1j)), "Complex data not supported"),
    "dates that are days or months": (lambda: classify(income(["01/02/2020"] * ROWS)), "the day from the month"),
    "groups of thousands": (lambda: classify(income(["1,347", "2,198"] * (ROWS // 2))), "numbers with commas, such as"),
    "an id": (lambda: classify(income([f"id{i}" for i in range(ROWS)])), "looks like an id or free text"),
    "text that is not prepared": (lambda: classify(income(["a", "b"] * 30), prepare="none"), "holds text"),
    "columns for PartyColumns": (lambda: PartyColumns([1, 2]), "dictionary from party to its columns; |got list"),
    "text for PartyColumns": (lambda: PartyColumns({"bank": "a.csv"}), "came str. Read a file first"),
}

# -- labels, weights, exposure ---------------------------------------------------------------------------------------

LABELS = {
    "y missing": (lambda: classify(y=None), "requires y to be passed"),
    "y a name": (lambda: classify(y="label"), "one label per row, .* got str"),
    "y a dictionary": (lambda: classify(y={"a": 1}), "got dict"),
    "y sparse": (lambda: classify(y=scipy.sparse.csr_matrix(Y[:, None])), "got csr_matrix"),
    "y shorter": (lambda: classify(y=Y[:-1]), "y: 59"),
    "y longer": (lambda: classify(y=np.r_[Y, 1]), "y: 61"),
    "y empty": (lambda: classify(y=[]), "y is empty"),
    "y of two columns": (lambda: classify(y=pd.DataFrame({"a": Y, "b": Y})), r"array of shape \(60, 2\)"),
    "y ragged": (lambda: classify(y=[[1], [2, 3]] * 30), "rows of y are not all of one length"),
    "y of one class": (lambda: classify(y=ONES), "two classes or more; y has 1"),
    "y with a gap": (lambda: classify(y=[None, *["a", "b"] * 29, "a"]), "row 1 has None"),
    "y with pandas' gap": (
        lambda: classify(y=pd.Series([pd.NA, *[0, 1] * 29, 1], dtype="Int64")),
        "Input y contains NaN",
    ),
    "y infinite": (lambda: regress(first(np.inf)), "Input y contains infinity"),
    "y of text and numbers": (lambda: classify(y=["a", 1] * 30), "text and int"),
    "y of numbers": (lambda: classify(y=rng.normal(size=ROWS)), "is for VerticalRegressor"),
    "y complex": (lambda: classify(y=Y + 1j), "y holds complex"),
    "y of bytes": (lambda: classify(y=np.array([b"a", b"b"] * 30)), "y holds bytes, and labels are text or numbers"),
    "y of things": (lambda: classify(y=[object() for _ in range(ROWS)]), "object, which cannot be put in order"),
    "y of dates": (lambda: regress(pd.date_range("2020", periods=ROWS)), "y holds dates"),
    "y of text for numbers": (lambda: regress(["a", "b"] * 30), "Regression needs numbers"),
    "y beyond all ranges": (lambda: regress(np.linspace(-1e300, 1e300, ROWS)), "numbers are too large"),
    "counts below 0": (lambda: regress(np.linspace(-1, 1, ROWS), loss="poisson"), "labels of 0 or more; 30 of 60"),
    "amounts of 0": (lambda: regress(np.linspace(0, 1, ROWS), loss="gamma"), "labels of above 0; 1 of 60"),
    "counts of nothing": (lambda: regress(0 * ONES, loss="poisson"), "All labels .* are 0"),
    "weights below 0": (lambda: classify(sample_weight=first(-1.0)), "row 1 has -1, which is negative"),
    "weights of 0": (lambda: classify(sample_weight=0 * ONES), "are all zero"),
    "weights with a gap": (lambda: classify(sample_weight=first(np.nan)), "finite numbers; row 1 has nan"),
    "infinite weights": (lambda: classify(sample_weight=first(np.inf)), "finite numbers; row 1 has inf"),
    "too few weights": (
        lambda: classify(sample_weight=ONES[1:]),
        r"each of the 60 rows; came an array of shape \(59,\)",
    ),
    "one weight": (lambda: classify(sample_weight=2.0), r"came an array of shape \(\)"),
    "weights by name": (lambda: classify(sample_weight={0: 1.0}), "must be numbers, one for each of the 60 rows"),
    "weights of text": (
        lambda: classify(sample_weight=["heavy"] * ROWS),
        "must be numbers, one for each of the 60 rows",
    ),
    "no exposure": (lambda: regress(Y, loss="poisson", exposure=0 * ONES), "exposures are all zero"),
    "exposure of 0": (lambda: regress(Y, loss="poisson", exposure=first(0.0)), "An exposure is above 0"),
    "exposure of numbers": (lambda: regress(Y, exposure=ONES), "exposure is for counts and amounts"),
    "class weight by word": (lambda: classify(class_weight="heavy"), "classes 0, 1; got 'heavy'"),
    "class weight of another": (lambda: classify(class_weight={5: 1.0}), "classes 0, 1; got {5: 1.0}"),
    "class weight of text": (lambda: classify(class_weight={0: "a", 1: 1.0}), "with a number of 0 or more for each"),
    "class weight below 0": (lambda: classify(class_weight={0: -1.0}), "classes 0, 1; got {0: -1.0}"),
    "class weight of nothing": (lambda: classify(class_weight={0: 0.0, 1: 0.0}), "are all zero"),
    "class weight for numbers": (lambda: regress(rng.normal(size=ROWS), class_weight="balanced"), "this is regression"),
}

# -- parameters ------------------------------------------------------------------------------------------------------

LEFT = {"bank": ["income", "age"], "shop": ["spend"]}
PARAMETERS = {
    "a column that is not there": ({"parties": {**LEFT, "telecom": ["cals"]}}, "'cals', which is not there. Did you"),
    "a column of two parties": (
        {"parties": {**LEFT, "telecom": ["age", "calls"]}},
        "given to both 'bank' and 'telecom'",
    ),
    "a column of nobody": ({"parties": LEFT}, "1 column of the table has no party: calls"),
    "a party of no column": ({"parties": {**LEFT, "telecom": []}}, "'telecom' was given no column"),
    "a party of a word": (
        {"parties": {**LEFT, "telecom": "calls"}},
        "list of columns for each party, .* got for 'telecom'",
    ),
    "parties by half": ({"parties": 2.5}, "or a number of parties; got 2.5"),
    "parties by word": ({"parties": "three"}, "or a number of parties; got 'three'"),
    "too many parties": ({"parties": 50}, "50 parties cannot share 4 columns"),
    "no parties": ({"parties": 0}, "at least one party"),
    "another preparation": ({"prepare": "best"}, "how must be one of"),
    "a preparation of a column that is not there": (
        {"prepare": {"columns": {"incme": "bins"}}},
        "'incme', which no party",
    ),
    "a treatment that is none": ({"prepare": {"how": "auto", "columns": {"income": "cut"}}}, "one of .*got {'income'"),
    "one bin": ({"prepare": {"how": "bins", "bins": 1}}, "bins must be a whole number between 2 and 1000"),
    "a preparation of nobody": ({"prepare": {"bnk": "bins"}}, "'bnk', which is no party. Did you mean 'bank'"),
    "no method": ({"algorithm": None}, "algorithm must be the name of a method"),
    "another method": ({"algorithm": "vfb"}, "Unknown algorithm 'vfb'"),
    "another loss": ({"loss": "log"}, "loss must be one of"),
    "huber for classes": ({"loss": "huber", "huber_delta": 1.0}, "is for numbers, and here classes are predicted"),
    "huber without delta": ({"loss": "huber"}, "needs huber_delta: how far from its label"),
    "a delta for another loss": ({"huber_delta": 1.0}, 'huber_delta is for loss = "huber"; the loss is .auto'),
    "a loss for numbers": ({"loss": "poisson"}, "is for numbers, and here classes are predicted"),
    "no penalty": ({"penalty": None}, "penalty must be .* got None"),
    "passes of text": ({"passes": "10"}, "passes must be a finite number above 0; got '10'"),
    "no number of passes": ({"passes": float("nan")}, "passes must be .* got nan"),
    "the lasso": ({"l1_ratio": 1.0}, "at least 0 and below 1"),
    "a seed below 0": ({"seed": -1}, "seed must be a whole number of 0 or more"),
    "a seed of numpy's": ({"seed": np.random.default_rng(0)}, "seed must be a whole number"),
    "slow by word": ({"slow": "shop"}, "slow must be a dictionary by party"),
    "slow by text": ({"slow": {"bank": "4"}}, "runtime.slow must be"),
    "another runtime": ({"runtime": "cloud"}, "runtime.kind must be one of"),
    "labels with nobody": ({"labels_at": ["bnk"]}, "'bnk', which is no party"),
    "labels by word": ({"labels_at": "bank"}, "labels_at must be a list"),
}

# -- prediction ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_frames():
    dated = FRAMES["telecom"].assign(since=pd.date_range("2020", periods=ROWS))
    return classify({**FRAMES, "telecom": dated}), {**FRAMES, "telecom": dated}


@pytest.fixture(scope="module")
def by_whole():
    return classify(WHOLE, parties={**LEFT, "telecom": ["calls"]})


def age(cells):
    return lambda rows: {**rows, "bank": rows["bank"].assign(age=cells)}


PREDICTION = {
    "a party that lacks": (lambda rows: {n: rows[n] for n in ("bank", "shop")}, "'telecom' are missing"),
    "a party too many": (lambda rows: {**rows, "post": rows["shop"]}, "'post' is no party of this model"),
    "a column that lacks": (lambda rows: {**rows, "bank": rows["bank"][["age"]]}, "lacks the column 'inc"),
    "another column": (
        lambda rows: {**rows, "bank": rows["bank"].set_axis(["a", "b"], axis=1)},
        "lacks the columns 'inc",
    ),
    "text for numbers": (age("old"), "numbers were expected, as in the training rows; came text such as 'old'"),
    "dates for numbers": (age(pd.Timestamp("2020")), "numbers were expected, as in the training rows; came dates"),
    "numbers for dates": (lambda r: {**r, "telecom": r["telecom"].assign(since=1.5)}, "dates were expected"),
    "mixed cells": (age([1, "b"] * 30), "row 2: expected a number, came 'b'"),
    "decimal commas": (age(["4,25", "0,5"] * 30), "in the training rows its numbers had decimal points"),
    "infinity": (age(np.inf), "expected a finite number, came inf"),
    "lists": (age(pd.Series([[1]] * ROWS)), "holds list"),
    "names twice": (lambda r: {**r, "bank": pd.concat([r["bank"]] * 2, axis=1)}, "more than one column 'income'"),
    "other numbers of rows": (lambda rows: {**rows, "shop": rows["shop"].iloc[:5]}, "same number of rows"),
    "no rows": (lambda rows: {n: f.iloc[:0] for n, f in rows.items()}, "has no rows"),
    "nothing": (lambda rows: None, "Expected 2D array"),
    "one matrix": (lambda rows: WHOLE.to_numpy(), "a dictionary with the columns of bank, shop, telecom"),
}
ONE_FRAME = {
    "fewer columns": (WHOLE.drop(columns="age"), "feature names should match"),
    "another order": (WHOLE[WHOLE.columns[::-1]], "feature names should match"),
    "other names": (WHOLE.rename(columns={"age": "years"}), "feature names should match"),
    "one row": (WHOLE.iloc[0], "Expected 2D array, got 1D"),
    "ragged rows": ([[1.0], [1.0, 2.0]], "not all of one length"),
}


@pytest.mark.parametrize("case", [*COLUMNS, *LABELS])
@pytest.mark.filterwarnings("ignore")
def test_wrong_columns_and_labels(case):
    act, said = (COLUMNS | LABELS)[case]
    with pytest.raises((BadData, BadJob, OutOfRange), match=said) as told:
        act()
    is_a_paragraph(told.value)


@pytest.mark.parametrize("case", PARAMETERS)
@pytest.mark.filterwarnings("ignore")
def test_wrong_parameters(case):
    options, said = PARAMETERS[case]
    with pytest.raises((BadData, BadJob), match=said) as told:
        classify(WHOLE, **{"parties": {**LEFT, "telecom": ["calls"]}, **options})
    is_a_paragraph(told.value)


@pytest.mark.parametrize("case", PREDICTION)
def test_wrong_rows_for_a_fitted_model(by_frames, case):
    change, said = PREDICTION[case]
    model, rows = by_frames
    with pytest.raises(BadData, match=said) as told:
        model.predict(change(rows))
    is_a_paragraph(told.value)


@pytest.mark.parametrize("case", ONE_FRAME)
def test_wrong_frames_for_a_model_of_one(by_whole, case):
    rows, said = ONE_FRAME[case]
    with pytest.raises(BadData, match=said) as told:
        by_whole.predict(rows)
    is_a_paragraph(told.value)


def test_places_that_are_none(by_whole):
    for act in (lambda: by_whole.save(3), lambda: VerticalClassifier.load(3)):
        with pytest.raises(BadInput, match="Expected the path of a folder"):
            act()


def test_indexes_that_hold_other_labels_are_warned_of():
    with pytest.warns(UserWarning, match="matched by position, but their indexes differ: row 1"):
        classify({**FRAMES, "shop": FRAMES["shop"].set_axis(range(1, ROWS + 1))})


def test_masked_cells_are_missing_ones():
    masked = np.ma.masked_less(ARRAYS["shop"], 0.0)
    gaps = np.where(ARRAYS["shop"] < 0.0, np.nan, ARRAYS["shop"])
    np.testing.assert_array_equal(
        classify(shop(masked)).predict_proba(shop(gaps)), classify(shop(gaps)).predict_proba(shop(gaps))
    )


# -- a fitted model ----------------------------------------------------------------------------------------------------

CARD = {"prepare": "bins", "parties": {**LEFT, "telecom": ["calls"]}}
FITTED = {
    "a card of labels alone": (lambda model, folder: model.scorecard(None, Y), "labels and no rows"),
    "a card to a word of digits": (
        lambda model, folder: model.scorecard(digits="two"),
        "digits must be a whole number",
    ),
    "a card at odds of text": (lambda model, folder: model.scorecard(odds="50:1"), "odds must be a number; got '50:1'"),
    "worth by rows of one class": (
        lambda model, folder: model.worth(WHOLE, Y, WHOLE, 0 * Y),
        "60 held-out rows are all of one. .*--score accuracy",
    ),
    "another kind": (lambda model, folder: VerticalRegressor.load(model.save(folder)), "load it with VerticalClassif"),
    "a place that cannot be": (lambda model, folder: model.save("/proc/none/model"), "cannot be written: .*Give a"),
    "a path for a job": (lambda model, folder: offbeat.load_data("job.toml"), "which read_job gives; got str"),
    "worth of a path": (lambda model, folder: offbeat.worth(FRAMES, "job.toml"), "got dict and str"),
    "a saved file that was cut off": (
        lambda model, folder: (
            (model.save(folder) / "estimator.json").write_text("{") and VerticalClassifier.load(folder)
        ),
        "estimator.json cannot be read: .* save anew",
    ),
    "a saved part that was cut off": (
        lambda model, folder: (
            (model.save(folder) / "checkpoints" / "bank.safetensors").write_bytes(b"PK")
            and VerticalClassifier.load(folder)
        ),
        "bank's part of the model cannot be read .* take them from a copy, or run again",
    ),
}


@pytest.fixture(scope="module")
def of_bins():
    return VerticalClassifier(**CARD, passes=2, target=None).fit(WHOLE, Y)


@pytest.mark.parametrize("case", FITTED)
def test_wrong_use_of_a_fitted_model(of_bins, tmp_path, case):
    act, said = FITTED[case]
    with pytest.raises((BadInput, BadData), match=said) as told:
        act(of_bins, tmp_path / "model")
    is_a_paragraph(told.value)


def test_numbers_are_worth_nothing_to_labels_of_text():
    model = regress(rng.normal(size=ROWS))
    with pytest.raises(BadData, match="Regression needs numbers as labels; y has text: 'a' in row 1"):
        model.worth(FRAMES, ["a"] * ROWS, FRAMES, Y)


def test_a_party_may_be_called_y_or_ids():
    named = {"y": FRAMES["bank"], "ids": FRAMES["shop"], "telecom": FRAMES["telecom"]}
    assert classify(named, pd.Series(Y)).model_.names == ("y", "ids", "telecom")
    with pytest.raises(BadData, match="y: 60, ids: 59, telecom: 60, y: 60"):
        classify({**named, "ids": ARRAYS["shop"][1:]})


# -- job files and tables ----------------------------------------------------------------------------------------------

IDS = np.arange(40)
TABLES = {
    "bank": pd.DataFrame({"id": IDS, "income": IDS % 7 + 0.5, "y": IDS % 2}),
    "shop": pd.DataFrame({"id": IDS, "spend": IDS % 5 + 0.5}),
    "telecom": pd.DataFrame({"id": IDS, "calls": IDS % 3 + 0.5}),
}
HELD = IDS[held_out(IDS, seed=0)][0]


def job(top="", bank='label = "y"', shop="", data=""):
    entries = {"bank": bank, "shop": shop, "telecom": ""}
    party = "".join(f'[[party]]\nname = "{n}"\nfile = "{n}.csv"\nid = "id"\n{keys}\n' for n, keys in entries.items())
    return f"passes = 2\n{top}\n{data}\n{party}"


def lines(*rows):
    return "\n".join(rows).encode()


JOBS = {
    "no TOML": ("passes == 3", {}, "not valid TOML"),
    "backslashes": (job().replace('"shop.csv"', r'"C:\users\shop.csv"'), {}, "write paths with /, or in single quotes"),
    "no UTF-8": ("# é".encode("latin-1"), {}, "job file .* is not written in UTF-8"),
    "a list of seeds": (job("seed = [1]"), {}, r"seed must be a whole number of 0 or more; got \[1\]"),
    "a table of penalties": (job("penalty = { a = 1 }"), {}, "penalty must be .* got {'a': 1}"),
    "penalties of text": (job('penalty = ["a"]'), {}, r"penalty\[0\] must be a finite number above 0; got 'a'"),
    "an infinite penalty": (job("penalty = [inf]"), {}, r"penalty\[0\] must be"),
    "early stopping by word": (job("early_stopping = true"), {}, "early_stopping must be a finite number"),
    "a start by number": (job("start = 3"), {}, "start must be text; got 3"),
    "a start that is not there": (job('start = "nowhere"'), {}, "not a finished run folder"),
    "parties as text": ('party = "bank"', {}, "party must be a list, each a table"),
    "one party's table": ('[party]\nname = "bank"', {}, "party must be a list, each a table"),
    "a file by number": (job().replace('"shop.csv"', "3"), {}, "party.shop.file must be text; got 3"),
    "data as text": ('data = "credit-like"', {}, "data must be a table; got 'credit-like'"),
    "columns as text": (job(shop='columns = "spend"'), {}, "party.shop.columns must be a list"),
    "a folder for a file": (job().replace('"shop.csv"', '"."'), {}, "is a folder; a file of data was expected"),
    "a workbook": (job().replace('"shop.csv"', '"shop.xlsx"'), {}, "unknown kind of file"),
    "an empty file": (job(), {"shop": b""}, "is empty"),
    "a header alone": (job(), {"shop": b"id,spend\n"}, "has no rows"),
    "another encoding": (job(), {"shop": b"id,spend\n0,K\x81ln\n"}, "not written in UTF-8"),
    "a workbook named .csv": (job(), {"shop": b"PK\x03\x04" + bytes(20)}, "begins like a workbook"),
    "Parquet named .csv": (job(), {"shop": b"PAR1" + bytes(20)}, "begins like Parquet. Give it a name that ends in"),
    "gzip named .csv": (job(), {"shop": b"\x1f\x8b\x08\x00" + bytes(20)}, "begins like gzip. Give it a name"),
    "JSON named .csv": (job(), {"shop": b'[{"id": 1, "spend": 2}]'}, "begins like JSON. Save the table as CSV"),
    "a web page named .csv": (job(), {"shop": b"\n<table border=1>"}, "begins like a web page, or XML. Save the table"),
    "bytes of 0": (job(), {"shop": b"id,spend\n0,1\n\x00,2\n"}, "holds bytes of 0, which no text has"),
    "UTF-16 without a mark": (job(), {"shop": "id,spend\n0,1\n".encode("utf-16-le")}, "UTF-16 without a mark"),
    "spaces between columns": (job(), {"shop": lines("id spend", "0 1")}, "separated by , ; . or tabs, and the first"),
    "colons between columns": (job(), {"shop": lines("id:spend", "0:1")}, "separated by , ; . or tabs, and the first"),
    "an exposure below 0": (
        job('loss = "poisson"', bank='label = "y"\nexposure = "w"'),
        {"bank": TABLES["bank"].assign(w=-1)},
        "which is negative .40 such rows.. An exposure is above 0",
    ),
    "no header": (job(), {"shop": lines("0,1.5", "1,2.5")}, "The first line must name the columns"),
    "a line too long": (job(), {"shop": lines("id,spend", "0,1", "1,2,3")}, "as many fields as the header"),
    "an open quote": (job(), {"shop": lines("id,spend", '0,"1', "1,2")}, "a quote that is opened is closed"),
    "a header twice": (job(), {"shop": lines("id,spend,spend", "0,1,2")}, "names column 'spend' 2 times"),
    "label and id in one": (job(bank='label = "id"'), {}, "named as `id` and as `label`"),
    "a class of test rows alone": (
        job(),
        {"bank": TABLES["bank"].assign(y=np.where(IDS == HELD, "rare", np.where(IDS % 2, "a", "b")))},
        "'rare', with 1 row.s. in all, is in the test rows only",
    ),
    "weights below 0": (job(bank='label = "y"\nweight = "w"'), {"bank": TABLES["bank"].assign(w=-1)}, "negative"),
    "weights of 0": (job(bank='label = "y"\nweight = "w"'), {"bank": TABLES["bank"].assign(w=0)}, "are all zero"),
    "weights of text": (job(bank='label = "y"\nweight = "y"'), {}, "no weights column 'y'"),
    "a class weight of nobody": (job("class_weight = { yes = 1.0 }"), {}, "'yes', which is no class"),
    "ids of others": (job(), {"shop": TABLES["shop"].assign(id=IDS + 1000)}, "No id is common"),
    "ids twice": (job(), {"shop": TABLES["shop"].assign(id=0)}, "id '0' stands in 40 rows"),
    "ids that lack": (job(), {"shop": TABLES["shop"].assign(id=[None, *IDS[1:]])}, "row 1 has no id"),
}


@pytest.mark.parametrize("case", JOBS)
def test_wrong_job_files_and_tables(tmp_path, case):
    text, tables, said = JOBS[case]
    for name, table in (TABLES | tables).items():
        path = tmp_path / f"{name}.csv"
        path.write_bytes(table) if isinstance(table, bytes) else table.to_csv(path, index=False)
    (tmp_path / "job.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=said) as told:
        training_of(read_job(tmp_path / "job.toml"))
    is_a_paragraph(told.value)
    assert "\n" not in re.sub(r"\s+$", "", str(told.value))


def test_a_mark_at_the_beginning_of_a_job_file_is_no_trouble(tmp_path):
    for name, table in TABLES.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "job.toml").write_bytes(b"\xef\xbb\xbf" + job().encode())
    assert training_of(read_job(tmp_path / "job.toml")).goal == 2
    with pytest.raises(BadJob, match="is a folder, and a job file was expected"):
        read_job(tmp_path)
