"""What a client does to its embeddings and gradients before anything made from them may leave."""

from offbeat.algorithms.vafl_options import Vafl
from offbeat.learning.embeddings import Array, Disturbance, Embedding, Forward, Tensors
from offbeat.party.contract import PartyName
from offbeat.privacy.embedding import PrivateEmbedding
from offbeat.privacy.noise import NoiseSource, Stream, gaussian_noise
from offbeat.randomness import stream


class Disturber:
    """Clip, last-layer noise and inner noise of one release: fresh for every row, from the release's own stream."""

    def __init__(self, name: PartyName, options: Vafl, seed: int, width: int, source: NoiseSource) -> None:
        self.name, self.options, self.seed, self.width, self.source = name, options, seed, width, source

    def of(self, release: int, rows: int) -> Disturbance:
        private = self.options.private
        deviation = self.options.noise if private is None else private.noise
        noise = None
        if deviation > 0:
            drawn = gaussian_noise(self.source.stream(release), rows * self.width, deviation)
            noise = drawn.reshape(rows, self.width)
        inner = None
        if self.options.inner_noise:
            inner = int(stream(self.seed, self.name, "inner", release).integers(2**62))
        return Disturbance(None if private is None else private.clip, noise, inner)


def noisy_gradient(
    private: PrivateEmbedding, embedding: Embedding, forward: Forward, derivative: Array, draws: Stream
) -> Tensors:
    """DP-SGD: every row's gradient clipped, summed, normal noise added to the sum, then divided by the rows."""
    summed = embedding.to_arrays(embedding.clipped_sum(forward, derivative, private.gradient_clip))
    deviation, rows = private.gradient_noise * private.gradient_clip, len(derivative)
    noisy = {}
    for name, value in summed.items():
        noise = gaussian_noise(draws, value.size, deviation).reshape(value.shape)
        noisy[name] = ((value + noise) / rows).astype(value.dtype)
    return embedding.from_arrays(noisy)
