"""Where randomness comes from: one run seed, split by name, or the operating system.

Sampling and simulation draw from `stream(seed, party, purpose)`: the same names give the same numbers whatever else
the run does. Masks and noise draw from `secret_bytes`: the operating system's source, unless a seed is asked for,
and then the run record says "seeded: for experiments only".
"""

import hashlib
import os

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """An independent generator for each (seed, names)."""
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little"))))


def secret_bytes(count: int, seed: int | None, *names: str | int) -> bytes:
    """Key material: from the operating system, or repeatable when a seed is given."""
    if seed is None:
        return os.urandom(count)
    return hashlib.shake_256(repr(("secret", seed, *names)).encode()).digest(count)
