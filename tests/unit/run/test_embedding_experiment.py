"""From a vertical problem and a job to a VAFL run record."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

from offbeat.algorithms.vafl import VARIANTS, Vafl
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadJob
from offbeat.families.embedding import EmbeddingTraining
from offbeat.families.networks import automatic_step
from offbeat.jobs.runtime import RuntimeEntry, resolved
from offbeat.jobs.vertical import Job
from offbeat.learning.embeddings import Adam, AdditiveHead
from offbeat.metrics.record import RunRecord
from offbeat.privacy.embedding import calibrate
from offbeat.run.experiment import run_experiment, run_training


def problem(task="classification", rows=240):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6))
    score = x @ np.array([1.0, -2.0, 0.5, 0.0, 1.5, -1.0])
    y = {"classification": np.sign(score), "regression": score, "multiclass": np.digitize(score, [-1, 1])}[task]
    blocks = {"bank": x[:, :2], "shop": x[:, 2:4], "telecom": x[:, 4:]}
    return vertical_from_arrays(blocks, y, task=task, test_fraction=0.25)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_job_gives_a_record_that_can_be_written_and_read(variant, tmp_path):
    job = Job(algorithm=variant, passes=12.0, batch=12, seed=1, runtime=RuntimeEntry(slow={"shop": 3.0}))
    record = run_experiment(problem(), job).record
    assert (record.algorithm, record.verdict, record.clock) == (variant, "passes", "virtual")
    assert record.passes == pytest.approx(12, abs=0.5)
    assert record.metrics["test_accuracy"] > 0.9
    assert record.curve[-1].objective < 0.5 * record.curve[0].objective
    assert set(record.parties) == {"server", "bank", "shop", "telecom"}
    assert {row.message for row in record.reveals} >= {"Upload", "Gradient", "PredictGiven"}
    assert any("label" in warning for warning in record.warnings) and record.promises == ()
    record.write(tmp_path)
    assert RunRecord.read(tmp_path).options["chosen"]["noise_label"].startswith("none")
    if variant != "vafl-sync":
        assert record.parties["shop"].lag_mean > record.parties["bank"].lag_mean


def test_private_mode_states_its_epsilon_and_what_it_follows_from():
    job = resolved(Job(algorithm="vafl", passes=50.0, seed=1))
    result = run_training(
        EmbeddingTraining(job, problem(), options=Vafl(batch=12, passes=50, private=calibrate(10.0, 1e-5, 5)))
    )
    said = result.record.privacy["bank"]
    mu = 2 * np.sqrt(
        said["releases"] * (said["clip"] / said["noise"]) ** 2 + said["steps"] / said["gradient_noise"] ** 2
    )
    assert said["mu"] == pytest.approx(mu)
    assert said["epsilon"] <= 10
    delta = norm.cdf(mu / 2 - said["epsilon"] / mu) - np.exp(said["epsilon"]) * norm.cdf(-mu / 2 - said["epsilon"] / mu)
    assert delta == pytest.approx(said["delta"], rel=1e-6)  # the exact curve, from what the record holds alone
    assert result.record.verdict == "budget"
    assert any("experiments only" in warning for warning in result.record.warnings)
    (promise,) = result.record.promises
    assert "differentially private for replace-one" in promise and "labels, scaling" in promise
    assert promise not in result.record.warnings
    assert any("metrics here were computed without noise" in warning for warning in result.record.warnings)


@pytest.mark.parametrize(("task", "metric"), [("regression", "test_rmse"), ("multiclass", "test_accuracy")])
def test_other_tasks(task, metric):
    record = run_experiment(problem(task), Job(algorithm="vafl", passes=20.0, batch=12, seed=1)).record
    value = record.metrics[metric]
    assert value < 0.6 if metric == "test_rmse" else value > 0.8


def test_two_classes_under_a_head_with_an_output_for_each():
    job = resolved(Job(algorithm="vafl", passes=12.0, batch=12, seed=1))
    training = EmbeddingTraining(job, problem(), head=AdditiveHead(2))
    assert sorted(np.unique(training.server.targets.argmax(axis=1))) == [0, 1]
    assert run_training(training).record.metrics["test_accuracy"] > 0.9


@pytest.mark.parametrize(
    ("task", "head", "words"),
    [
        ("regression", AdditiveHead(1, "logistic"), "expected 'squared'"),
        ("multiclass", AdditiveHead(1, "logistic"), "expected 'softmax' with 3"),
        ("multiclass", AdditiveHead(4), "expected 'softmax' with 3"),
    ],
)
def test_a_head_that_does_not_fit_the_labels_is_refused(task, head, words):
    with pytest.raises(BadJob, match=words):
        EmbeddingTraining(Job(algorithm="vafl", passes=1.0), problem(task), head=head)


def test_networks_in_place_of_linear_embeddings():
    pytest.importorskip("torch", reason="networks need the deep extra")
    from offbeat.learning.networks import TorchEmbedding, TorchHead, mlp

    data = problem()
    embeddings = {name: TorchEmbedding(mlp(2, 4, seed=k), (2,)) for k, name in enumerate(data.names)}
    head = TorchHead(mlp(12, 1, seed=9), [4, 4, 4], 1, loss_name="logistic")
    options = Vafl(batch=12, passes=6, optimiser=Adam(0.02), head_optimiser=Adam(0.02), optimisers={"shop": Adam(0.03)})
    job = resolved(Job(algorithm="vafl", passes=6.0, looks_per_pass=1.0))
    training = EmbeddingTraining(job, data, embeddings, head, options)
    result = run_training(training)
    assert result.record.metrics["test_accuracy"] > 0.85
    assert training.predict().shape == (data.test_rows, 1)
    assert result.record.options["chosen"]["optimisers"]["shop"].startswith("Adam(step=0.03")


def test_linear_runs_need_no_torch():
    """As on the core install: torch cannot be imported, and nobody tries."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from offbeat.data.vertical import vertical_from_arrays\n"
        "from offbeat.run.experiment import run_experiment\n"
        "from offbeat.jobs.vertical import Job\n"
        "x = np.random.default_rng(0).normal(size=(60, 4))\n"
        "data = vertical_from_arrays({'a': x[:, :2], 'b': x[:, 2:]}, np.sign(x[:, 0]))\n"
        "print(run_experiment(data, Job(algorithm='vafl', passes=2.0)).record.verdict)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "passes", done.stderr


def test_the_automatic_step_is_the_inverse_of_the_mean_smoothness():
    data = problem()
    mean = sum(float(np.sum(np.square(data.train[name]))) for name in data.names) / data.rows
    assert automatic_step(data, AdditiveHead(1, "logistic"), public=False) == pytest.approx(4 / (mean + 1))
    columns = sum(data.widths.values())
    assert automatic_step(data, AdditiveHead(1, "logistic"), public=True) == pytest.approx(4 / (columns + 1))


def test_a_penalty_it_does_not_know_is_refused():
    with pytest.raises(BadJob, match="nonconvex"):
        run_experiment(problem(), Job(algorithm="vafl", penalty_kind="nonconvex"))
