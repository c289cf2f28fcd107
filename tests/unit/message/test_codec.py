"""Bodies to bytes and back: what goes in comes out, and nothing else is let in."""

import msgspec
import numpy as np
import pytest

from offbeat.algorithms import afsgd_vp, mapa, vfb2
from offbeat.errors import BadFrame
from offbeat.message.codec import Codec, decode_state, encode_state, payload_bytes
from offbeat.party.contract import Message
from offbeat.party.lifecycle import Halt, Ready, RosterNamed
from offbeat.party.masked_sum import KeyOffered, ShareAsked, ShareGiven
from offbeat.party.survey_messages import Certified, TablePart


class Unlisted(Message, frozen=True):
    """Not one of the listed messages."""

    number: int


CODEC = Codec(afsgd_vp.MESSAGES)
WORDS = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, Message):
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in a.__struct_fields__)
    if isinstance(a, float) and a != a:
        return isinstance(b, float) and b != b
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    "body",
    [
        ShareAsked(0, 1, 10, 74, -1, 3),
        ShareAsked(2**62, 0, 1, -(2**40), 0, 2**62),
        ShareGiven(0, 1, 2, 64, WORDS, 5, 0.25),
        ShareGiven(0, 1, 2, 64, np.empty(0, np.uint64), 5, 0.0),
        TablePart(0, 2, 0, np.array([0.5, -0.0, np.inf, 5e-324])),
        Certified(0, 3, 0.1, 1e-300, float("nan"), 2),
        RosterNamed(2, ("ana", "bo", "cécile"), "ana"),
        Halt("target", "the certificate is small", -1),
        KeyOffered(bytes(range(32))),
        Ready(),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_body_comes_back_as_it_was(body):
    frame = CODEC.encode(body)
    assert same(CODEC.decode(frame), body)
    assert CODEC.encode(CODEC.decode(frame)) == frame


def test_arrays_arrive_aligned_and_owned():
    frame = bytearray(b"\0\0\0") + CODEC.encode(ShareGiven(0, 0, 0, 1, WORDS, 2, 0.0))
    body = CODEC.decode(memoryview(frame)[3:])
    for i in range(len(frame)):
        frame[i] = 0
    assert body.words.flags.aligned and np.array_equal(body.words, WORDS)


def test_a_view_travels_as_what_it_shows():
    body = ShareGiven(0, 0, 0, 0, np.arange(20, dtype=np.uint64)[::3], 0, 0.0)
    assert np.array_equal(CODEC.decode(CODEC.encode(body)).words, body.words)


@pytest.mark.parametrize("words", [np.array(["a"]), np.array([1 + 2j]), np.array([1.0], ">f8"), np.array([None])])
def test_arrays_of_other_kinds_do_not_travel(words):
    with pytest.raises(TypeError, match="does not travel"):
        CODEC.encode(ShareGiven(0, 0, 0, 0, words, 0, 0.0))


def test_only_listed_messages_travel_in_either_direction():
    with pytest.raises(TypeError, match="Unlisted"):
        CODEC.encode(Unlisted(1))
    with pytest.raises(BadFrame):
        CODEC.decode(Codec((Unlisted,)).encode(Unlisted(1)))


def test_two_messages_of_one_name_are_refused():
    with pytest.raises(AssertionError, match="share a name"):
        Codec((Unlisted, Unlisted))


def array_extension(head: bytes, raw: bytes = b"") -> bytes:
    return msgspec.msgpack.encode(["ShareGiven", 0, msgspec.msgpack.Ext(1, head + raw), 0, 0])


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x93",
        msgspec.msgpack.encode(["ShareGiven", 0]),
        msgspec.msgpack.encode(["ShareGiven", "0", b"", 0, 0]),
        msgspec.msgpack.encode(["ShareGiven", 0, [1, 2], 0, 0]),
        msgspec.msgpack.encode(["ShareGiven", 0, b"12345678", 0, 0]),
        msgspec.msgpack.encode(["Nothing", 0]),
        msgspec.msgpack.encode({"type": "ShareGiven"}),
        msgspec.msgpack.encode(["ShareGiven", 0, msgspec.msgpack.Ext(2, b"\x00\x00"), 0, 0]),
        array_extension(b""),
        array_extension(b"\x00"),
        array_extension(b"\x63\x01\x01\x00\x00\x00", bytes(8)),
        array_extension(b"\x00\x09" + bytes(36), bytes(8)),
        array_extension(b"\x00\x01\x02\x00\x00\x00", bytes(8)),
        array_extension(b"\x00\x02\xff\xff\xff\xff\xff\xff\xff\xff", bytes(8)),
        array_extension(b"\x00\x01\x01\x00", bytes(0)),
        CODEC.encode(Ready()) + b"\x00",
    ],
)
def test_a_damaged_frame_is_refused_with_a_typed_error(frame):
    with pytest.raises(BadFrame):
        CODEC.decode(frame)


def test_a_state_comes_back_with_its_arrays():
    state = {
        "a": [1, 2.5, None, True, b"x", "y"],
        "w": np.arange(6.0).reshape(2, 3),
        "none": np.empty((0, 2), np.int64),
    }
    back = decode_state(encode_state(state))
    assert back["a"] == state["a"]
    assert same(back["w"], state["w"]) and same(back["none"], state["none"])
    assert back["w"].flags.writeable


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x91" * 3000, b"\x81\xa1a", array_extension(b"\x00\x01")])
def test_bytes_that_are_no_state_are_refused(frame):
    with pytest.raises(BadFrame):
        decode_state(frame)


def test_what_cannot_be_a_state_is_said():
    with pytest.raises(TypeError):
        encode_state({"rng": np.random.default_rng()})


def test_payload_bytes_count_contents():
    assert payload_bytes(ShareAsked(0, 1, 2, 3, 4, 5)) == 6 * 8
    assert payload_bytes(ShareGiven(0, 0, 0, 0, WORDS, 0, 0.0)) == 7 * 8 + 4 * 8
    assert payload_bytes(RosterNamed(1, ("ana", "bo"), "ana")) == 8 + 5 + 3
    assert payload_bytes(KeyOffered(bytes(32))) == 32
    assert payload_bytes(Ready()) == 0


@pytest.mark.parametrize("family", [afsgd_vp, vfb2, mapa], ids=lambda f: f.__name__)
def test_every_family_lists_messages_that_a_codec_accepts(family):
    Codec(family.MESSAGES)


@pytest.mark.parametrize("number", [np.float64(0.1), np.float32(0.5), np.int64(-7), np.uint64(2**63), np.bool_(True)])
def test_a_number_out_of_an_array_travels_as_a_number(number):
    back = decode_state(encode_state({"x": number}))["x"]
    assert type(back) in (int, float, bool) and back == number
    told = CODEC.decode(CODEC.encode(ShareGiven(0, 0, np.int64(1), 0, WORDS, 0, np.float64(2.5))))
    assert (told.survey, told.seconds) == (1, 2.5)


def test_a_number_of_another_kind_does_not_travel():
    with pytest.raises(TypeError):
        encode_state(np.complex128(1j))
