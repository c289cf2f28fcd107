"""Message bodies to bytes and back: msgspec for the structure, raw bytes for the arrays, never pickle.

One codec serves gRPC, MQTT and the disk. A body travels as a msgpack array whose first entry is the type's name; an
array inside is an extension of one dtype byte, one dimension count, the shape, and the elements as they lie in
memory (little-endian). Decoding accepts the listed message types only, checks every field's type, and copies arrays
once, so that what a party receives is aligned and nobody else's.
"""

import struct
from collections.abc import Iterable
from math import prod
from typing import Any, Union

import msgspec
import numpy as np

from offbeat.errors import BadFrame
from offbeat.party.contract import Message

_ARRAY = 1
_DTYPES = ("<f8", "<f4", "<u8", "<i8", "<u4", "<i4", "|u1", "|i1", "|b1", "<u2", "<i2", "<f2")
_CODE_OF = {np.dtype(name): code for code, name in enumerate(_DTYPES)}
_DTYPE_OF = {code: np.dtype(name) for code, name in enumerate(_DTYPES)}
_DIMENSIONS_MAX = 8


class Codec:
    """Encodes and decodes the given message types; anything else is refused.

    >>> codec = Codec((ShareAsked, ShareGiven))          # an algorithm's MESSAGES
    >>> codec.decode(codec.encode(body)) == body
    """

    def __init__(self, message_types: Iterable[type[Message]]) -> None:
        self.message_types = tuple(message_types)
        names = [kind.__name__ for kind in self.message_types]
        assert len(set(names)) == len(names), f"two message types share a name: {sorted(names)}"
        self._known = frozenset(self.message_types)
        accepted: Any = Union[self.message_types]  # noqa: UP007  (built from a tuple)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_array_to_extension)
        self._decoder = msgspec.msgpack.Decoder(accepted, ext_hook=_extension_to_array, dec_hook=_accept_array)

    def encode(self, body: Message) -> bytes:
        if type(body) not in self._known:
            raise TypeError(f"{type(body).__name__} is not one of the listed messages: no peer would accept it")
        return self._encoder.encode(body)

    def decode(self, frame: bytes | bytearray | memoryview) -> Message:
        try:
            body: Message = self._decoder.decode(frame)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as problem:
            raise BadFrame(f"a frame of {len(frame)} bytes is not one of our messages: {problem}") from problem
        return body


def encode_state(state: Any) -> bytes:
    """A party's snapshot (plain values and arrays) as bytes."""
    return _STATE_ENCODER.encode(state)


def decode_state(frame: bytes | memoryview) -> Any:
    try:
        return _STATE_DECODER.decode(frame)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as problem:
        raise BadFrame(f"{len(frame)} bytes are not a snapshot of ours: {problem}") from problem


def payload_bytes(body: Message) -> int:
    """Size of a body's contents: eight bytes for a number, the raw size of arrays, bytes and strings."""
    shape = _SHAPES.get(type(body))
    if shape is None:
        shape = _SHAPES[type(body)] = _shape_of(type(body))
    size, variable = shape
    for name in variable:
        value = getattr(body, name)
        size += value.nbytes if type(value) is np.ndarray else _size(value)
    return size


def _shape_of(kind: type[Message]) -> tuple[int, tuple[str, ...]]:
    """Bytes of the fixed-size fields, and the names of the others: looked up once per type, not per message."""
    fixed = [f.name for f in msgspec.structs.fields(kind) if f.type in (int, float, bool)]
    return 8 * len(fixed), tuple(name for name in kind.__struct_fields__ if name not in fixed)


_SHAPES: dict[type[Message], tuple[int, tuple[str, ...]]] = {}


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, (tuple, list)):
        return sum(_size(item) for item in value)
    return 8


def _array_to_extension(value: Any) -> Any:
    if isinstance(value, np.generic) and value.dtype in _CODE_OF:
        return value.item()  # a number that came out of an array is a number
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a message field holds {type(value).__name__}, which does not travel")
    code = _CODE_OF.get(value.dtype)
    if code is None or value.ndim > _DIMENSIONS_MAX:
        raise TypeError(f"an array of {value.dtype} with {value.ndim} dimensions does not travel")
    head = struct.pack(f"<BB{value.ndim}I", code, value.ndim, *value.shape)
    return msgspec.msgpack.Ext(_ARRAY, head + value.tobytes())


def _extension_to_array(code: int, data: memoryview) -> np.ndarray:
    if code != _ARRAY or len(data) < 2:
        raise ValueError(f"unknown extension {code} of {len(data)} bytes")
    dtype, dimensions = _DTYPE_OF.get(data[0]), data[1]
    if dtype is None or dimensions > _DIMENSIONS_MAX or len(data) < 2 + 4 * dimensions:
        raise ValueError("an array's head is damaged")
    shape = struct.unpack_from(f"<{dimensions}I", data, 2)
    raw = data[2 + 4 * dimensions :]
    if prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"an array of shape {shape} and {dtype} cannot have {len(raw)} bytes")
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def _accept_array(kind: type, value: Any) -> Any:
    if kind is np.ndarray and isinstance(value, np.ndarray):
        return value
    raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")


_STATE_ENCODER = msgspec.msgpack.Encoder(enc_hook=_array_to_extension)
_STATE_DECODER = msgspec.msgpack.Decoder(ext_hook=_extension_to_array)
