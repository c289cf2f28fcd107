"""What VAFL refuses before anything begins: parts that do not fit together, and numbers that are none."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.algorithms.vafl.options import Vafl
from offbeat.errors import BadData, BadJob
from offbeat.learning.embeddings import Array, Embedding, Head, LinearEmbedding
from offbeat.names import did_you_mean
from offbeat.party.contract import PartyName
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.privacy.mechanism import refuse_coarse

COLUMNS_MOST = 1000  # of a client whose covariance is taken


def checked_targets(
    features: Mapping[PartyName, Any],
    targets: Array,
    embeddings: Mapping[PartyName, Embedding],
    head: Head,
    options: Vafl,
) -> Array:
    """The targets, one row for each record, once everything fits together."""
    targets = np.asarray(targets, dtype=np.float64)
    targets = targets[:, None] if targets.ndim == 1 else targets
    _check_embeddings(features, embeddings)
    for key in ("rates", "optimisers", "penalties"):
        for name in getattr(options, key):
            if name not in features:
                raise BadJob(f"{key} names {name!r}, and there is no such client. {did_you_mean(name, features)}")
    if options.private is not None:
        for name in features:
            check_private(options.private, embeddings[name])
    for name, rows in features.items():
        if rows.shape[0] != len(targets):
            raise BadData(
                f"{name} has {rows.shape[0]} rows and the server {len(targets)} labels; row i must be the same record "
                "everywhere. Align the tables first."
            )
        columns, inputs = math.prod(rows.shape[1:]), embeddings[name].inputs
        if columns != inputs:
            raise BadData(f"{name} has rows of {columns} numbers, and its embedding takes {inputs}; they must agree.")
    check_finite(features, targets)
    if targets.shape[1] != head.outputs:
        raise BadData(f"The head has {head.outputs} outputs, the targets {targets.shape[1]} columns; they must agree.")
    return targets


def _check_embeddings(features: Mapping[PartyName, Any], embeddings: Mapping[PartyName, Embedding]) -> None:
    missing = [name for name in features if name not in embeddings]
    if missing:
        raise BadJob(f"Every client needs an embedding; {', '.join(missing)} have none.")
    owners: dict[int, PartyName] = {}
    for name, embedding in embeddings.items():
        if name not in features:
            raise BadJob(f"There is an embedding for {name!r}, and no such client. {did_you_mean(name, features)}")
        if not embedding.initial(np.random.default_rng(0)).trained:
            raise BadJob(
                f"The embedding of {name} has no parameters, and a client trains its own. Put a layer with weights "
                "into it, as nn.Linear is."
            )
        other = owners.setdefault(id(embedding), name)
        if other != name and not isinstance(embedding, LinearEmbedding):  # which holds nothing of a pass
            raise BadJob(
                f"{other} and {name} were given the same embedding object, which holds the noise of the pass under "
                "way. Make one for each client; they may be made from the same module."
            )


def check_private(private: PrivateEmbedding, embedding: Embedding) -> None:
    embedding.check_row_gradients()
    trained = embedding.to_arrays(embedding.initial(np.random.default_rng(0)).trained)
    refuse_coarse(private.grid.bound, embedding.width)
    parameters = sum(value.size for value in trained.values())
    refuse_coarse(private.gradient_grid.bound, parameters)
    if private.covariance_noise is not None:
        columns = parameters // embedding.width
        if not isinstance(embedding, LinearEmbedding) or columns > COLUMNS_MOST:
            raise BadJob(
                "Without uploads_max a private run takes the covariance of each client's columns, which is for linear "
                f"embeddings of at most {COLUMNS_MOST:,} columns; a client here has "
                f"{f'{columns:,}' if isinstance(embedding, LinearEmbedding) else 'a network'}. Give uploads_max a "
                "number: how often one record's embedding may leave at most. Every upload costs, so a small number "
                "(5 to 50) leaves less noise in each."
            )
        refuse_coarse(private.covariance_grid(columns).bound, columns**2)


def check_test_rows(
    features: Mapping[PartyName, Any], test_features: Mapping[PartyName, Any] | None, test_targets: Array | None
) -> None:
    """Refuse rows for testing that are not the same records everywhere, or have other columns than for training."""
    if test_features is None:
        return
    if set(test_features) != set(features):
        raise BadData(
            f"test_features must have rows of every client and of no other, {', '.join(features)}; it has those of "
            f"{', '.join(test_features) or 'none'}."
        )
    check_finite(test_features, test_targets, "test ")
    counts = {name: rows.shape[0] for name, rows in test_features.items()}
    if test_targets is not None:
        counts["the server"] = len(test_targets)
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise BadData(f"Test row i must be the same record everywhere, and the numbers of rows differ: {told}.")
    for name, rows in test_features.items():
        trained, tested = math.prod(features[name].shape[1:]), math.prod(rows.shape[1:])
        if trained != tested:
            raise BadData(f"{name} has rows of {trained} numbers for training and of {tested} for testing.")


def check_finite(features: Mapping[PartyName, Any], targets: Array | None, what: str = "") -> None:
    """Refuse columns and targets with nan or infinity. `what`: how to call the rows, if not simply rows."""
    for name, block in features.items():
        wrong = _unfinite(block)
        if wrong:
            raise BadData(
                f"{name} has {wrong} {what}numbers that are nan or infinite; finite ones are needed. Leave those "
                "rows out, or fill them in first."
            )
    wrong = 0 if targets is None else _unfinite(targets)
    if wrong:
        raise BadData(f"The server has {wrong} {what}targets that are nan or infinite. Leave those rows out.")


def _unfinite(values: Any) -> int:
    """How many numbers are not finite: of an array, a sparse matrix or a tensor, wherever it lies."""
    values = values.tocsr().data if hasattr(values, "tocsr") else values
    if hasattr(values, "isfinite"):
        return int((~values.isfinite()).sum())
    values = np.asarray(values)
    return (
        0 if values.dtype.kind in "biu" else int(np.count_nonzero(~np.isfinite(values.astype(np.float64, copy=False))))
    )
