"""The machinery behind VAFL's redrawn figures, on a tiny generated problem."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from offbeat.algorithms.vafl import one_hot
from offbeat.lab.bench import vafl_gpu
from offbeat.lab.catalogue import LabOptions, catalogue
from offbeat.lab.reproduce import vafl_private
from offbeat.lab.reproduce.bar import Bar
from offbeat.lab.reproduce.vafl_central import pooled_linear
from offbeat.lab.reproduce.vafl_panels import TITLES, PanelCells, figure_of, rows_of, run_panels
from offbeat.lab.reproduce.vafl_problems import VaflProblem
from offbeat.lab.reproduce.vafl_runs import NONE, PUBLISHED, Delays, VaflRun, VaflTrial, kept, kept_run, run_trial
from offbeat.learning.embeddings import AdditiveHead, ClientPenalty, LinearEmbedding, Sgd


def tiny():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(260, 6))
    targets = one_hot(np.argmax(x @ rng.normal(size=(6, 3)), axis=1), 3)
    parts = {f"client{k}": x[:, 2 * k : 2 * k + 2] for k in range(3)}
    return VaflProblem(
        name="tiny",
        source="generated",
        features={name: part[:200] for name, part in parts.items()},
        test_features={name: part[200:] for name, part in parts.items()},
        targets=targets[:200],
        test_targets=targets[200:],
        embeddings=lambda: {name: LinearEmbedding(2, 3) for name in parts},
        head=lambda: AdditiveHead(3),
        optimiser=Sgd(0.3),
        penalty=ClientPenalty("l2", 1e-3),
    )


def test_everyone_is_looked_at_at_the_same_times():
    runs = [run_trial(tiny(), VaflTrial(variant, PUBLISHED, batch=10, units=60, looks=12)) for variant in TITLES]
    assert [[look[0] for look in run.looks] for run in runs[1:]] == [[look[0] for look in runs[0].looks]] * 2
    assert len(runs[0].looks) == 13
    assert all(run.looks[-1][1] < run.looks[0][1] for run in runs)


def test_a_unit_of_time_is_one_batch_of_a_fast_client():
    """Without delays a synchronous round takes one unit, two trips, and the head's arithmetic on a faster machine."""
    run = run_trial(tiny(), VaflTrial("vafl-sync", NONE, batch=20, units=100, looks=4))
    assert run.iterations == pytest.approx(100 / (1 + 2 * 0.05 + 0.5 / 20), rel=0.02)


def test_rows_say_what_they_must(tmp_path):
    said = []
    options = LabOptions(out=tmp_path, say=said.append)
    trial = VaflTrial("vafl", PUBLISHED, batch=10, units=100, looks=12)
    problem = tiny()
    cells = PanelCells(
        problem, trial, {"vafl": 0.1}, lambda passes, looks: pooled_linear(problem, 10, passes, 0, looks), (1.0, 2.0)
    )
    (panel,) = run_panels([cells], options)
    rows = rows_of(panel)
    assert [row["setting"].rpartition(": ")[2] for row in rows] == ["sync", "t-sync", "async", "async, c = 0.1"]
    assert rows[0]["ours"] == 1.0
    assert "no privacy claim" in rows[3]["verdict"]
    assert all({"setting", "ours", "published", "verdict"} <= row.keys() for row in rows)
    drawn = figure_of([panel], tmp_path / "figure", "A figure")
    assert all(path.is_file() for path in drawn)
    assert len(said) == cells.count == 8
    assert said[0].startswith("1 of 8: tiny")
    assert {row["head step"] for row in rows} <= {0.3, 0.6}
    assert all(row["centralised, equal passes"] <= row["centralised, to its end"] for row in rows)
    assert panel.central[-1][0] == pytest.approx(3 * max(run.passes for run in panel.runs.values()), rel=0.02)


def test_a_variant_keeps_the_head_step_that_ends_at_the_lower_training_loss(tmp_path):
    problem, trial = tiny(), VaflTrial("vafl", NONE, batch=10, units=40, looks=4)
    cells = PanelCells(problem, trial, {}, lambda passes, looks: [(passes, 1.0, 0.5)], (1e-6, 1.0))
    (panel,) = run_panels([cells], LabOptions(out=tmp_path))
    ends = {head: run_trial(problem, replace(trial, head=head)).final_loss for head in cells.heads}
    assert panel.heads["vafl"] == min(ends, key=ends.get)
    assert panel.runs["async"].final_loss == min(ends.values())


def test_clients_wait_a_poisson_number_of_units_of_their_own_mean():
    """Alone, a synchronous round takes one unit of computing, its trips, and the longest of the waits."""
    calm, late = (
        run_trial(tiny(), VaflTrial("vafl-sync", delays, batch=20, units=2000, looks=2))
        for delays in (NONE, Delays("waits", waits=(0.0, 3.0)))
    )
    longest = np.random.default_rng(0).poisson([0.0, 1.5, 3.0], size=(20_000, 3)).max(axis=1).mean()
    assert 2000 / late.iterations - 2000 / calm.iterations == pytest.approx(longest, rel=0.06)


