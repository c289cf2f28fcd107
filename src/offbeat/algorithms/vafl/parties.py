"""VAFL's parties, built from everybody's columns and the labels."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from offbeat.algorithms.vafl.checks import check_test_rows, checked_targets
from offbeat.algorithms.vafl.client import Client
from offbeat.algorithms.vafl.options import Vafl, known_start
from offbeat.algorithms.vafl.server import Server
from offbeat.learning.embeddings import Array, Embedding, Head
from offbeat.party.contract import PartyName
from offbeat.privacy.label_response import private_targets
from offbeat.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from offbeat.randomness import stream


def build(
    features: Mapping[PartyName, Any],
    targets: Array,
    embeddings: Mapping[PartyName, Embedding],
    head: Head,
    options: Vafl,
    *,
    seed: int = 0,
    server: PartyName = "server",
    test_features: Mapping[PartyName, Any] | None = None,
    test_targets: Array | None = None,
    secret_noise: bool = False,
) -> tuple[Server, list[Client]]:
    """The parties. Row i of every client's features and of the targets is the same record.

    `secret_noise` draws from the operating system; without it noise comes from the seed, which is for experiments
    only (`noise_warning`).
    """
    targets = checked_targets(features, targets, embeddings, head, options)
    check_test_rows(features, test_features, test_targets)
    options = known_start(options, [embeddings[name] for name in features])
    names = tuple(features)
    source = partial(_noise_source, seed, secret_noise)
    if options.label_dp_epsilon is not None:
        targets = private_targets(targets, options.label_dp_epsilon, source(server, "labels").stream(0))
    clients = [
        Client(
            name,
            server,
            embeddings[name].place(features[name]),
            embeddings[name],
            embeddings[name].initial(stream(seed, name, "weights")),
            options,
            seed,
            source(name, "embedding"),
            source(name, "gradient"),
            None if test_features is None else embeddings[name].place(test_features[name]),
        )
        for name in names
    ]
    test_rows = 0 if test_features is None else int(test_features[names[0]].shape[0])
    weights = head.initial(stream(seed, server, "weights"))
    widths = [embeddings[name].width for name in names]
    dtype = np.result_type(*[embeddings[name].dtype for name in names])
    return (
        Server(server, names, targets, head, weights, widths, options, seed, test_targets, test_rows, dtype),
        clients,
    )


def _noise_source(seed: int, secret: bool, name: PartyName, purpose: str) -> NoiseSource:
    return SystemNoise() if secret else SeededNoise(seed, f"vafl/{name}/{purpose}")
