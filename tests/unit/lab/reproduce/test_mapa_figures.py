"""The figures' parts on generated pictures: settings, the attack, what is kept, what is concluded."""

import math
from dataclasses import replace

import numpy as np
import pytest

from offbeat.jobs.rules import constants_of
from offbeat.lab.catalogue import LabOptions
from offbeat.lab.reproduce.mapa import ENTRIES, _panel_row, _panel_verdict, _spread_row
from offbeat.lab.reproduce.mapa_edges import iterations_verdict
from offbeat.lab.reproduce.mapa_inversion import as_printed, correlation, recover
from offbeat.lab.reproduce.mapa_pieces import (
    Workshop,
    accounted,
    lines_figure,
    soundly,
    spread_of,
    trained_enough,
    untrained,
)
from offbeat.lab.reproduce.mapa_runs import (
    Courses,
    MapaSetting,
    accuracy_and_loss,
    job_of,
    train,
)
from offbeat.lab.reproduce.mapa_sound import choose
from offbeat.learning.horizontal import LinearModel, edge_data

ROW_KEYS = ("setting", "ours", "published", "verdict")

COURSES = Courses(None, 600, 200)
BASE = MapaSetting("digits-like", "LR", "mapa", "paper", 0.5, updates=60, edges=3, looks=3)


def changed(**changes):
    return replace(BASE, **changes)


@pytest.mark.parametrize("algorithm,mode", [("mapa", "paper"), ("audp", "paper"), ("asgd", "none"), ("csgd", "none")])
@pytest.mark.parametrize("model", ["LR", "SVM", "softmax"])
def test_every_algorithm_trains_every_linear_model(algorithm, mode, model):
    result = train(COURSES, changed(algorithm=algorithm, mode=mode, model=model))
    assert result["updates"] == 60 and 0 <= result["accuracy"] <= 1 and math.isfinite(result["loss"])
    assert result["privacy"] is None


@pytest.mark.parametrize("algorithm,updates", [("fedasync", 60), ("fedbuff", 6), ("fixed", 60)])
def test_what_is_run_today_trains_on_the_same_rows(algorithm, updates):
    result = train(COURSES, changed(algorithm=algorithm, mode="none", model="softmax", step=0.1))
    assert result["updates"] == updates and result["accuracy"] > 0.3 and result["privacy"] is None


def test_a_sound_training_states_both_adjacencies():
    result = train(COURSES, changed(algorithm="fixed", mode="sound", epsilon=3.0, batch=40, clip=0.5, step=2.0))
    assert result["privacy"]["add-remove"] < result["privacy"]["replace-one"] <= 3.0
    assert "replace-one" in accounted([result]) and "add-remove" in accounted([result])


def test_paper_mode_takes_the_printed_constants_and_sound_mode_public_ones():
    rows, _ = COURSES.rows(BASE)
    printed = constants_of(job_of(BASE, rows))
    assert printed.smoothness == 10.0 and (printed.lag_max, printed.late) == (3, 4)
    public = constants_of(job_of(changed(mode="sound"), rows))
    assert public.smoothness == pytest.approx(0.25 * 17 + 1e-4)


def test_sound_rows_have_one_norm_and_halves_split_the_digits():
    rows, _ = COURSES.rows(changed(mode="sound"))
    assert np.allclose(rows["edge1"].norms, math.sqrt(17), atol=1e-4)
    parity, halves = COURSES.rows(BASE)[0]["edge1"], COURSES.rows(changed(split="halves"))[0]["edge1"]
    assert not np.array_equal(parity.labels, halves.labels)


def test_one_pass_gives_accuracy_and_loss():
    deep = pytest.importorskip("offbeat.learning.deep_horizontal", reason="the extra `deep` is not installed")
    pytest.importorskip("torch", reason="the extra `deep` is not installed")
    model, rng = deep.digits_model(16, 0, (2, 2)), np.random.default_rng(0)
    rows = edge_data(rng.random((30, 256)).astype(np.float32), rng.integers(0, 10, 30))
    accuracy, loss = accuracy_and_loss(model, model.start(), rows)
    assert accuracy == model.accuracy(model.start(), rows)
    assert loss == pytest.approx(model.loss(model.start(), rows), abs=1e-5)