def pooled_regression(problem):
    """(objective, test accuracy) of scikit-learn's solver on all columns together: what centralised training gives."""
    parts = (problem.features, problem.test_features)
    x, test = (np.hstack([part[name] for name in problem.clients]) for part in parts)
    y, y_test = (np.argmax(targets, axis=1) for targets in (problem.targets, problem.test_targets))
    model = LogisticRegression(C=1 / (problem.penalty.size * len(x)), tol=1e-4, max_iter=200).fit(x, y)
    loss = -np.mean(np.log(model.predict_proba(x)[np.arange(len(x)), y]))
    return loss + 0.5 * problem.penalty.size * np.sum(model.coef_**2), np.mean(model.predict(test) == y_test)


def test_centralised_training_by_the_same_rule_comes_to_the_optimum():
    problem = tiny()
    (*_, (passes, loss, accuracy)) = pooled_linear(problem, 20, 600.0, 0, looks=3)
    assert passes == 600.0
    best, best_accuracy = pooled_regression(problem)
    assert best - 1e-6 <= loss < 1.02 * best
    assert accuracy == pytest.approx(best_accuracy, abs=0.02)


def test_a_bar_counts_parts_and_shares_of_them(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Bar(4, pytest.fail) as bar:
        bar.begin("one")
        bar.begin("two")
        bar.at(0.5)
        (task,) = bar.shown.tasks
        assert (task.completed, task.total, task.description) == (1.5, 4, "two")
    assert task.percentage == 37.5


def test_an_interrupted_job_goes_on_where_it_was(tmp_path):
    problem, trial = tiny(), VaflTrial("vafl", PUBLISHED, batch=10, units=30, looks=3)
    first = kept_run(tmp_path, problem, trial, "one")
    stored = json.loads((tmp_path / "one.json").read_text())
    stored["result"]["verdict"] = "from the file"
    (tmp_path / "one.json").write_text(json.dumps(stored))
    again = kept_run(tmp_path, problem, trial, "one")
    assert again == replace(first, verdict="from the file")
    other = kept_run(tmp_path, problem, replace(trial, seed=1), "one")
    assert other.verdict != "from the file"


def test_kept_results_survive_only_for_the_same_question(tmp_path):
    assert kept(tmp_path, "a", {"x": 1}, lambda: {"v": 1}) == {"v": 1}
    assert kept(tmp_path, "a", {"x": 1}, lambda: {"v": 2}) == {"v": 1}
    assert kept(tmp_path, "a", {"x": 2}, lambda: {"v": 2}) == {"v": 2}


def test_time_to_a_loss_needs_three_looks():
    looks = [(float(t), loss, 0.0) for t, loss in enumerate([4.0, 0.5, 4.0, 1.0, 1.0, 1.0])]
    run = VaflRun(looks, 1.0, 5, 1, 0.0, 0, 0.0, "")
    assert run.time_to(1.0) == 5.0
    assert run.time_to(0.5) is None
    assert run.loss_at(5.0) == pytest.approx(1.0)


def test_settings_are_chosen_by_training_rows_that_are_held_out():
    problem = tiny()
    part = problem.held_out_part(3, most=150)
    every = problem.features["client0"]
    kept, judged = (
        {int(np.flatnonzero((every == row).all(axis=1))[0]) for row in side["client0"]}
        for side in (part.features, part.test_features)
    )
    assert (len(kept), len(judged)) == (150, 40) and kept.isdisjoint(judged)
    np.testing.assert_array_equal(part.test_targets.sum(axis=0), problem.targets[sorted(judged)].sum(axis=0))
    assert "judged by 40 others" in part.source


def test_the_private_rows_say_what_was_chosen_and_spent(tmp_path, monkeypatch):
    monkeypatch.setattr(vafl_private, "picture_columns", lambda *args, **kwargs: tiny())
    monkeypatch.setattr(vafl_private, "ROW_NORMS", (1.0, 2.0))
    monkeypatch.setattr(vafl_private, "GRADIENT_CLIPS", (1.0,))
    told = vafl_private.privacy(LabOptions(quick=True, out=tmp_path))
    assert len(told.more["held out"]) == 2 and "the best of 2 settings" in told.notes[0]
    rows = {row["setting"]: row for row in told.rows}
    assert rows["tiny, private, epsilon 4, delta 1e-05"]["verdict"] == (
        "spent 4.00: 1 uploads, 1 steps, a covariance a record"
    )
    assert rows["tiny, three uploads, epsilon 4, delta 1e-05"]["verdict"] == "spent 4.00: 3 uploads, 3 steps a record"


def test_all_five_are_listed():
    assert {"vafl-fig3", "vafl-fig4", "vafl-fig5-6", "vafl-fig7-8", "vafl-privacy"} <= catalogue("reproduce").keys()


def test_the_bench_says_plainly_when_there_is_no_device():
    torch = pytest.importorskip("torch", reason="networks need the deep extra")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    said = []
    result = vafl_gpu.vafl_gpu(LabOptions(say=said.append))
    assert said == ["no CUDA device"]
    assert (list(result.rows), list(result.notes)) == ([], ["no CUDA device"])


def test_the_bench_measures_on_any_device():
    pytest.importorskip("torch", reason="networks need the deep extra")
    rows = vafl_gpu.measure("cpu", rows=32, batches=(16,), channels=2, repeats=1, say=lambda line: None)
    assert [row["way"] for row in rows] == [
        "centralised PyTorch",
        "vafl, one thread",
        "vafl, a thread for each party",
    ]
    assert rows[0]["of_centralised"] == 1.0
