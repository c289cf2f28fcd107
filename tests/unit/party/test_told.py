"""Digests of what was told: the same for the same words in the same order, and kept with the question after them."""

import numpy as np
import pytest

from offbeat.algorithms.vfb2 import Backward
from offbeat.errors import UnexpectedEvent
from offbeat.message.codec import Codec, decode_state, encode_state
from offbeat.party import told as module
from offbeat.party.survey_messages import Leap, Mark
from offbeat.party.told import Told

THETA = np.linspace(-1.0, 1.0, 7)
SAID = (Mark(0, 1, 0, 0), Leap(0, 1, np.zeros(2), 1.0, b"x"), Backward(0, 3, THETA, 9, 4, 0))
KEY = (0, 0, 5)


def heard(*bodies, teller="eve"):
    told = Told()
    for body in bodies:
        told.hear(teller, body)
    return told


def test_what_went_over_the_wire_has_the_digest_of_what_was_said():
    codec = Codec((Mark, Leap, Backward))
    numpys = Leap(0, np.int64(1), np.zeros(2), np.float64(1.0), b"x")
    arrived = [codec.decode(codec.encode(body)) for body in SAID]
    assert heard(*SAID).heads == heard(*arrived).heads == heard(SAID[0], numpys, SAID[2]).heads


@pytest.mark.parametrize(
    "other",
    [
        (SAID[1], SAID[0], SAID[2]),
        SAID[:2],
        (*SAID, SAID[2]),
        (*SAID[:2], Backward(0, 3, np.nextafter(THETA, 2.0), 9, 4, 0)),
        (*SAID[:2], Backward(0, 3, THETA, 9, 5, 0)),
        (SAID[0], Leap(0, 1, np.zeros(2), 1.0, b"y"), SAID[2]),
    ],
    ids=["another order", "less", "more", "another number", "another question", "another table"],
)
def test_other_words_have_another_digest(other):
    assert heard(*SAID).heads != heard(*other).heads


def test_a_question_keeps_the_digest_of_its_moment_also_after_a_restart():
    told = heard(SAID[0])
    then = told.heads["eve"]
    told.note("eve", KEY)
    told.hear("eve", SAID[1])
    told.note("eve", KEY)  # asked again: the first moment counts
    again = Told()
    again.restore(decode_state(encode_state(told.snapshot())))
    for one in (told, again):
        assert one.when_asked("eve", KEY) == then
        assert one.when_asked("eve", KEY) == one.heads["eve"] != then, "it was answered; what is unasked is of now"
    assert told.when_asked("flo", KEY) == module.NOTHING, "another teller has a digest of its own"


def test_a_survey_is_bound_to_the_chairs_mark_whoever_asks():
    one, other = heard(SAID[0]), heard(SAID[1], SAID[0])
    for told in (one, other):
        told.mark("eve", 1, 0)
    question = (1, 1, 0)
    assert one.when_asked("flo", question) != other.when_asked("flo", question)
    one.hear("eve", SAID[2])
    assert one.when_asked("flo", question) == _marked(heard(SAID[0]), question), "what comes later is no matter"
    for survey in (2, 3):
        one.mark("eve", survey, 1)
    assert sorted(one.marks) == [1, 2, 3], "a certificate of the first may still be due"
    one.mark("eve", 4, 3)
    assert sorted(one.marks) == [3, 4], "old ones are forgotten"


def _marked(told, question):
    told.mark("eve", 1, 0)
    return told.when_asked("flo", question)


def test_notes_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "NOTED_MOST", 3)
    told = Told()
    for number in range(3):
        told.note("eve", (0, 0, number))
    with pytest.raises(UnexpectedEvent, match="eve sent more questions"):
        told.note("eve", (0, 0, 3))
    told.note("flo", (0, 0, 3))


def test_the_first_end_counts():
    told = heard(*SAID)
    told.end("eve", 1)
    last = told.last
    told.end("eve", -1)
    assert told.last == last and len(last) == 32
    other = heard(*SAID)
    other.end("eve", -1)
    assert other.last != last
