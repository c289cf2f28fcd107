"""What a peer's message must look like before a party uses it. A semi-honest peer never fails here; a wrong or damaged
one is named, and nothing of it has been used."""

from typing import Any

import numpy as np

from offbeat.errors import UnexpectedEvent
from offbeat.party.contract import PartyName


def expect_array(sender: PartyName, what: str, values: np.ndarray, length: int, kind: type[Any] = np.float64) -> None:
    if values.shape != (length,) or values.dtype != kind:
        raise UnexpectedEvent(
            f"{sender} sent {what} as an array of shape {values.shape} and {values.dtype}; {length} values of "
            f"{np.dtype(kind)} were expected. Are both sides running the same job?"
        )


def expect(holds: bool, sender: PartyName, what: str) -> None:
    if not holds:
        raise UnexpectedEvent(f"{sender} sent {what}. Are both sides running the same job?")
