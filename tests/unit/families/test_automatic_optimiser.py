"""Networks without a step train by Adam; whatever else is said is kept."""

import pytest

from offbeat.data.vertical import vertical_from_dataset
from offbeat.errors import BadJob
from offbeat.families.networks import ADAM_STEP, Adam, Sgd, _optimiser, additive_head
from offbeat.jobs.reading import job_from

NETWORK = {"kind": "mlp"}


def chosen(embedding, **job):
    job = job_from({"algorithm": "vafl", "embedding": embedding, **job})
    data = vertical_from_dataset("credit-like@0.01", parties=3)
    return _optimiser(job, data, additive_head(data, job))


def test_auto_is_adam_for_networks_and_sgd_for_linear_embeddings():
    assert chosen(NETWORK) == Adam(ADAM_STEP)
    assert isinstance(chosen({}), Sgd)


def test_a_step_of_the_users_is_one_of_sgd_unless_adam_is_named():
    assert chosen(NETWORK, step=0.1) == Sgd(0.1)
    assert chosen({**NETWORK, "optimiser": "adam"}, step=0.1) == Adam(0.1)
    with pytest.raises(BadJob, match=r'leave embedding.optimiser = "sgd" out'):
        chosen({**NETWORK, "optimiser": "sgd"})
