"""Horizontal jobs: reading, building, running, and what the record says."""

import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from offbeat.algorithms.fedbuff import BufferedMean, Mixing
from offbeat.algorithms.mapa.privacy import Paper, Sound, Unprotected
from offbeat.algorithms.mapa.rates import AsyncRate, NoisyRate, QuietRate, StagedRate, SteadyRate, first_clip
from offbeat.cli.root import app
from offbeat.data.horizontal import horizontal_from_arrays
from offbeat.errors import BadData, BadInput, BadJob
from offbeat.families.horizontal import build_cloud, load_edges, privacy_of, rising, rows_for
from offbeat.jobs.horizontal import edge_job_from
from offbeat.jobs.methods import horizontal_named
from offbeat.jobs.reading import job_from, read_tree
from offbeat.jobs.rules import constants_of, model_of, plain_step
from offbeat.metrics.record import RunRecord
from offbeat.run.experiment import run_experiment

SMALL = {
    "updates": 40,
    "batch": 20,
    "seed": 1,
    "algorithm": "steady",
    "model": {"kind": "softmax", "features": 6, "classes": 3, "row_norm": 1.0},
    "rate": {"clip": 1.0, "step": 2.0},
    "privacy": {"epsilon": 4.0, "uploads": 15},
}


def changed(**changes):
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()}
    for key, value in changes.items():
        if isinstance(value, dict):
            tree.setdefault(key, {}).update(value)
        else:
            tree[key] = value
    return edge_job_from(tree)


def read_edge_job(path):
    return edge_job_from(read_tree(path), str(path))


def rule_of(job):
    return horizontal_named(job.algorithm).rule(job)


def data(edges=4):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((900, 6))
    y = (x @ rng.standard_normal((6, 3))).argmax(axis=1)
    return horizontal_from_arrays(x[:700], y[:700], x[700:], y[700:], edges, source="generated blobs")


