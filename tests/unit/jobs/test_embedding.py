"""Keys of [embedding] that nothing looks at, and penalties without a size, are refused; useful ones are not."""

import pytest

from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadJob
from offbeat.jobs.embedding import EmbeddingEntry
from offbeat.jobs.reading import job_from
from offbeat.jobs.runtime import RuntimeEntry
from offbeat.jobs.vertical import Job
from offbeat.run.experiment import run_experiment

MIXED = {"bank": "mlp", "shop": "linear"}
PRIVATE = {"epsilon": 4.0, "uploads_max": 3}
DATA = vertical_from_arrays({"bank": [[1.0], [2.0], [0.0], [3.0]], "shop": [[1.0]] * 4}, [1, -1, 1, -1])


@pytest.mark.parametrize(
    ("embedding", "words"),
    [
        ({"t": 2}, "vafl-tsync"),
        ({"width": 4}, "additive"),
        ({"width": 4, "head": "additive", "kind": "mlp"}, "additive"),
        ({"head_hidden": [4]}, "embedding.head"),
        ({"hidden": [4]}, "mlp"),
        ({"hidden": [4], "kind": "cnn"}, "mlp"),
        ({"channels": 4, "kind": "mlp"}, "cnn"),
        ({"shape": [4], "kind": "mlp"}, "lstm"),
        ({"device": "cuda"}, "networks"),
        ({"inner_noise": True, "noise": 0.1}, "networks with embedding.noise"),
        ({"inner_noise": True, "kind": "mlp"}, "embedding.noise above 0"),
        ({"uploads_max": 4}, "embedding.epsilon"),
        ({"clip": 4.0}, "embedding.epsilon"),
        ({"gradient_clip": 4.0}, "embedding.epsilon"),
        ({"delta": 1e-6}, "embedding.epsilon"),
        ({"secret_noise": True}, "label_dp_epsilon"),
        ({"kind": "mpl", "hidden": [4]}, "'mlp'"),
    ],
)
def test_a_key_without_use_is_refused(embedding, words):
    with pytest.raises(BadJob, match=words):
        job_from({"algorithm": "vafl", "embedding": embedding})


@pytest.mark.parametrize("key", [{"delay_bound": 1.0}, {"rates": {"bank": 2.0}}, {"initial_upload": False}])
def test_a_pace_of_its_own_says_nothing_in_rounds(key):
    job_from({"algorithm": "vafl-tsync", "embedding": {**key, "t": 2}})
    with pytest.raises(BadJob, match="own pace"):
        job_from({"algorithm": "vafl-sync", "embedding": key})


@pytest.mark.parametrize(
    "embedding",
    [
        {"kind": MIXED, "hidden": [8], "width": 4, "head_hidden": [8], "device": {"bank": "cpu"}},
        {"kind": "cnn", "channels": 4, "shape": [1, 8, 8], "noise": 0.1, "inner_noise": True, "secret_noise": True},
        {"head": "mlp", "width": 4, "device": {"server": "cpu"}},
        {**PRIVATE, "delta": 1e-6, "clip": 2.0, "gradient_clip": 0.5, "secret_noise": True},
    ],
)
def test_keys_of_use_are_taken(embedding):
    job_from({"algorithm": "vafl", "embedding": embedding})


@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_noise_that_cannot_be_drawn_again_needs_a_runtime_that_never_does(kind):
    tree = {"algorithm": "vafl", "embedding": {**PRIVATE, "secret_noise": True}}
    job_from({**tree, "runtime": {"kind": "threads"}})
    with pytest.raises(BadJob, match="rebuilds a lost party"):
        job_from({**tree, "runtime": {"kind": kind}})
    with pytest.raises(BadJob, match="rebuilds a lost party"):
        secret = EmbeddingEntry(secret_noise=True)
        run_experiment(DATA, Job(algorithm="vafl", embedding=secret, runtime=RuntimeEntry(kind=kind)))


@pytest.mark.parametrize("kind", ["box", "ball"])
def test_a_box_or_ball_has_a_size(kind):
    with pytest.raises(BadJob, match="no weight but zero"):
        job_from({"algorithm": "vafl", "penalty_kind": kind, "penalty": 0.0})
    with pytest.raises(BadJob, match="size above 0"):
        run_experiment(DATA, Job(algorithm="vafl", penalty_kind=kind, penalty=0.0))
