"""What a peer's message must look like before a party uses it. A semi-honest peer never fails here; a wrong or damaged
one is named, and nothing of it has been used."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from offbeat.errors import UnexpectedEvent
from offbeat.party.contract import Effect, Message, PartyName, Received

FLOATS, COUNTS, WORDS = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.uint64)


Handlers = Mapping[type[Message], Callable[[PartyName, Any], list[Effect]]]


def received(me: PartyName, handlers: Handlers, event: Received) -> list[Effect]:
    """What a party does about a message of a kind that it knows."""
    handler = handlers.get(type(event.body))
    if handler is None:
        raise UnexpectedEvent(f"'{me}' got a {type(event.body).__name__} from '{event.sender}'.")
    return handler(event.sender, event.body)


def expect_array(
    sender: PartyName, what: str, values: np.ndarray, length: int, kind: np.dtype[Any] = FLOATS, number: int = -1
) -> None:
    """`number` follows `what` where it is given; the sentence is put together only when it is needed."""
    if values.shape != (length,) or values.dtype != kind:
        raise UnexpectedEvent(
            f"{sender} sent {what}{f' {number}' if number >= 0 else ''} as an array of shape {values.shape} and "
            f"{values.dtype}; {length} values of {kind} were expected. Are both sides running the same job?"
        )


def expect(holds: bool, sender: PartyName, what: str) -> None:
    if not holds:
        refuse(sender, what)


def refuse(sender: PartyName, what: str) -> NoReturn:
    """For whoever looks so often that the sentence is put together only when it is needed."""
    raise UnexpectedEvent(f"{sender} sent {what}. Are both sides running the same job?")
