"""The packets on a stream between two parties.

A stream opens with the caller's `Greeting`, answered by `Welcome` or `Refusal`; then both sides write `Data` and `Beat`
as they please, and `Bye` when their party is done and everything it sent is acknowledged. Whatever does not decode
to one of these, in its place and within the bounds, closes the stream.
"""

from functools import cache
from importlib.metadata import version
from typing import Annotated

import msgspec

from offbeat.errors import BadFrame
from offbeat.runtime.delivery import Bounds
from offbeat.runtime.transcript import Head, Number, Seal

PROTOCOL_VERSION = 8
"""Raised when the packets or their meaning change; both sides of a stream must have the same."""

SERVICE = "offbeat.Parties"
_HELLO_TEXT_MAX = 256
_FRAMES_MAX = 4096
_PINS_MAX = 4096

Text = Annotated[str, msgspec.Meta(max_length=_HELLO_TEXT_MAX)]
Frames = Annotated[list[bytes], msgspec.Meta(min_length=1, max_length=_FRAMES_MAX)]
Reason = Annotated[str, msgspec.Meta(max_length=2000)]


class StreamPart(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of what travels."""


class Greeting(StreamPart, frozen=True, gc=False, tag="Hello"):
    """The caller presents itself. `accepted` is the last of our messages it holds; the answer starts after it."""

    protocol: Number
    offbeat: Text
    run: Text
    name: Text
    roster: Text
    job: Text  # digest of what both sides believe they are doing: options, aligned order of rows
    accepted: Number
    nonce: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]
    pins: Annotated[list[Text], msgspec.Meta(max_length=_PINS_MAX)] = []  # what `roster` is the hash of


class Welcome(StreamPart, frozen=True, gc=False):
    """The listener agrees, and proves by a signature over the nonce that it holds the pinned certificate's key."""

    accepted: Number
    signature: Annotated[bytes, msgspec.Meta(max_length=256)]


class Refusal(StreamPart, frozen=True, gc=False):
    """The listener does not agree. `final`: calling again without a change by a person cannot help.
    `ended`: the verdict with which the run ended at the listener, if that is the reason."""

    reason: Reason
    final: bool
    ended: Text = ""


class Data(StreamPart, frozen=True, gc=False):
    """Messages `first`, `first + 1`, ...; the last of the receiver's messages that are safely in our log; and the
    number before which nothing will come any more (a peer that was lost may have missed messages), with the head
    behind what was left out."""

    first: Number
    durable: Number
    frames: Frames
    oldest: Number = 0
    jump: Head | None = None
    seal: Seal | None = None


class Beat(StreamPart, frozen=True, gc=False):
    """A sign of life with an acknowledgement. `round_trip_s`: how long the greeting took, from the side that knows."""

    durable: Number
    round_trip_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0
    seal: Seal | None = None


class Bye(StreamPart, frozen=True, gc=False):
    """This party is done and will send nothing more in this run."""

    durable: Number
    verdict: Text
    seal: Seal | None = None


AnyPacket = Greeting | Welcome | Refusal | Data | Beat | Bye

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyPacket] = msgspec.msgpack.Decoder(AnyPacket)


@cache
def offbeat_version() -> str:
    return version("offbeat")


def pack(packet: AnyPacket) -> bytes:
    return _ENCODER.encode(packet)


def unpack(raw: bytes, bounds: Bounds) -> AnyPacket:
    if len(raw) > bounds.wire_bytes:
        raise BadFrame(f"a packet of {len(raw)} bytes came; at most {bounds.wire_bytes} are accepted")
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as problem:
        raise BadFrame(f"{len(raw)} bytes are not one of our packets: {problem}") from problem
