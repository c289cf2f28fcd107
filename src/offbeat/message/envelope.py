"""What every message carries on a real wire, whatever its body."""

import msgspec

from offbeat.errors import BadFrame
from offbeat.party.contract import PartyName


class Envelope(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One message in flight. `sequence` rises by one per (sender, receiver) channel and never repeats in a run:
    it makes a message that was delivered twice recognisable, and a lost one noticeable."""

    run: str
    sender: PartyName
    receiver: PartyName
    sequence: int
    body: bytes


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Envelope)


def seal(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


def unseal(frame: bytes | memoryview) -> Envelope:
    try:
        return _DECODER.decode(frame)
    except msgspec.MsgspecError as problem:
        raise BadFrame(f"a frame of {len(frame)} bytes is not an envelope of ours: {problem}") from problem
