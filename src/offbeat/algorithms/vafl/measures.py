"""How good a VAFL model is, with everyone's newest weights at hand: for looking on, not part of the protocol."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.errors import BadData
from offbeat.learning.embeddings import Array, Head
from offbeat.learning.scores import area_under_curve
from offbeat.party.contract import Effect, Observe

if TYPE_CHECKING:
    from offbeat.algorithms.vafl.client import Client
    from offbeat.algorithms.vafl.server import Server


def one_hot(labels: Array, classes: int) -> Array:
    """Targets of a softmax head from class numbers 0 .. classes-1."""
    labels = np.asarray(labels)
    wrong = ~np.isin(labels, np.arange(classes))
    if labels.ndim != 1 or wrong.any():
        came = np.unique(labels[wrong])[:5].tolist() if wrong.any() else f"an array of shape {labels.shape}"
        coded = classes == 2 and np.isin(labels, (-1, 1)).all()
        raise BadData(
            f"one_hot expects one class number from 0 to {classes - 1} for each row; got {came}. "
            + ("For labels of -1 and +1 give it labels > 0." if coded else "Number the classes from 0.")
        )
    return np.asarray(np.eye(classes)[labels.astype(np.int64)])


def joint_embeddings(
    clients: "Sequence[Client]", *, test: bool = False, rows: Array | None = None, chunk: int = 1024
) -> list[Array]:
    """Every client's undisturbed embedding of all rows (or some), with its newest weights."""
    return [_embed_all(client, client.test_features if test else client.features, rows, chunk) for client in clients]


def _embed_all(client: "Client", features: Any, rows: Array | None, chunk: int) -> Array:
    rows = np.arange(features.shape[0]) if rows is None else rows
    parts = [rows[start : start + chunk] for start in range(0, len(rows), chunk)]
    return np.concatenate([client.embedding.infer(client.weights, features, part) for part in parts])


def objective(
    server: "Server", clients: "Sequence[Client]", targets: Array | None = None, rows: Array | None = None
) -> float:
    """F at everyone's newest weights: the mean loss over the training rows (or some) and the clients' penalties.

    `targets`: the true ones, where the server's were answered at random.
    """
    targets = server.targets if targets is None else targets
    loss = server.head.loss(
        server.weights, joint_embeddings(clients, rows=rows), targets if rows is None else targets[rows]
    )
    return loss + sum(client.penalty.value(client.weights.trained) for client in clients)


def joint_scores(server: "Server", clients: "Sequence[Client]", *, test: bool = True) -> Array:
    return server.head.scores(server.weights, joint_embeddings(clients, test=test))


def score(head: Head, scores: Array, targets: Array) -> dict[str, float]:
    """Accuracy (and, for two classes, the area under the curve) or the root mean square error."""
    targets = np.asarray(targets, dtype=np.float64).reshape(len(scores), -1)
    if head.loss_name == "squared":
        return {"rmse": float(np.sqrt(np.mean((scores - targets) ** 2)))}
    if scores.shape[1] == 1:
        accuracy = float(np.mean((scores[:, 0] > 0.5) == (targets[:, 0] > 0.5)))
        return {"accuracy": accuracy, "auc": area_under_curve(scores[:, 0], targets[:, 0] > 0.5)}
    accuracy = float(np.mean(np.argmax(scores, axis=1) == np.argmax(targets, axis=1)))
    if scores.shape[1] > 2:
        return {"accuracy": accuracy}
    return {"accuracy": accuracy, "auc": area_under_curve(scores[:, 1], targets[:, 1] > 0.5)}


def final_observations(server: "Server") -> list[Effect]:
    """What the server observed of the whole run: ages of embeddings, refreshes, repetitions."""
    return [
        Observe("lags", {name: server.table.lag_summary(i) for i, name in enumerate(server.clients)}),
        Observe("iterations", server.iteration),
        Observe("delay_bound_iterations", server.lag_max),
        Observe("refreshed_rows", server.refreshes.asked_rows),
        Observe("refused_rows", server.refreshes.refused_rows),
        Observe("abandoned", server.refreshes.abandoned),
        Observe("duplicates", server.duplicates),
        Observe("cold_rows", {name: server.table.cold(i) for i, name in enumerate(server.clients)}),
    ]