def test_a_file_is_read_and_its_mistakes_are_named(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('run = "x"\nupdates = 7\n[privacy]\nepsilon = { a = 1.0, b = 2.0 }\n')
    job = read_edge_job(path)
    assert job.updates == 7 and job.privacy.epsilon == {"a": 1.0, "b": 2.0}
    for text, said in [
        ("updats = 3", "Did you mean 'updates'"),
        ("[privacy]\nepsilonn = 3.0", "Did you mean 'epsilon'"),
        ("updates = 'many'", "updates"),
        ("algorithm = 'mappa'", "mapa"),
        ("[privacy]\nmode = 'paper'", "batch-mean"),
        ("updates = 0", "updates must be a whole number between 1 and"),
        ("[rate]\nclip = -1.0", "above 0"),
        ("updates = ", "TOML"),
    ]:
        path.write_text(text)
        with pytest.raises(BadJob, match=said):
            read_edge_job(path)
    with pytest.raises(BadJob, match="no job file"):
        read_edge_job(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "algorithm,kind",
    [("mapa", StagedRate), ("audp", NoisyRate), ("asgd", AsyncRate), ("steady", SteadyRate)],
)
def test_algorithms_have_their_rates(algorithm, kind):
    assert isinstance(rule_of(changed(algorithm=algorithm)).rate, kind)


def test_baselines_have_their_rules_and_modes_their_privacy():
    assert isinstance(rule_of(changed(algorithm="fedasync")), Mixing)
    assert isinstance(rule_of(changed(algorithm="fedbuff")), BufferedMean)
    assert isinstance(privacy_of(changed()), Sound)
    assert isinstance(privacy_of(changed(privacy={"mode": "batch-mean (paper)"})), Paper)
    assert isinstance(privacy_of(changed(privacy={"mode": "none"})), Unprotected)
    assert isinstance(privacy_of(changed(algorithm="asgd")), Unprotected)
    assert privacy_of(changed(rate={"adaptive": True})).adaptive is not None


def test_constants_come_from_public_bounds_unless_given():
    derived = constants_of(changed())
    assert derived.smoothness == pytest.approx(1.0, abs=1e-3) and derived.gap == pytest.approx(math.log(3))
    assert constants_of(changed(constants={"smoothness": 5.0})).smoothness == 5.0


# -- what follows from public numbers ---------------------------------------------------------------------------------

BY_RULE = {"seed": 1, "model": {"features": 6, "classes": 3}}


def ruled(**changes):
    return edge_job_from({**BY_RULE, **changes})


def test_a_job_that_counts_edges_and_names_no_method_is_horizontal():
    assert job_from({"data": {"set": "mnist", "edges": 5}}).algorithm == "steady"
    assert job_from({"data": {"set": "credit-like"}}).algorithm == "vfb2-saga"


def test_uploads_are_each_edges_part_of_all_updates_unless_given():
    assert ruled(updates=100, data={"edges": 3}).privacy.uploads == 34
    assert ruled(updates=100, data={"edges": ["a", "b"]}).privacy.uploads == 50
    assert ruled(updates=100, privacy={"uploads": 7}).privacy.uploads == 7


def test_clip_and_step_follow_from_the_models_form_and_the_noise():
    job = ruled(updates=400)
    rate = rule_of(job).rate
    clip = math.sqrt(2 / 3) * math.sqrt(17) / 2
    assert isinstance(rate, QuietRate) and rate.clip == pytest.approx(clip)
    rate.noise(21 * 0.25)  # a deviation of one half on each of 21 coordinates
    assert rate.step(1) == pytest.approx(1.5 / (0.5 * math.sqrt(400) * clip * math.sqrt(17)))
    assert rule_of(ruled(rate={"step": 0.25})).rate == SteadyRate(0.25, rate.clip)
    assert rule_of(ruled(rate={"adaptive": True})).rate.adaptive.quantile == 0.8
    assert rule_of(ruled(algorithm="audp")).rate.clip == rate.clip


def test_without_noise_nothing_is_clipped_and_the_step_follows_from_the_curvature():
    job = ruled(privacy={"mode": "none"})
    assert rule_of(job).rate == SteadyRate(2 / (8.5 + 1e-4))
    assert plain_step(ruled(algorithm="fedasync")) == pytest.approx(2 / 8.5, rel=1e-4)
    assert plain_step(ruled(algorithm="fedasync", rate={"step": 3.0})) == 3.0


def test_mapa_by_rule_begins_at_the_longest_gradient_and_stops_where_steady_clips():
    rule = rule_of(ruled(algorithm="mapa"))
    assert rule.lag == rule.rate.constants.lag == 5
    assert rule.rate.constants.smoothness == pytest.approx((8.5 + 1e-4) / 100)
    assert rule.rate.clip == pytest.approx(math.sqrt(2 * 17))
    assert rule.rate.floor == pytest.approx(math.sqrt(2 / 3) * math.sqrt(17) / 2)
    given = ruled(algorithm="mapa", rate={"clip": 9.0, "floor": 0.5}, constants={"smoothness": 2.0, "lag": 7})
    rate = rule_of(given).rate
    assert (rate.clip, rate.floor, rate.constants.smoothness, rate.constants.lag) == (9.0, 0.5, 2.0, 7)


def test_mapa_as_printed_takes_no_rule_of_ours():
    rule = rule_of(ruled(algorithm="mapa", privacy={"mode": "batch-mean (paper)", "epsilon": 0.1}))
    assert rule.lag is None and rule.rate.constants.late == 61 and rule.rate.floor == 0.0
    assert rule.rate.constants.smoothness == pytest.approx(8.5 + 1e-4)
    assert rule.rate.clip == pytest.approx(first_clip(math.sqrt(34), 1e-3))


def test_a_network_is_clipped_at_one_and_steps_by_the_noise():
    pytest.importorskip("torch", reason="networks need the deep extra")
    rate = rule_of(ruled(model={"kind": "digits-network", "side": 12})).rate
    assert isinstance(rate, QuietRate) and rate.clip == 1.0 and rate.bound.norm == pytest.approx(math.sqrt(17))


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "edge-job-file.md"


@pytest.mark.parametrize("algorithm", [None, "mapa"])
def test_the_example_of_the_reference_page_learns(algorithm):
    """On generated digits, of which there are so few at each edge that a fixed step of 0.9 would only spread noise."""
    tree = tomllib.loads(PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0])
    tree["data"]["set"] = "digits-like"
    tree |= {"updates": 600, **({"algorithm": algorithm} if algorithm else {})}
    job = job_from(tree)
    record = run_experiment(load_edges(job), job).record
    assert record.metrics["test_accuracy"] > (0.8 if algorithm is None else 0.7)
    assert record.curve[-1].objective < 0.5 * record.curve[0].objective
    assert not [warning for warning in record.warnings if "objective" in warning or "stage" in warning]
    assert {"clip", "step"} == record.options["chosen"].keys()


