"""What a client does to its embeddings and gradients before anything made from them may leave."""

import hashlib
from typing import Any

from offbeat.algorithms.vafl.options import Vafl
from offbeat.learning.embeddings import Array, Disturbance, Embedding, Forward, LinearEmbedding, Tensors
from offbeat.learning.grid import Integers
from offbeat.party.contract import PartyName
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.privacy.noise import NoiseSource, gaussian_noise
from offbeat.randomness import stream

COVARIANCE = 0  # its number among those of a client's gradients, which begin at 1


class UploadNoise:
    """Grid, last-layer noise and inner noise of one release: fresh for every row, from the release's own stream."""

    def __init__(self, name: PartyName, options: Vafl, seed: int, width: int, source: NoiseSource) -> None:
        self.name, self.options, self.seed, self.width, self.source = name, options, seed, width, source

    def of(self, release: int, rows: int) -> Disturbance:
        private = self.options.private
        if private is not None:
            return Disturbance(private.grid, draw=lambda whole: self._whole_noise(private, release, whole))
        noise = inner = None
        if self.options.noise > 0:
            drawn = gaussian_noise(self.source.stream(release), rows * self.width, self.options.noise)
            noise = drawn.reshape(rows, self.width)
        if self.options.inner_noise:
            inner = int(stream(self.seed, self.name, "inner", release).integers(2**62))
        return Disturbance(None, noise, inner)

    def _whole_noise(self, private: PrivateEmbedding, release: int, whole: Integers) -> Integers:
        draws = self.source.stream(release, digest(whole))
        return private.grid_noise.draw(draws, whole.size).reshape(whole.shape)


def noisy_gradient(
    private: PrivateEmbedding,
    embedding: Embedding,
    forward: Forward,
    derivative: Array,
    source: NoiseSource,
    release: int,
) -> Tensors:
    """DP-SGD: every row's gradient clipped and rounded, summed, noise added to the sum, then divided by the rows."""
    summed = embedding.grid_sum(forward, derivative, private.gradient_grid)
    draws = source.stream(release, digest(*summed.values()))
    scale = private.gradient_grid.step / len(derivative)
    noisy = {}
    for name, value in summed.items():
        noise = private.gradient_grid_noise.draw(draws, value.size).reshape(value.shape)
        noisy[name] = ((value + noise) * scale).astype(embedding.dtype)
    return embedding.from_arrays(noisy)


def noisy_covariance(private: PrivateEmbedding, embedding: Embedding, features: Any, source: NoiseSource) -> Integers:
    """Of a client's columns: every row's outer product clipped and rounded, summed, noise added to the sum."""
    assert isinstance(embedding, LinearEmbedding)
    summed = embedding.grid_moments(features, private.covariance_grid(embedding.inputs + embedding.bias))
    draws = source.stream(COVARIANCE, digest(summed))
    return summed + private.covariance_grid_noise.draw(draws, summed.size).reshape(summed.shape)


def digest(*values: Integers) -> bytes:
    """Of what noise is added to: see `orgs.keyed_noise`."""
    found = hashlib.blake2b(digest_size=16)
    for value in values:
        found.update(value.tobytes())
    return found.digest()
