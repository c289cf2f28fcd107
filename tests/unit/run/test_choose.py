"""Choosing by held-out rows, and beginning with a kept model: against the slow way, and done again bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import log_loss, mean_poisson_deviance
from typer.testing import CliRunner

from offbeat import VerticalClassifier, VerticalClassifierCV, VerticalRegressor, VerticalRegressorCV
from offbeat.cli import app
from offbeat.data.holdout import folds_of, held_out
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadData, BadJob, OffbeatError
from offbeat.jobs.organisations import job_from_text
from offbeat.jobs.reading import job_from
from offbeat.jobs.vertical import PENALTIES
from offbeat.metrics.record import RunRecord
from offbeat.run.choose import ALIKE, Level, Tried, best_of
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import write_job, write_result
from offbeat.run.observer import Progress
from offbeat.run.replay import replay_run

ROWS = 240


def problem(seed=0, rows=ROWS, width=8):
    rng = np.random.default_rng(seed)
    blocks = {name: rng.normal(size=(rows, width)) for name in ("bank", "shop", "telecom")}
    pooled = np.hstack(list(blocks.values()))
    score = pooled[:, :3].sum(axis=1) + 2 * rng.logistic(size=rows)
    return blocks, pooled, score


def mean_log_loss(model, rows, label):
    return float(np.mean(np.logaddexp(0.0, -np.where(label, 1.0, -1.0) * model.decision_function(rows))))


@pytest.mark.parametrize("folds", [1, 3])
def test_the_walk_finds_what_a_cold_fit_of_each_strength_finds(folds):
    blocks, pooled, score = problem()
    label, strengths = score > 0, [1e-3, 0.3, 1e-2, 0.1]
    model = VerticalClassifier(penalty=strengths, penalty_folds=folds, prepare="none").fit(blocks, label)
    fold = folds_of(np.arange(ROWS), seed=2, folds=folds) if folds > 1 else held_out(np.arange(ROWS), seed=2)
    expected = []
    for strength in sorted(strengths, reverse=True):
        losses = []
        for held in [fold == one for one in range(folds)] if folds > 1 else [fold]:
            cold = LogisticRegression(C=1 / (np.sum(~held) * strength), tol=1e-10, max_iter=1000)
            losses.append(mean_log_loss(cold.fit(pooled[~held], label[~held]), pooled[held], label[held]))
        expected.append(np.mean(losses))
    found = [one["held_out_loss"] for one in model.penalties_tried_]
    assert [one["penalty"] for one in model.penalties_tried_] == sorted(strengths, reverse=True)
    np.testing.assert_allclose(found, expected, rtol=0.02)  # fits on the walk end at 1e-4 of the first loss
    assert model.penalty_ == sorted(strengths, reverse=True)[int(np.argmin(expected))]
    whole = LogisticRegression(C=1 / (ROWS * model.penalty_), tol=1e-10, max_iter=1000).fit(pooled, label)
    assert np.abs(whole.predict_proba(pooled) - model.predict_proba(blocks)).max() < 0.02


def test_of_strengths_that_are_alike_the_strongest_is_taken():
    tried = [Tried(p, loss, 1.0, 1.0) for p, loss in ((1.0, 0.7), (0.1, 0.5 * (1 + 0.9 * ALIKE)), (0.01, 0.5))]
    assert best_of(tried).penalty == 0.1
    assert best_of([*tried, Tried(1e-3, 0.4, 1.0, 1.0)]).penalty == 1e-3


def test_auto_ends_when_weaker_ones_are_no_better_and_the_record_tells_all():
    blocks, _, score = problem()
    model = VerticalClassifierCV().fit(blocks, score > 0)
    tried = [one["penalty"] for one in model.penalties_tried_]
    assert tried == list(PENALTIES[: len(tried)])
    assert len(tried) == tried.index(model.penalty_) + 4 < len(PENALTIES)
    assert f"The penalty {model.penalty_:.3g} was chosen from {len(tried)}" in model.record_.data.notes[-1]
    told = model.record_.reveals[-1]
    assert (told.message, told.count) == ("held-out scores", 5 * len(tried))
    assert "to the label holder" in told.reveals


@pytest.mark.parametrize(
    "options",
    [
        {"prepare": "bins"},
        {"class_weight": "balanced"},
        {"l1_ratio": 0.5},
        {"algorithm": "afsvrg-vp"},
        {"intercept": False},
    ],
    ids=str,
)
def test_it_goes_with_other_options(options):
    blocks, _, score = problem()
    weights = np.linspace(0.5, 2.0, ROWS)
    model = VerticalClassifier(penalty=[1.0, 0.01], **options).fit(blocks, score > 0, weights)
    losses = {one["penalty"]: one["held_out_loss"] for one in model.penalties_tried_}
    assert losses.keys() == {1.0, 0.01}
    assert model.penalty_ == min(losses, key=losses.get)
    plain = VerticalClassifier(penalty=model.penalty_, **options).fit(blocks, score > 0, weights)
    assert model.record_.objective == pytest.approx(plain.record_.objective, abs=1e-6)  # the target of both


def test_several_classes_are_judged_by_the_loss_that_scikit_learn_finds():
    blocks, pooled, score = problem()
    classes, held = np.digitize(score, [-1.0, 1.0]), held_out(np.arange(ROWS), seed=2)
    model = VerticalClassifier(penalty=[1.0, 0.1], prepare="none").fit(blocks, classes)
    for tried in model.penalties_tried_:
        cold = LogisticRegression(C=1 / (np.sum(~held) * tried["penalty"]), tol=1e-10, max_iter=1000)
        chances = cold.fit(pooled[~held], classes[~held]).predict_proba(pooled[held])
        assert tried["held_out_loss"] == pytest.approx(log_loss(classes[held], chances), rel=0.01)


def test_numbers_of_any_size_and_counts_are_chosen_for_too():
    blocks, pooled, score = problem()
    small = VerticalRegressorCV(penalty=[10.0, 1e-3]).fit(blocks, score)
    large = VerticalRegressorCV(penalty=[10.0, 1e-3]).fit(blocks, 1e9 * score)
    assert small.penalty_ == large.penalty_ == 1e-3
    for one, other in zip(small.penalties_tried_, large.penalties_tried_, strict=True):
        assert other["held_out_loss"] == pytest.approx(1e18 * one["held_out_loss"], rel=0.01)
    claims = np.random.default_rng(0).poisson(np.exp(0.3 * score))
    held = held_out(np.arange(ROWS), seed=2)
    model = VerticalRegressor(loss="poisson", penalty=[1.0, 0.1], prepare="none").fit(blocks, claims)
    for tried in model.penalties_tried_:
        cold = PoissonRegressor(alpha=tried["penalty"], tol=1e-10, max_iter=1000).fit(pooled[~held], claims[~held])
        half = mean_poisson_deviance(claims[held], cold.predict(pooled[held])) / 2
        assert tried["held_out_loss"] == pytest.approx(half, rel=0.01)


def test_the_choosing_estimators_have_the_parameters_of_the_others(tmp_path):
    assert repr(VerticalClassifierCV(passes=3)) == "VerticalClassifierCV(passes=3)"
    assert VerticalClassifierCV().get_params().keys() == VerticalClassifier().get_params().keys()
    twin = clone(VerticalRegressorCV("vfb2-svrg", penalty_folds=2))
    assert (twin.algorithm, twin.penalty, twin.penalty_folds) == ("vfb2-svrg", "auto", 2)
    blocks, _, score = problem(rows=60)
    model = VerticalClassifierCV(penalty=[0.1, 0.01], penalty_folds=2).fit(blocks, score > 0)
    back = VerticalClassifierCV.load(model.save(tmp_path / "model"))
    assert (back.penalty_, back.penalties_tried_) == (model.penalty_, model.penalties_tried_)
    np.testing.assert_array_equal(back.predict(blocks), model.predict(blocks))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"penalty": []}, "empty list"),
        ({"penalty": "best"}, "penalty must be .*\"auto\"; got 'best'"),
        ({"penalty": [0.0, 1.0]}, r"penalty\[0\] must be a finite number above 0; got 0.0"),
        ({"penalty": [0.1, 1.0], "runtime": "threads"}, "in the simulator"),
        ({"penalty": "auto", "penalty_kind": "none"}, "penalty_kind = 'none'"),
        ({"penalty": "auto", "label_dp_epsilon": 1.0}, "true labels of held-out rows"),
        ({"early_stopping": 2, "label_dp_epsilon": 1.0}, "true labels of held-out rows"),
        ({"penalty_folds": 3}, "penalty is a number"),
        ({"penalty": "auto", "penalty_folds": 0}, "between 1 and 20"),
        ({"early_stopping": 0}, "early_stopping must be a finite number above 0"),
        ({"early_stopping": 2, "validation_fraction": 1.0}, "validation_fraction must be a number"),
        ({"early_stopping": 2, "validation_fraction": "some"}, "validation_fraction must be a number"),
        ({"early_stopping": 2, "validation_fraction": 0.0}, "there are none"),
    ],
    ids=str,
)
def test_what_cannot_be_chosen_is_refused(options, said):
    blocks, _, score = problem(rows=60)
    with pytest.raises((BadJob, BadData), match=said):
        VerticalClassifier(**options).fit(blocks, score > 0)


def test_few_rows_leave_none_to_hold_out():
    blocks, _, _ = problem(rows=8)
    with pytest.raises(BadData, match="8 training rows, too few"):
        VerticalClassifier(penalty="auto").fit(blocks, np.arange(8) % 2)


@pytest.mark.parametrize(
    "text", ['[model]\nstrength = "auto"', "[model]\nstrength = [1.0, 0.1]", "[method]\nearly_stopping = 3"]
)
def test_organisations_and_vafl_refuse_in_a_paragraph(text):
    with pytest.raises(BadJob, match="so far"):
        job_from_text(f'name = "x"\nparties = ["a", "b", "c"]\nlabels_at = ["a"]\n{text}')
    with pytest.raises(BadJob, match="vafl trains networks"):
        job_from({"algorithm": "vafl", "penalty": "auto"})
    with pytest.raises(BadJob, match="horizontal runs begin anew"):
        job_from({"algorithm": "steady", "start": "run"})


def test_a_run_that_is_stopped_on_the_walk_keeps_nothing_and_says_so():
    blocks, _, score = problem()
    data = vertical_from_arrays(blocks, score > 0, ["bank"])
    job = job_from({"penalty": "auto", "optimum": False})
    with pytest.raises(OffbeatError, match="stopped while it tried the penalty 1: no model is kept"):
        run_experiment(data, job, watch=lambda now: now.trying is None)


# -- when to end -----------------------------------------------------------------------------------------------------


def test_a_level_score_ends_a_run_and_looks_without_one_do_not():
    level = Level(2.0, True, None)
    scores = [(0, 0.5), (1, 0.6), (2, None), (2.5, 0.6), (3.5, 0.59)]
    going = [level.look(Progress(0.0, passes, 0.0, metric=score)) for passes, score in scores]
    assert going == [True, True, True, True, False]
    assert level.reason("stopped; x is kept") == "the held-out score (0.6) has not improved for 2 passes; x is kept"
    falls = Level(2.0, False, None)  # an error, which is to fall
    assert [falls.look(Progress(0.0, p, 0.0, metric=m)) for p, m in [(0, 3.0), (2, 2.0), (3, 1.0), (5, 1.5)]] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("algorithm", ["vfb2-saga", "vafl"])
def test_early_stopping_ends_a_job_and_is_done_again_bit_for_bit(algorithm, tmp_path):
    data = {"set": "credit-like@0.01", "parties": 3, "limit_rows": 200}
    job = job_from({"algorithm": algorithm, "passes": 80, "early_stopping": 3, "optimum": False, "data": data})
    result = run_and_write(job, tmp_path)
    assert result.record.verdict == "target"
    assert "has not improved for 3 passes" in result.record.reason
    assert 3 <= result.record.passes < 80
    assert replay_run(tmp_path)["same"]


def run_and_write(job, folder):
    from offbeat.families.table import family_of

    write_job(job, folder)
    result = run_experiment(family_of(job).load(job), job, folder=folder)
    write_result(result, folder)
    return result


# -- a model to begin with -------------------------------------------------------------------------------------------

SMALL = {"set": "credit-like@0.01", "parties": 3, "limit_rows": 200}


def test_a_warm_start_ends_where_a_cold_one_does_in_fewer_passes():
    blocks, _, score = problem()
    label = score > 0
    model = VerticalClassifier(warm_start=True, target=1e-8).fit(blocks, label)
    first, there = model.n_iter_, model.decision_function(blocks)
    model.fit(blocks, label)
    assert model.n_iter_ < first / 2
    changed = label.copy()
    changed[:5] = ~changed[:5]
    model.fit(blocks, changed)
    cold = VerticalClassifier(target=1e-8).fit(blocks, changed)
    assert model.record_.verdict == cold.record_.verdict == "target"
    far = np.abs(cold.decision_function(blocks) - there).max()
    assert np.abs(model.decision_function(blocks) - cold.decision_function(blocks)).max() < 0.2 * far


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_numbers_begin_where_they_were_whatever_their_units(scale):
    blocks, _, score = problem()
    model = VerticalRegressor(warm_start=True, target=1e-6).fit(blocks, 5 * scale + scale * score)
    there = model.predict(blocks)
    model.set_params(passes=1e-3, target=None).fit(blocks, 5 * scale + scale * score)
    assert np.abs(model.predict(blocks) - there).max() < 0.02 * scale


def test_columns_are_found_by_name_and_new_ones_begin_at_zero():
    import pandas as pd

    blocks, _, score = problem()
    frames = {name: pd.DataFrame(block, columns=list("abcdefgh")) for name, block in blocks.items()}
    model = VerticalClassifier(prepare="none", target=1e-8).fit(frames, score > 0)
    turned = {name: frame[list("hgfedcba")].drop(columns="h").assign(new=1.0) for name, frame in frames.items()}
    from offbeat.families.linear import LinearTraining

    data = vertical_from_arrays(turned, score > 0, ["bank"])
    job = job_from({"optimum": False, "data": {"set": "credit-like"}})
    training = LinearTraining(job, data, start=model.model_.parts)
    for party in training.parties:
        before = model.coefficients_[party.name]
        expected = [before[name] for name in "gfedcba"] + [0.0]
        np.testing.assert_array_equal(party.block.weights()[0, :-1], expected)
    alone = LinearTraining(job, replace(data, train={**data.train}), only="shop", start=model.model_.parts)
    np.testing.assert_array_equal(alone.parties[0].block.weights(), training.blocks["shop"].weights())


def test_other_classes_and_other_parties_cannot_be_begun_with():
    blocks, _, score = problem(rows=60)
    model = VerticalClassifier(warm_start=True).fit(blocks, score > 0)
    with pytest.raises(BadJob, match=r"1 output\(s\) a row, and this run's has 3"):
        model.fit(blocks, np.digitize(score, [-1.0, 1.0]))
    with pytest.raises(BadJob, match="none is in both"):
        model.fit({name.upper(): block for name, block in blocks.items()}, score > 0)


@pytest.mark.parametrize("algorithm", ["vfb2-svrg", "vafl"])
def test_the_command_begins_with_a_run_and_is_done_again(algorithm, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        f'algorithm = "{algorithm}"\npasses = 4\noptimum = false\n'
        '[data]\nset = "credit-like@0.01"\nparties = 3\nlimit_rows = 200\n'
    )
    first, again = tmp_path / "first", tmp_path / "again"
    assert CliRunner().invoke(app, ["run", str(job), "--out", str(first)]).exit_code == 0
    done = CliRunner().invoke(app, ["run", str(job), "--out", str(again), "--from", str(first)])
    assert done.exit_code == 0, done.output
    records = [RunRecord.read(folder) for folder in (first, again)]
    assert records[1].curve[0].objective == pytest.approx(records[0].objective)
    assert records[0].curve[0].objective > records[0].objective
    assert records[1].options["start"] == str(first)
    assert replay_run(again)["same"]
    other = CliRunner().invoke(app, ["run", str(job), "--from", str(first), "--set", "algorithm=afsaga-vp"])
    assert (other.exit_code == 2) == (algorithm == "vafl")


def test_a_run_on_threads_that_began_with_a_model_is_done_again_from_its_logs(tmp_path):
    plain = {"algorithm": "vfb2-svrg", "passes": 2, "optimum": False, "data": SMALL}
    run_and_write(job_from(plain), tmp_path / "first")
    job = job_from({**plain, "start": str(tmp_path / "first"), "runtime": {"kind": "threads"}})
    run_and_write(job, tmp_path / "again")
    assert replay_run(tmp_path / "again", verify=True)["same"]


def test_a_start_that_does_not_fit_is_refused(tmp_path):
    plain = {"algorithm": "vafl", "passes": 1, "optimum": False, "data": SMALL}
    run_and_write(job_from(plain), tmp_path / "run")
    start = {"start": str(tmp_path / "run")}
    with pytest.raises(BadJob, match="kept weights of bank are not those of its network here"):
        run_and_write(job_from({**plain, **start, "data": {**SMALL, "parties": 2}}), tmp_path / "two")
    with pytest.raises(BadJob, match="private run of VAFL begins anew"):
        private = {"epsilon": 1.0, "uploads_max": 5}
        run_and_write(job_from({**plain, **start, "embedding": private}), tmp_path / "private")
    with pytest.raises(BadJob, match="another kind"):
        run_and_write(job_from({**plain, **start, "algorithm": "vfb2-saga"}), tmp_path / "linear")