def test_a_run_says_when_its_objective_rises():
    record = run_experiment(data(), changed(rate={"step": 60.0}, privacy={"epsilon": 0.5})).record
    (said,) = [warning for warning in record.warnings if "objective" in warning]
    assert said.startswith("The objective rose from 1.1 to")


@pytest.mark.parametrize(
    ("objectives", "words"),
    [
        ([2.0], None),
        ([2.0, 1.0], None),
        ([2.0, 2.0], None),
        ([2.0, 1.0, 1.2], None),
        ([2.0, 1.0, 1.3], "fell from 2 to 1 and rose again to 1.3"),
        ([2.0, 1.0, 3.0], "rose from 2 to 3"),
    ],
)
def test_an_objective_may_take_back_a_quarter_of_its_fall(objectives, words):
    found = rising(objectives, by_rule=False)
    assert (found == []) if words is None else (words in found[0] and "Leave rate.step and rate.clip out" in found[0])
    assert all("Set a shorter rate.step;" in said for said in rising(objectives, by_rule=True))


def test_a_run_says_when_its_schedule_never_leaves_the_first_stage():
    job = changed(algorithm="mapa", constants={"smoothness": 50.0, "lag": 60})
    (said,) = [warning for warning in run_experiment(data(), job).record.warnings if "stage" in warning]
    assert said.startswith("The first stage never ended: it lasts ") and "40 were made" in said


def test_edges_differ_in_speed_unless_said_otherwise_whatever_else_the_table_says():
    assert changed().runtime.jitter == changed(runtime={"kind": "threads"}).runtime.jitter == "lognormal"
    assert changed(runtime={"jitter": "none"}).runtime.jitter == "none"


def test_rows_are_scaled_by_their_own_norm():
    rows = rows_for(changed(), np.array([[3.0, 4.0, 0, 0, 0, 0]]), np.array([1]))
    assert rows.features[0, :2].tolist() == pytest.approx([0.6, 0.8])
    four = rows_for(changed(model={"row_norm": 4.0}), np.array([[3.0, 4.0, 0, 0, 0, 0]]), np.array([1]))
    assert four.norms[0] == pytest.approx(math.sqrt(17), abs=1e-5)
    assert constants_of(changed(model={"row_norm": 4.0})).smoothness == pytest.approx(8.5, abs=1e-3)
    with pytest.raises(BadJob, match="norm_max"):
        constants_of(changed(model={"rows": "plain"}))
    plain = rows_for(changed(model={"rows": "plain"}), np.array([[3.0, 4.0, 0, 0, 0, 0]]), np.array([1]))
    assert plain.features[0, 0] == 3.0


def test_a_sound_run_states_what_it_spent(tmp_path):
    result = run_experiment(data(), changed())
    record = result.record
    assert record.verdict == "passes" and record.metrics["test_accuracy"] > 0.6
    assert all(stated["epsilon"] <= 4.0 for stated in result.record.privacy.values())
    (promise,) = record.promises
    assert "differentially private for replace-one" in promise and promise not in record.warnings
    assert any("seeded" in warning for warning in record.warnings)
    assert {row.message for row in record.reveals} >= {"Upload", "Model", "Hello"}
    assert all(row.reveals for row in record.reveals)
    assert record.parties["cloud"].updates == 40
    assert sum(record.parties[name].updates for name in data().names) > 0
    record.write(tmp_path)
    assert RunRecord.read(tmp_path).privacy["edge1"]["epsilon"] <= 4.0


