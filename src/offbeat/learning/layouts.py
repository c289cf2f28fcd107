"""How a row's columns are laid out for a network that is not indifferent to their order."""

from collections.abc import Sequence

SIDE_LEAST = 8  # pictures are halved three times
LAYOUTS = {
    "cnn": (f"[channels, side, side], the sides at least {SIDE_LEAST}", 3),
    "lstm": ("[times, values at each time]", 2),
}
"""By kind of network: its layout in words, and how many sizes that has."""


def fits(kind: str, shape: Sequence[int]) -> bool:
    """Whether such a network can take rows of this shape."""
    _, sizes = LAYOUTS[kind]
    if len(shape) != sizes or any(size < 1 for size in shape):
        return False
    return kind != "cnn" or shape[1] == shape[2] >= SIDE_LEAST
