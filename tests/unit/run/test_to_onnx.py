"""A party's part as an ONNX graph: what onnxruntime computes from raw columns is the part that predict adds up."""

import json

import numpy as np
import pandas as pd
import pytest
from three_files import frames

from offbeat import DeepVerticalClassifier, VerticalClassifier, VerticalRegressor
from offbeat.errors import BadInput

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

CELLS = {"bank": ["income"], "shop": ["town", "spend"], "telecom": ["calls"]}


def rows(seed=0):
    """Three parties' frames: numbers with gaps, text with gaps and, later, a town that training never had, dates."""
    found = frames(seed)
    tables = {name: found[name][columns].copy() for name, columns in CELLS.items()}
    days = pd.date_range("2024-01-01", periods=len(found["bank"]), freq="D")
    tables["telecom"]["since"] = days
    tables["telecom"].loc[2, "calls"] = np.nan
    tables["shop"].loc[4, "town"] = None
    if seed:
        tables["shop"].loc[3, "town"] = "nowhere"
        tables["bank"].loc[5, "income"] = 1e9
    return tables, found["bank"]["y"].to_numpy(), found["bank"]["amount"].to_numpy()


def spelled(cell):
    """Categories that are numbers are spelled as texts."""
    return "" if pd.isna(cell) else cell if isinstance(cell, str) else f"{cell:.15g}"


def by_graph(graph, frame):
    """What onnxruntime makes of a frame, its columns found by the graph's metadata."""
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {
        key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items() if key != "party"
    }
    given = {}
    if names["numbers"]:
        columns = [frame[name] for name in names["numbers"]]
        days = [(c - pd.Timestamp(0)) / pd.Timedelta(days=1) if c.dtype.kind == "M" else c for c in columns]
        given["numbers"] = np.column_stack([np.asarray(column, dtype=np.float64) for column in days])
    if names["texts"]:
        given["texts"] = np.array([[spelled(cell) for cell in row] for row in frame[names["texts"]].to_numpy(object)])
    return session.run(["part"], given)[0]


def agrees(model, tables):
    parts = {name: by_graph(model.to_onnx(name), frame) for name, frame in tables.items()}
    trained = model.model_
    for name, block in trained.blocks(trained.tables(tables)).items():
        arrays = trained.parts[name].arrays
        own = np.asarray(block @ np.atleast_2d(arrays["weights"]).T) + arrays.get("intercept", 0.0)
        np.testing.assert_allclose(parts[name], own, atol=1e-5 * max(1.0, np.abs(own).max()))
    whole = sum(parts.values())
    scores = trained.scores(trained.tables(tables))
    np.testing.assert_allclose(
        whole if scores.ndim == 2 else whole[:, 0], scores - trained.offset, atol=1e-5, rtol=1e-7
    )


@pytest.mark.parametrize(
    "keys",
    [{}, {"prepare": "bins"}, {"prepare": {"how": "auto", "columns": {"calls": "category"}}}, {"intercept": False}],
    ids=str,
)
def test_the_parts_of_two_classes(keys):
    tables, y, _ = rows()
    if isinstance(keys.get("prepare"), dict):
        tables["telecom"]["calls"] = tables["telecom"]["calls"].round()
    model = VerticalClassifier(target=1e-3, **keys).fit(tables, y)
    agrees(model, tables)
    agrees(model, rows(seed=4)[0])


def test_several_classes_counts_and_outliers():
    tables, _, amount = rows()
    later = rows(seed=4)[0]
    kind = np.array(["a", "b", "c"])[np.digitize(amount, [-2, 2])]
    agrees(VerticalClassifier(target=1e-2, prepare="bins").fit(tables, kind), later)
    counts = VerticalRegressor(loss="poisson", target=1.0, passes=5).fit(tables, np.floor(np.exp(amount / 4)))
    agrees(counts, later)
    agrees(VerticalRegressor(loss="huber", huber_delta=1.0, target=1e-2).fit(tables, amount), later)


def test_a_matrix_has_numbers_alone():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 5)), rng.random(200) < 0.5
    model = VerticalClassifier(parties={"bank": [4, 0], "shop": [2], "telecom": [1, 3]}, target=1e-3).fit(X, y)
    graph = model.to_onnx("bank")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == ["numbers"]
    found = session.run(["part"], {"numbers": X[:, [4, 0]]})[0]
    assert found.shape == (200, 1) and len(json.loads(session.get_modelmeta().custom_metadata_map["numbers"])) == 2


def test_a_missing_value_that_the_preparation_refuses_gives_no_number():
    tables, y, _ = rows()
    whole = {
        "bank": tables["bank"].fillna(0.0),
        "shop": tables["shop"][["spend"]].fillna(0.0),
        "telecom": tables["bank"],
    }
    whole["telecom"] = whole["bank"].rename(columns={"income": "calls"}) ** 2
    model = VerticalClassifier(target=1e-3, prepare="scaled").fit(whole, y)
    agrees(model, whole)
    lacking = whole["bank"].copy()
    lacking.iloc[7, 0] = np.nan
    assert np.flatnonzero(np.isnan(by_graph(model.to_onnx("bank"), lacking)[:, 0])).tolist() == [7]


def test_what_a_graph_cannot_do_is_said():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), rng.random(60) < 0.5
    unit = VerticalClassifier(parties=3, prepare={"how": "none", "rows": "party-unit"}, passes=1, target=None).fit(X, y)
    with pytest.raises(BadInput, match="prepared one by one"):
        unit.to_onnx(unit.model_.names[0])
    plain = VerticalClassifier(parties=3, passes=1, target=None).fit(X, y)
    with pytest.raises(BadInput, match="'nobody' is no party of this model"):
        plain.to_onnx("nobody")
    assert not hasattr(DeepVerticalClassifier, "to_onnx")