def test_a_paper_run_says_that_it_is_not_private():
    job = changed(algorithm="mapa", privacy={"mode": "batch-mean (paper)", "epsilon": 0.5})
    result = run_experiment(data(), job)
    assert any("not differentially private" in warning for warning in result.record.warnings)
    assert result.record.promises == ()
    assert result.record.privacy["edge1"]["epsilon"] is None


@pytest.mark.parametrize("algorithm", ["fedasync", "fedbuff", "asgd"])
def test_baselines_run_and_warn(algorithm):
    job = changed(algorithm=algorithm, updates=20, rate={"buffer": 3, "step": 0.5})
    record = run_experiment(data(), job).record
    assert record.verdict == "passes"
    assert any("not differentially private" in warning for warning in record.warnings)


def test_the_same_seed_gives_the_same_record():
    job = changed(privacy={"mode": "batch-mean (paper)"})
    assert run_experiment(data(), job).record.digest == run_experiment(data(), job).record.digest


def test_the_cloud_knows_its_edges():
    cloud = build_cloud(changed(), ("a", "b"))
    assert cloud.waiting_for == {"a", "b"} and cloud.updates == 40


def test_mqtt_init_writes_what_a_broker_needs(tmp_path):
    done = CliRunner().invoke(app, ["mqtt", "init", str(tmp_path / "b"), "--edges", "2", "--json"])
    assert done.exit_code == 0, done.output
    stated = json.loads(done.stdout)
    assert stated["parties"] == ["cloud", "edge1", "edge2"]
    configuration = (tmp_path / "b" / "broker" / "mosquitto.conf").read_text()
    for line in (
        "require_certificate true",
        "use_identity_as_username true",
        "set_tcp_nodelay true",
        "persistence true",
    ):
        assert line in configuration
    assert "listener 8883 127.0.0.1" in configuration, "a broker for this machine is not for others"
    CliRunner().invoke(app, ["mqtt", "init", str(tmp_path / "c"), "--edges", "1", "--host", "broker.example"])
    assert "listener 8883 0.0.0.0" in (tmp_path / "c" / "broker" / "mosquitto.conf").read_text()
    chosen = ["--edges", "1", "--host", "broker.example", "--bind", "10.0.0.7"]
    CliRunner().invoke(app, ["mqtt", "init", str(tmp_path / "d"), *chosen])
    assert "listener 8883 10.0.0.7" in (tmp_path / "d" / "broker" / "mosquitto.conf").read_text()
    key = tmp_path / "b" / "parties" / "edge1" / "edge1.key"
    assert key.stat().st_mode & 0o077 == 0
    before = key.read_bytes()
    CliRunner().invoke(app, ["mqtt", "init", str(tmp_path / "b"), "--edges", "3"])
    assert key.read_bytes() == before and (tmp_path / "b" / "parties" / "edge3" / "edge3.crt").exists()


@pytest.mark.parametrize("arguments", [["--name", "Oslo Site"], ["--port", "0"]])
def test_mqtt_init_explains_mistakes(tmp_path, arguments):
    done = CliRunner().invoke(app, ["mqtt", "init", str(tmp_path), *arguments])
    assert done.exit_code == BadInput.exit_code and done.stderr.startswith("offbeat: ")


def test_edge_serve_explains_mistakes(tmp_path):
    (tmp_path / "job.toml").write_text("updates = 3\n")
    np.savez(tmp_path / "half.npz", x=np.ones((2, 784)))
    np.savez(tmp_path / "empty.npz", x=np.ones((0, 784)), y=np.ones(0))
    np.savez(tmp_path / "uneven.npz", x=np.ones((2, 784)), y=np.array([0, 1, 0]))
    np.savez(tmp_path / "narrow.npz", x=np.ones((2, 5)), y=np.array([0, 1]))
    np.savez(tmp_path / "labels.npz", x=np.ones((2, 784)), y=np.array([5, 12]))
    np.savez(tmp_path / "text.npz", x=np.array([["a", "b"]]), y=np.array([0]))
    np.savez(tmp_path / "named.npz", x=np.ones((2, 784)), y=np.array(["yes", "no"]))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "half.npz").read_bytes()[:200])
    common = ["edge", "serve", str(tmp_path / "job.toml"), "--name", "edge1", "--identity", str(tmp_path),
              "--state", str(tmp_path)]  # fmt: skip
    for file, said in (
        ("none.npz", "no file"),
        ("half.npz", "no array 'y'"),
        ("job.toml", "not an .npz"),
        ("cut.npz", "not an .npz"),
        ("empty.npz", "one label for each row"),
        ("uneven.npz", "one label for each row"),
        ("text.npz", "must be numbers"),
        ("named.npz", "must be numbers"),
        ("narrow.npz", "has 784 columns, and these rows have 5"),
        ("labels.npz", "the largest label is 12"),
    ):
        done = CliRunner().invoke(app, [*common, "--data", str(tmp_path / file)])
        assert done.exit_code == BadData.exit_code and said in done.stderr, file


