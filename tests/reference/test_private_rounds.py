"""Rounds with private products beside a slow, obvious loop that holds all rows; and the options around them."""

import msgspec
import numpy as np
import pytest

from offbeat import VerticalClassifier, VerticalRegressor
from offbeat.data.synthetic import credit_like
from offbeat.data.vertical import vertical_from_dataset
from offbeat.errors import BadJob
from offbeat.families.linear import LinearTraining
from offbeat.jobs.vertical import vertical_job_from
from offbeat.privacy.discrete import discrete_gaussian
from offbeat.privacy.noise import SeededNoise
from offbeat.run.experiment import run_experiment

ROWS = 300
PRIVATE = {"algorithm": "vfb-sgd", "product_epsilon": 3.0, "product_delta": 1e-4, "optimum": False}


@pytest.fixture(scope="module")
def data():
    return vertical_from_dataset(credit_like(ROWS, 1), parties=3, seed=1, labels_at=["bank"])


def run(data, **keys):
    return run_experiment(data, vertical_job_from({**PRIVATE, **keys}))


def by_hand(data, job):
    """The method with all rows in one place: sums of whole numbers, one party and one row after the other."""
    training = LinearTraining(job, data)
    plan, setting = training.products, training.setting
    grid, names = 2.0**plan.fraction_bits, data.names
    norm = plan.row_norm
    X = {name: np.asarray(setting.train[name]) for name in names}
    w, constant, y = {name: np.zeros(X[name].shape[1]) for name in names}, 0.0, setting.y_train
    for t in range(plan.steps + 1):
        z = np.zeros(len(y))
        for name in names if t else ():
            stream = SeededNoise(job.seed, f"run/{name}/products").stream(t)
            noise = discrete_gaussian(stream, len(y), plan.variance)
            for i, row in enumerate(X[name]):
                share = min(max(round(float(row @ w[name]) * grid), -plan.clip_words), plan.clip_words)
                z[i] += (share + int(noise[i])) / grid
        constant = float(np.mean(y - z))
        if t == plan.steps:
            break
        theta = np.clip(2.0 * (z + constant - y), -4.0, 4.0)
        for name in names:
            w[name] = w[name] - plan.step / norm**2 * (X[name].T @ theta / len(y) + job.strength * w[name])
    return w, constant


def test_rounds_are_the_slow_loop(data):
    job = vertical_job_from(PRIVATE)
    result = run_experiment(data, job)
    weights, constant = by_hand(data, job)
    for name in data.names:
        assert np.allclose(result.models[name].arrays["weights"], weights[name], rtol=1e-9, atol=1e-12)
    assert sum(part.arrays["intercept"][0] for part in result.models.values()) == pytest.approx(constant)


def test_the_record_says_what_is_promised_and_nothing_is_certified(data):
    record = run(data).record
    assert record.verdict == "passes" and record.certificate.duality_gap is None
    assert "no certificate" in record.reason and record.private
    for stated in record.privacy.values():
        assert stated["epsilon"] <= 3.0 == stated["budget_epsilon"] and stated["releases"] == 6
    told = {row.message: row.reveals for row in record.reveals}
    assert "differentially private" in told["ShareGiven"] and "noisy product" in told["Backward"]
    assert not {"Mark", "Leap", "TablePart", "Certified", "Curved"} & set(told), "nothing else is summed or told"
    (promise,) = record.promises
    assert "epsilon 3" in promise and promise not in record.warnings
    assert "Nothing is certified" in record.warnings[0]


def test_runs_repeat_and_other_runtimes_do_the_same(data):
    first, again = run(data), run(data)
    assert first.record.digest == again.record.digest
    threads = run(data, runtime={"kind": "threads"})
    for name in data.names:
        assert np.array_equal(first.models[name].arrays["weights"], threads.models[name].arrays["weights"])


def test_more_budget_is_less_noise_and_colluders_cost_noise(data):
    noise = [run(data, product_epsilon=epsilon).record.privacy["bank"]["deviation"] for epsilon in (1.0, 4.0)]
    alone = run(data, product_epsilon=1.0, products={"colluders": 1}).record.privacy["bank"]["deviation"]
    assert noise[0] > 3 * noise[1] and alone == pytest.approx(noise[0] * np.sqrt(2), rel=1e-3)


def test_without_noise_to_speak_of_a_linear_rule_is_found():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 6))
    y = X @ np.array([1.0, -1.0, 0.5, 0.0, 2.0, -0.5]) > 0
    fitted = VerticalClassifier(
        "vfb-sgd", product_epsilon=1e5, products={"rounds": 60, "clip": 5.0}, target=None, step=0.5
    ).fit(X, y)
    assert fitted.score(X, y) > 0.93
    number = VerticalRegressor("vfb-sgd", product_epsilon=1e5, products={"rounds": 60, "clip": 5.0}, target=None)
    assert number.fit(X, 100.0 + 50.0 * X[:, 0]).score(X, 100.0 + 50.0 * X[:, 0]) > 0.8


@pytest.mark.parametrize(
    "keys, says",
    [
        ({"algorithm": "vfb2-saga"}, "vfb-sgd"),
        ({"passes": 3.0}, "passes does not go"),
        ({"target": 1e-3}, "target does not go"),
        ({"label_dp_epsilon": 1.0}, "label_dp_epsilon does not go"),
        ({"secure_sum": "two-tree"}, "secure_sum does not go"),
        ({"loss": "logistic"}, "linear in the product"),
        ({"penalty": "auto"}, "one given strength"),
        ({"on_loss": "continue"}, "a second time"),
        ({"runtime": {"kind": "threads", "lanes": 2}}, "one lane"),
        ({"product_epsilon": None}, "product_delta says how"),
    ],
)
def test_what_does_not_go_with_it_is_refused(keys, says):
    tree = {key: value for key, value in {**PRIVATE, **keys}.items() if value is not None}
    with pytest.raises(BadJob, match=says):
        vertical_job_from(tree)


def test_data_that_does_not_go_with_it_is_refused(data):
    several = msgspec.structs.replace(vertical_job_from(PRIVATE), product_delta=0.5)
    with pytest.raises(BadJob, match="one over the number of rows"):
        run_experiment(data, several)
    with pytest.raises(BadJob, match="one label holder"):
        run_experiment(
            vertical_from_dataset(credit_like(ROWS, 1), parties=3, labels_at="all"), vertical_job_from(PRIVATE)
        )
    with pytest.raises(BadJob, match="turn the weights round"):
        run(data, penalty=50.0)


def test_a_model_of_least_squares_gives_no_probabilities() -> None:
    """The job leaves the loss open, and it is not the logistic one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    terms = {"parties": {"a": [0], "b": [1], "c": [2, 3]}, "product_epsilon": 1e6, "product_delta": 1e-6}
    model = VerticalClassifier("vfb-sgd", target=None, **terms).fit(x, x[:, 0] > 0)
    assert model.score(x, x[:, 0] > 0) > 0.9
    with pytest.raises(BadJob, match="Probabilities need the logistic loss; this model was fitted with ls_svm"):
        model.predict_proba(x)
    assert not hasattr(model.model_.to_sklearn().steps[-1][1], "predict_proba")
