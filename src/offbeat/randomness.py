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


def generator_state(rng: np.random.Generator) -> dict[str, object]:
    """A PCG64 generator's position as plain values (its 128-bit integers as strings)."""
    state = rng.bit_generator.state
    inner = {key: str(value) for key, value in state["state"].items()}
    return {"state": inner, "has_uint32": state["has_uint32"], "uinteger": state["uinteger"]}


def generator_from(state: dict[str, object]) -> np.random.Generator:
    bits = np.random.PCG64()
    inner = state["state"]
    assert isinstance(inner, dict)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {key: int(value) for key, value in inner.items()},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }
    return np.random.Generator(bits)
