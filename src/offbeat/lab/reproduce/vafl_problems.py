"""The learning problems of VAFL's figures: real data cut into clients, embeddings, a head, the centralised result."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms.vafl import one_hot
from offbeat.data.image_sets import views
from offbeat.data.load import load_images, load_series, load_solids
from offbeat.data.vertical import vertical_from_dataset
from offbeat.learning.embeddings import (
    Adam,
    AdditiveHead,
    ClientPenalty,
    Embedding,
    Head,
    LinearEmbedding,
    Optimiser,
    Sgd,
)

Array = NDArray[Any]
Where = Path | None


@dataclass(frozen=True)
class VaflProblem:
    """Rows at clients, targets at the server. Embeddings and head are made anew for every run."""

    name: str
    source: str
    features: Mapping[str, Any] = field(repr=False)
    test_features: Mapping[str, Any] = field(repr=False)
    targets: Array = field(repr=False)
    test_targets: Array = field(repr=False)
    embeddings: Callable[[], dict[str, Embedding]] = field(repr=False)
    head: Callable[[], Head] = field(repr=False)
    optimiser: Optimiser
    penalty: ClientPenalty = ClientPenalty()  # noqa: RUF009  (frozen)
    metric: str = "accuracy"
    looked_at: int = 2000  # the loss is followed on so many training rows at most
    network: bool = False

    @property
    def rows(self) -> int:
        return len(self.targets)

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.features)

    def fingerprint(self) -> str:
        """Of the targets and every client's first rows: tells two preparations of the same data apart."""
        digest = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes())
        for name in self.clients:
            digest.update(np.ascontiguousarray(self.features[name][:20]).tobytes())
        return digest.hexdigest()[:16]

    def some_rows(self, count: int, seed: int, test: int | None = None) -> "VaflProblem":
        """A random part of the training rows, and of the test rows."""
        rng = np.random.default_rng(seed)
        kept = np.sort(rng.permutation(self.rows)[:count])
        judged = np.sort(rng.permutation(len(self.test_targets))[:test])
        told = f"{len(kept):,} of its training rows" + ("" if test is None else f", {len(judged):,} of its test rows")
        judged_by = {name: rows[judged] for name, rows in self.test_features.items()}
        return self._part(kept, judged_by, self.test_targets[judged], told)

    def held_out_part(self, seed: int, most: int) -> "VaflProblem":
        """To choose settings by: four fifths of the training rows, at most so many, judged by the last fifth."""
        order = np.random.default_rng(seed).permutation(self.rows)
        judged, kept = order[: self.rows // 5], order[self.rows // 5 :][:most]
        told = f"{len(kept):,} of its training rows, judged by {len(judged):,} others"
        return self._part(
            kept, {name: rows[judged] for name, rows in self.features.items()}, self.targets[judged], told
        )

    def _part(self, kept: Array, test_features: Mapping[str, Any], test_targets: Array, told: str) -> "VaflProblem":
        return replace(
            self,
            source=f"{self.source}; {told}",
            features={name: rows[kept] for name, rows in self.features.items()},
            test_features=test_features,
            targets=self.targets[kept],
            test_targets=test_targets,
        )


# -- logistic regression: Figures 3 and 4 ---------------------------------------------------------------------------


def picture_columns(
    name: str, clients: int, step: float, where: Where, seed: int = 0, *, centre: float | None = None
) -> VaflProblem:
    """Every client holds a vertical strip of each picture, and subtracts its own training mean of each pixel.

    `centre`: a number known beforehand is subtracted instead, which tells nothing about the rows.
    """
    images = load_images(name, where, seed)
    strips, test_strips = (_strips(x, images.shape, clients) for x in (images.x_train, images.x_test))
    for client, strip in strips.items():
        mean = strip.mean(axis=0) if centre is None else centre
        strip -= mean
        test_strips[client] -= mean
    classes = len(images.classes)
    return VaflProblem(
        name=name,
        source=images.source,
        features=strips,
        test_features=test_strips,
        targets=one_hot(images.y_train, classes),
        test_targets=one_hot(images.y_test, classes),
        embeddings=lambda: {c: LinearEmbedding(block.shape[1], classes) for c, block in strips.items()},
        head=lambda: AdditiveHead(classes),
        optimiser=Sgd(step),
        penalty=ClientPenalty("l2", 1e-3),
        looked_at=10_000,
    )


def _strips(x: Array, shape: tuple[int, ...], clients: int) -> dict[str, Array]:
    pictures = x.reshape(len(x), *shape)
    cuts = np.array_split(np.arange(shape[1]), clients)
    return {f"client{k}": pictures[:, :, cut].reshape(len(x), -1).astype(np.float64) for k, cut in enumerate(cuts)}


def parkinsons(step: float, where: Where, seed: int = 0) -> VaflProblem:
    """Three clients with a third of the voice measures each; whether the score is above its median; split by person."""
    data = vertical_from_dataset("parkinsons_telemonitoring_high", 3, data_dir=where, seed=seed)
    features = {name: np.asarray(data.train[name]) for name in data.names}
    return VaflProblem(
        name="parkinsons",
        source=data.source,
        features=features,
        test_features={name: np.asarray(data.test[name]) for name in data.names},
        targets=(data.y_train > 0).astype(np.float64)[:, None],
        test_targets=(data.y_test > 0).astype(np.float64)[:, None],
        embeddings=lambda: {c: LinearEmbedding(block.shape[1], 1) for c, block in features.items()},
        head=lambda: AdditiveHead(1, "logistic"),
        optimiser=Sgd(step),
        penalty=ClientPenalty("l2", 1e-3),
        looked_at=10_000,
    )


# -- networks: Figures 5 to 8 ---------------------------------------------------------------------------------------


def solids(
    clients: int, channels: int, where: Where, *, width: int = 512, device: str = "cpu", seed: int = 0
) -> VaflProblem:
    """Twelve views of each object, shared out among the clients; seven-layer networks, a two-layer head."""
    from offbeat.learning.networks import TorchEmbedding, TorchHead, cnn, mlp

    data = load_solids("modelnet10_voxel", where, seed)
    shares = np.array_split(np.arange(12), clients)
    pictures, test_pictures = views(data.x_train), views(data.x_test)
    names = [f"client{k}" for k in range(clients)]
    classes = len(data.classes)

    def embeddings() -> dict[str, Embedding]:
        made = [cnn(len(share), 30, width, channels, seed=seed + k) for k, share in enumerate(shares)]
        shape = pictures.shape[2:]
        return {
            n: TorchEmbedding(m, (len(s), *shape), device=device) for n, m, s in zip(names, made, shares, strict=True)
        }

    def head() -> Head:
        top = mlp(clients * width, classes, (128,), seed=seed + 100)
        return TorchHead(top, [width] * clients, classes, device=device)

    return VaflProblem(
        name=f"modelnet10-{clients}",
        source=f"{data.source}, twelve views, {clients} clients",
        features={n: pictures[:, share] for n, share in zip(names, shares, strict=True)},
        test_features={n: test_pictures[:, share] for n, share in zip(names, shares, strict=True)},
        targets=one_hot(data.y_train, classes),
        test_targets=one_hot(data.y_test, classes),
        embeddings=embeddings,
        head=head,
        optimiser=Adam(1e-3),
        looked_at=400,
        network=True,
    )


def intensive_care(where: Where, *, hidden: int = 32, width: int = 16, seed: int = 0) -> VaflProblem:
    """In-hospital death from four clients' time series; LSTM embeddings, a two-layer head."""
    from offbeat.learning.networks import TorchEmbedding, TorchHead, lstm, mlp

    data = load_series("physionet2012_set_a", where, seed)
    features = {client: data.stacked(client) for client in data.clients}

    def embeddings() -> dict[str, Embedding]:
        shapes = {client: cube.shape[1:] for client, cube in features.items()}
        made = {c: lstm(s[1], width, hidden, seed=seed + k) for k, (c, s) in enumerate(shapes.items())}
        return {client: TorchEmbedding(made[client], shapes[client]) for client in features}

    def head() -> Head:
        top = mlp(width * len(features), 1, (16,), seed=seed + 100)
        return TorchHead(top, [width] * len(features), 1, loss_name="logistic")

    return VaflProblem(
        name="physionet2012",
        source=data.source,
        features=features,
        test_features={client: data.stacked(client, test=True) for client in data.clients},
        targets=data.y_train[:, None].astype(np.float64),
        test_targets=data.y_test[:, None].astype(np.float64),
        embeddings=embeddings,
        head=head,
        optimiser=Adam(2e-3),
        metric="auc",
        looked_at=1000,
        network=True,
    )