def test_a_network_needs_constants_that_its_form_does_not_give():
    network = {"kind": "digits-network", "side": 12}
    with pytest.raises(BadJob, match=r"needs constants\.smoothness for a network"):
        constants_of(changed(algorithm="mapa", model=network))
    given = changed(algorithm="mapa", model=network, constants={"smoothness": 2.0, "deviation": 3.0, "lag": 4})
    found = constants_of(given)
    assert (found.smoothness, found.deviation, found.late) == (2.0, 3.0, 5)
    assert found.gap == pytest.approx(math.log(given.model.classes))


def test_a_network_as_printed_has_noise_on_its_first_layer_alone():
    pytest.importorskip("torch", reason="the extra `deep` is not installed")
    printed = {"mode": "batch-mean (paper)"}
    job = changed(algorithm="mapa", model={"kind": "digits-network", "side": 12}, privacy=printed)
    assert privacy_of(job) == Paper(4.0, model_of(job).first_layer)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"rate": {"step": math.inf}}, "rate.step must be a finite number above 0; got inf"),
        ({"privacy": {"epsilon": {"edge1": math.nan}}}, "privacy.epsilon must be a finite number above 0 or a table"),
        ({"runtime": {"slow": {"edge1": 1e9}}}, "a number between 1 and 1000"),
        ({"runtime": {"jitter_cv": math.inf}}, "runtime.jitter_cv must be a number between 0 and 10; got inf"),
        ({"strength": -1.0}, "strength must be a finite number of 0 or more"),
        ({"rate": {"mixing": 5.0}}, "rate.mixing must be a number above 0 and at most 1"),
        ({"rate": {"decay": -3.0}}, "rate.decay must be a finite number of 0 or more"),
        ({"rate": {"local_steps": 0}}, "rate.local_steps must be a whole number between 1 and"),
        ({"rate": {"buffer": 0}}, "rate.buffer must be a whole number between 1 and"),
        ({"rate": {"shrink": 2.0}}, "rate.shrink must be a number above 0 and at most 1"),
        ({"privacy": {"uploads": 10**8}}, "privacy.uploads must be a whole number between 1 and"),
        ({"privacy": {"epsilon": 0.0}}, "privacy.epsilon must be a finite number above 0"),
        ({"privacy": {"epsilon": {"a": -1.0}}}, "got {'a': -1.0}"),
        ({"privacy": {"delta": 0.0}}, "privacy.delta must be a number above 0"),
        ({"constants": {"smoothness": 0.0}}, "constants.smoothness must be a finite number above 0"),
        ({"data": {"edges": 0}}, "data.edges must be a whole number of 1 or more or a list"),
        ({"data": {"edges": ["cloud", "a"]}}, "none of them 'cloud'"),
        ({"data": {"edges": ["a", "a"]}}, "names that differ"),
        ({"data": {"edges": ["a/../b"]}}, "cannot be a party's name"),
        ({"data": {"shards_per_edge": 0}}, "data.shards_per_edge must be a whole number of 1 or more"),
        ({"data": {"concentration": 0.0}}, "data.concentration must be a finite number above 0"),
        ({"model": {"classes": 1}}, "model.classes must be a whole number between 2 and"),
        ({"runtime": {"latency_s": 100.0}}, "Set retry_s to 201 or more"),
    ],
)
def test_numbers_with_which_a_run_could_only_hang_are_refused(tables, words):
    with pytest.raises(BadJob, match=words):
        changed(**tables)
