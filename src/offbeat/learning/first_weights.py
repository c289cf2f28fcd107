"""First weights of a network from a seed. PyTorch draws them from one generator for the whole process."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_GENERATOR = Lock()  # of PyTorch's global generator: two runs of one daemon may build networks at the same time


@contextmanager
def first_weights(seed: int) -> Iterator[None]:
    """Whatever modules are made inside draw from this seed; the generator is left as it was."""
    import torch

    with _GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