def test_a_threshold_ends_a_training_early():
    result = train(COURSES, changed(algorithm="csgd", mode="none", updates=5000, until_loss=0.6))
    assert result["reached"] is not None and result["reached"] < 5000


def test_the_attack_recovers_a_row_exactly_without_noise_and_hardly_with_much():
    model = LinearModel("softmax", 9, 3)
    row = edge_data(np.random.default_rng(0).random((1, 9)), np.array([2]))
    gradient = model.gradient_sum(np.zeros(model.dimension), row, np.array([0]))
    assert np.allclose(recover(model, gradient), row.features[0])
    assert correlation(recover(model, as_printed(5.0, 1e6, 0)(gradient, 0)), row.features[0]) > 0.999
    noisy = [correlation(recover(model, as_printed(5.0, 1e-3, 0)(gradient, n)), row.features[0]) for n in range(40)]
    assert abs(np.mean(noisy)) < 0.3


@pytest.mark.slow
def test_a_setting_is_chosen_by_training_rows_that_are_held_out(tmp_path):
    held = changed(held_out=True)
    mine, judged = COURSES.rows(held)
    everything, test = COURSES.rows(BASE)
    assert sum(rows.rows for rows in mine.values()) == 500 and judged.rows == 100
    assert sum(rows.rows for rows in everything.values()) == 600 and test.rows == 200
    seen = {row.tobytes() for rows in mine.values() for row in rows.features}
    assert not seen & {row.tobytes() for row in judged.features}, "no row is trained on and judged by"
    shop = Workshop("choice", LabOptions(quick=True, out=tmp_path), 600)
    base = changed(algorithm="fixed", mode="sound", model="softmax", epsilon=8.0, batch=40, clip=1.0)
    choice = choose(shop, [replace(base, step=step) for step in (1e-6, 1.0)])
    assert choice.setting == replace(base, step=1.0) and choice.tried[0][2] < choice.tried[1][2]
    assert all("held_out=True" in key for key in shop.kept.pieces), "the test rows stay unseen"


def test_what_is_by_rule_is_left_to_the_job():
    ruled = changed(mode="sound", by_rule=True)
    job = job_of(ruled, COURSES.rows(ruled)[0])
    assert (job.rate.clip, job.rate.floor, job.rate.step) == (None, None, None)
    assert (job.constants.smoothness, job.constants.lag) == (None, None)


def test_the_proxy_is_another_set_at_the_same_size():
    proxy = COURSES.proxy(changed(mode="sound"))
    assert proxy.features.shape[1] == 784 and np.allclose(proxy.norms, math.sqrt(17), atol=1e-4)
    rows, _ = COURSES.rows(changed(mode="sound"))
    sharp, worst = (constants_of(job_of(changed(mode="sound"), rows, seen)) for seen in (proxy, None))
    assert sharp.smoothness < worst.smoothness and (sharp.late, worst.late) == (3, 4)


def test_only_what_is_unusual_tells_pieces_apart():
    assert BASE.key() == "digits-like LR mapa paper epsilon=0.5 edges=3 updates=60 looks=3"
    assert replace(BASE, held_out=True).key() == f"{BASE.key()} held_out=True"


def test_pieces_are_kept_and_not_trained_twice(tmp_path):
    said = []
    options = LabOptions(quick=True, out=tmp_path, say=said.append)
    first = Workshop("piece", options, 300).train(BASE)
    again = Workshop("piece", options, 300).train(BASE)
    assert first == again and len(said) == 2 and "1 finished pieces" in said[1]


def test_figures_are_drawn(tmp_path):
    paths = lines_figure(
        [("a panel", {"mapa": [(0.1, 0.8), (0.5, 0.9)], "audp": [(0.1, 0.7), (0.5, 0.8)]})], tmp_path / "x", "e"
    )
    assert all(path.stat().st_size > 1000 for path in paths)


