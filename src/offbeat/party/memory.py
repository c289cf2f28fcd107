"""A snapshot from a list of names: what a part of a party keeps, written down once."""

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np


class Memory:
    """`KEPT` names the attributes that matter later, in the order in which a snapshot has them. Parts that have a
    snapshot of their own are asked for it. What a list of names cannot say, a class adds to these two methods."""

    KEPT: ClassVar[tuple[str, ...]] = ()

    def snapshot(self) -> dict[str, Any]:
        return {name: plain(getattr(self, name)) for name in self.KEPT}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in self.KEPT:
            setattr(self, name, _like(getattr(self, name), state[name]))


def plain(value: Any) -> Any:
    """Plain values that share no array with this one: sets are sorted lists, values with fields are lists of these."""
    if hasattr(value, "snapshot"):
        return value.snapshot()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return [plain(getattr(value, name)) for name in value.__struct_fields__]
    return [plain(item) for item in value] if isinstance(value, list | tuple | deque) else value


def _like(before: Any, state: Any) -> Any:
    """What a snapshot says, as the kind of thing that stands there now; a part that can restore itself stays."""
    if hasattr(before, "restore"):
        before.restore(state)
        return before
    if isinstance(before, set | dict | list | deque):
        return type(before)(state)
    return state.copy() if isinstance(state, np.ndarray) else state
