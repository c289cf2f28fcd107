"""Networks of one's own over columns: five lines, one road, and clear words where something does not fit."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import offbeat
from offbeat import DeepVerticalClassifier, DeepVerticalRegressor, PartyColumns, VerticalClassifier
from offbeat.errors import BadData, BadInput, BadJob
from offbeat.jobs.reading import job_from
from offbeat.run.parties import training_of

torch = pytest.importorskip("torch")
nn = torch.nn

ROWS, FITTED = 500, 400
FAST = {"passes": 12, "step": 0.01, "batch": 25, "device": "cpu"}


def problem(seed=0):
    rng = np.random.default_rng(seed)
    blocks = {name: rng.normal(size=(ROWS, 3)) for name in ("left", "right")}
    return blocks, blocks["left"][:, 0] * blocks["left"][:, 1] + blocks["right"][:, 0] * blocks["right"][:, 1]


def first(blocks):
    return {name: block[:FITTED] for name, block in blocks.items()}


def last(blocks):
    return {name: block[FITTED:] for name, block in blocks.items()}


def mine(inputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 4))


def test_it_learns_what_no_linear_model_can():
    blocks, score = problem()
    label = np.where(score > 0, "yes", "no")
    deep = DeepVerticalClassifier(**FAST).fit(first(blocks), label[:FITTED])
    linear = VerticalClassifier(two_party_insecure=True).fit(first(blocks), label[:FITTED])
    assert deep.score(last(blocks), label[FITTED:]) > 0.8 > 0.65 > linear.score(last(blocks), label[FITTED:])
    assert deep.predict_proba(last(blocks)).shape == (ROWS - FITTED, 2)
    assert list(deep.classes_) == ["no", "yes"]
    np.testing.assert_array_equal(deep.predict_proba(blocks).argmax(axis=1), deep.predict(blocks) == "yes")


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_head_of_ones_own_gives_one_number_or_one_for_each_of_two_classes(outputs):
    blocks, score = problem()
    modules = {"left": mine(3), "right": mine}
    model = DeepVerticalClassifier(modules, lambda inputs: nn.Linear(inputs, outputs), **FAST)
    assert model.fit(blocks, score > 0).score(blocks, score > 0) > 0.8
    assert np.allclose(model.predict_proba(blocks).sum(axis=1), 1.0)


def test_several_classes_mixed_columns_and_one_frame():
    blocks, _ = problem()
    frame = pd.DataFrame({"a": blocks["left"][:, 0], "b": blocks["left"][:, 1], "c": blocks["right"][:, 0]})
    frame["town"] = np.where(blocks["right"][:, 1] > 0, "north", "south")
    frame.loc[::7, "a"] = np.nan
    classes = np.digitize(blocks["left"][:, 1] + (frame.town == "north"), [0.0, 1.0])
    model = DeepVerticalClassifier(parties={"left": ["a", "b"], "right": ["c", "town"]}, modules={"left": mine}, **FAST)
    model.fit(frame, classes)
    assert model.score(frame, classes) > 0.9
    assert model.predict_proba(frame).shape == (ROWS, 3)
    assert list(model.feature_names_in_) == ["a", "b", "c", "town"]


def test_numbers_of_any_size_are_learned_in_their_own_units():
    blocks, score = problem()
    large = 5e7 + 1e6 * score
    options = {**FAST, "early_stopping": 10, "hidden": (16,), "algorithm": "vafl-sync"}
    model = DeepVerticalRegressor(**options).fit(blocks, large)
    small = DeepVerticalRegressor(**options).fit(blocks, score)
    assert model.score(blocks, large) > 0.5
    np.testing.assert_allclose((model.predict(blocks) - 5e7) / 1e6, small.predict(blocks), atol=0.02)
    assert model.record_.metrics["test_rmse"] == pytest.approx(1e6 * small.record_.metrics["test_rmse"], rel=0.02)


def test_the_same_seed_gives_the_same_model_and_a_clone_does_too():
    blocks, score = problem()
    model = DeepVerticalClassifier({"left": mine}, **{**FAST, "passes": 2}).fit(blocks, score > 0)
    twin = clone(model).fit(blocks, score > 0)
    np.testing.assert_array_equal(model.predict_proba(blocks), twin.predict_proba(blocks))
    assert model.record_.digest == twin.record_.digest


def test_it_is_the_road_of_the_job_file():
    """With networks that a job file can name, the run is the one of `offbeat run`, bit for bit."""
    blocks, score = problem()
    model = DeepVerticalClassifier(**{**FAST, "passes": 2}).fit(blocks, score > 0)
    from offbeat.data.vertical import vertical_from_arrays
    from offbeat.run.experiment import run_training

    data = vertical_from_arrays(blocks, np.where(score > 0, 1.0, -1.0), ["left"], "auto")
    again = run_training(training_of(model.model_.job, data))
    assert again.record.digest == model.record_.digest


def test_a_model_is_saved_and_loaded_and_modules_are_brought_again(tmp_path):
    blocks, score = problem()
    options = {**FAST, "passes": 2}
    plain = DeepVerticalClassifier(**options).fit(blocks, score > 0)
    plain.save(tmp_path / "plain")
    for back in (DeepVerticalClassifier.load(tmp_path / "plain"), offbeat.load(tmp_path / "plain")):
        np.testing.assert_array_equal(back.predict_proba(blocks), plain.predict_proba(blocks))
    own = DeepVerticalClassifier({"left": mine}, lambda inputs: nn.Linear(inputs, 2), **options).fit(blocks, score > 0)
    own.save(tmp_path / "own")
    given = {"modules": {"left": mine(3)}, "head": nn.Linear(20, 2)}
    back = DeepVerticalClassifier.load(tmp_path / "own", **given)
    np.testing.assert_array_equal(back.predict_proba(blocks), own.predict_proba(blocks))
    for lacking in ({}, {"modules": {"left": mine}}):
        with pytest.raises(BadJob, match="is one of your own, and it is not here"):
            DeepVerticalClassifier.load(tmp_path / "own", **lacking)
    with pytest.raises(BadJob, match=r"kept weights of left .* they are 0.bias 16"):
        DeepVerticalClassifier.load(tmp_path / "own", **{**given, "modules": {"left": nn.Linear(3, 4)}})
    with pytest.raises(BadJob, match="kept weights of the head"):
        DeepVerticalClassifier.load(tmp_path / "own", **{**given, "head": nn.Linear(20, 1)})
    with pytest.raises(BadInput, match="holds a DeepVerticalClassifier"):
        DeepVerticalRegressor.load(tmp_path / "own")
    with pytest.raises(BadJob, match="it is not here"):
        offbeat.load(tmp_path / "own").predict(blocks)
    with pytest.raises(BadInput, match="leave `head` out"):
        DeepVerticalClassifier.load(tmp_path / "plain", head=nn.Linear(32, 1))


def test_the_next_fit_may_begin_with_the_weights_of_the_last():
    blocks, score = problem()
    model = DeepVerticalClassifier(warm_start=True, **FAST).fit(blocks, score > 0)
    before = model.record_.objective
    model.set_params(passes=1).fit(blocks, score > 0)
    assert model.record_.curve[0].objective == pytest.approx(before, rel=1e-6)


def test_scikit_learn_cuts_its_rows():
    blocks, score = problem()
    found = cross_val_score(DeepVerticalClassifier(**FAST), PartyColumns(blocks), score > 0, cv=2)
    assert found.min() > 0.6


def pictures(inputs):
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.Flatten())


def test_rows_may_have_a_shape():
    rng = np.random.default_rng(0)
    blocks = {"camera": rng.normal(size=(60, 4)), "shop": rng.normal(size=(60, 2))}
    label = blocks["camera"][:, 0] > 0
    conv = nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten())
    shaped = DeepVerticalClassifier({"camera": conv}, shapes={"camera": (1, 2, 2)}, **FAST).fit(blocks, label)
    assert shaped.score(blocks, label) > 0.8
    flat = DeepVerticalClassifier({"camera": pictures}, **FAST).fit(blocks, label)
    assert flat.score(blocks, label) > 0.8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"modules": [mine]}, "modules must be a dictionary by party"),
        ({"modules": {"lefty": mine}}, "modules names 'lefty', which is no party. Did you mean 'left'"),
        ({"modules": {"left": "mlp"}}, "Expected the network of left as a torch.nn.Module, or a function"),
        ({"modules": {"left": lambda inputs: 3}}, "must return a torch.nn.Module for 3 inputs; it returned int"),
        ({"modules": {"left": nn.Linear(5, 4)}}, r"does not accept rows of shape \(3,\)"),
        ({"modules": {"left": nn.LSTM(3, 4)}}, "must map a batch to one tensor"),
        ({"shapes": {"left": (2, 2)}, "modules": {"left": mine}}, "4 values in all; it has 3 columns"),
        ({"shapes": {"left": (3,)}}, "'left' has no module in modules"),
        ({"step": 1e6}, "Training diverged .* Use a smaller step"),
        ({"shapes": 3}, "shapes must be a dictionary by party"),
        ({"head": "deep"}, "head must be a module or one of mlp, additive; got 'deep'"),
        ({"head": nn.Linear(7, 1)}, r"does not accept rows of shape \(32,\)"),
        ({"head": lambda inputs: nn.Linear(inputs, 5)}, "gives 5 scores for 32 inputs; expected 1"),
        ({"algorithm": "vfb2-saga"}, "trains by vafl, vafl-tsync or vafl-sync"),
        ({"algorithm": "deep"}, "Unknown algorithm 'deep'"),
        ({"hidden": (0,)}, r"embedding.hidden\[0\] must be a whole number of 1 or more"),
        ({"width": -1}, "embedding.width must be a whole number of 1 or more"),
        ({"passes": "many"}, "passes must be a finite number above 0"),
        ({"step": "grid"}, 'knows no step = "grid"'),
        ({"penalty": "auto"}, "vafl trains networks"),
        ({"runtime": "processes"}, "runs in one process"),
        ({"slow": {"middle": 2.0}}, "slow names 'middle', which is no party"),
        ({"device": "cuda:99" if not torch.cuda.is_available() else "cuda:x"}, "device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_said(options, said):
    blocks, score = problem()
    with pytest.raises(BadJob, match=said):
        DeepVerticalClassifier(**{"device": "cpu", "passes": 1, **options}).fit(blocks, score > 0)


def test_labels_are_checked_as_everywhere():
    blocks, score = problem()
    with pytest.raises(BadData, match="for DeepVerticalRegressor"):
        DeepVerticalClassifier().fit(blocks, score)
    with pytest.raises(BadData, match="requires y to be passed"):
        DeepVerticalRegressor().fit(blocks, None)


def test_a_job_file_cannot_bring_modules():
    job = job_from(
        {"algorithm": "vafl", "embedding": {"kind": "own", "optimiser": "adam"}, "data": {"set": "credit-like@0.01"}}
    )
    with pytest.raises(BadJob, match="job files and run folders keep weights alone"):
        training_of(job)


def test_torch_is_imported_where_it_is_used():
    made = "offbeat.DeepVerticalClassifier(), offbeat.HorizontalClassifier()"
    code = f"import offbeat, sys; {made}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
