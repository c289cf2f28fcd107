"""The codec, for any body and any bytes."""

import contextlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from offbeat.algorithms import afsgd_vp
from offbeat.errors import BadFrame
from offbeat.message.codec import Codec, decode_state, encode_state
from offbeat.party.masked_sum import PartialGiven, ShareGiven
from offbeat.party.survey_messages import TablePart

CODEC = Codec(afsgd_vp.MESSAGES)
INTS = st.integers(-(2**63), 2**63 - 1)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
DTYPES = st.sampled_from(["<f8", "<f4", "<u8", "<i8", "<u4", "<i4", "|u1", "|i1", "|b1", "<u2", "<i2"])
ARRAYS = arrays.arrays(DTYPES, SHAPES)

BODIES = st.one_of(
    st.builds(ShareGiven, INTS, INTS, INTS, INTS, ARRAYS, INTS, st.floats()),
    st.builds(TablePart, INTS, INTS, INTS, ARRAYS),
    st.builds(PartialGiven, INTS, st.text(max_size=8), INTS, INTS, INTS, INTS, ARRAYS, ARRAYS),
)
STATES = st.recursive(
    st.none() | st.booleans() | INTS | st.text(max_size=5) | st.binary(max_size=5) | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(BODIES)
def test_any_body_comes_back_to_the_byte(body):
    frame = CODEC.encode(body)
    back = CODEC.decode(frame)
    assert type(back) is type(body)
    assert CODEC.encode(back) == frame
    for name in body.__struct_fields__:
        value, other = getattr(body, name), getattr(back, name)
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape, value.tobytes()) == (other.dtype, other.shape, other.tobytes())


@settings(deadline=None, max_examples=200)
@given(STATES)
def test_any_state_comes_back_to_the_byte(state):
    assert encode_state(decode_state(encode_state(state))) == encode_state(state)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_a_bad_frame(frame):
    for decode in (CODEC.decode, decode_state):
        with contextlib.suppress(BadFrame):
            decode(frame)


@settings(deadline=None, max_examples=300)
@given(BODIES, st.data())
def test_a_frame_with_one_flipped_byte_is_a_message_or_a_bad_frame(body, data):
    frame = bytearray(CODEC.encode(body))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadFrame):
        CODEC.decode(bytes(frame))