def test_verdicts_follow_the_numbers():
    lines = {
        name: [(0.1, value), (0.5, value + 0.02)]
        for name, value in (("mapa", 0.9), ("audp", 0.8), ("asgd", 0.91), ("csgd", 0.93))
    }
    row = _panel_row("panel", lines)
    assert set(ROW_KEYS) <= set(row) and row["verdict"] == "agrees"
    assert _panel_verdict(False, -0.2, -0.1) == "does not agree"
    steady, moving = {1.0: {"accuracy": 0.9}, 2.0: {"accuracy": 0.91}}, {1.0: {"accuracy": 0.5}, 2.0: {"accuracy": 0.9}}
    assert spread_of(moving) == pytest.approx(0.4)
    assert _spread_row("(paper)", moving, steady)["verdict"] == "agrees"


def made_up(setting):
    """What a training would return, without training."""
    accuracy = 0.7 + 0.2 * (hash(setting.key()) % 100) / 100
    curve = [[float(at), accuracy * at / 10, 2.0 - at / 10, 1.0, 1.0] for at in range(1, 11)]
    return {
        "accuracy": accuracy, "accuracy_averaged": accuracy, "loss": 1.0, "curve": curve, "stage": 1, "clip": 1.0,
        "updates": setting.updates, "reached": None if setting.edges == 1000 else 70, "lag_mean": 4.0, "lag_max": 9,
        "privacy": {"replace-one": 3.0, "add-remove": 1.5, "delta": 1e-5} if setting.mode == "sound" else None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "entry,quick",
    [(entry, False) for entry in ENTRIES if entry.name != "mapa-fig4"] + [(entry, True) for entry in ENTRIES[3:5]],
    ids=lambda value: getattr(value, "name", f"quick={value}"),
)
def test_every_panel_is_drawn_twice_and_every_row_judged(monkeypatch, tmp_path, entry, quick):
    monkeypatch.setattr(Workshop, "train", lambda shop, setting: made_up(setting))
    result = entry.function(LabOptions(quick=quick, out=tmp_path))
    assert all(set(ROW_KEYS) <= set(row) and row["verdict"] for row in result.rows)
    assert result.figures and all(path.stat().st_size > 1000 for path in result.figures)
    text = " ".join(f"{row['setting']} {row['verdict']}" for row in result.rows)
    assert "replace-one" in text or "sound" not in text, "a sound row states its epsilon"
    if entry.name.startswith("mapa-fig"):
        assert "(paper)" in text and ("sound" in text or quick)
        assert any("not differentially private" in note for note in result.notes)
    else:
        assert any("not in the epsilon" in note for note in result.notes)


@pytest.mark.parametrize(
    "counts,edges,verdict",
    [((10, 90, 500), 10, "agrees"), ((90, 10, 500), 10, "agrees in part"), ((None, 10, None), 100, "does not agree")],
)
def test_iterations_are_judged_against_the_print(counts, edges, verdict):
    assert iterations_verdict(*counts, edges, 1000) == verdict
    assert "not judged" in iterations_verdict(None, None, 5, edges, 1000)


def test_an_untrained_network_is_not_judged():
    assert trained_enough(0.7) and not trained_enough(0.69) and "not judged" in untrained(0.3)
    lines = {name: [(0.1, 0.3), (0.5, 0.4)] for name in ("mapa", "audp", "asgd", "csgd")}
    assert "not judged" in _panel_row("CNN, USPS (paper)", lines)["verdict"]


def test_every_figure_is_listed_once():
    assert [entry.name for entry in ENTRIES] == [
        *(f"mapa-fig{n}" for n in range(4, 10)),
        "mapa-epsilon",
        "mapa-sound",
        "mapa-today",
    ]


def test_modes_are_what_they_say():
    rows, _ = COURSES.rows(BASE)
    assert job_of(BASE, rows).privacy.mode == "batch-mean (paper)"
    sound = job_of(soundly(BASE, 600, epsilon=2.0), rows).privacy
    assert (sound.mode, sound.epsilon) == ("sound", 2.0)
