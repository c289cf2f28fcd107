"""Standing scoring sessions: exact sums under masks, and what an asker that cheats gets."""

import numpy as np
import pytest

from offbeat.errors import Refused
from offbeat.orgs.predict import scores_from
from offbeat.orgs.standing import Lane, Terms
from offbeat.party.masked_sum import SumOptions
from offbeat.privacy.masks import FRACTION_BITS, scale_of
from offbeat.runtime.grpc.identity import Member, new_identity

NAMES = ("bank", "post", "shop", "telecom")
OTHERS = NAMES[1:]
SCALE = scale_of(FRACTION_BITS)
IDENTITIES = {name: new_identity(name) for name in NAMES}
MEMBERS = {name: Member(name, identity.certificate_pem) for name, identity in IDENTITIES.items()}
TOKENS = b"a" * 16 + b"b" * 16 + b"c" * 16


def terms(service="score-1", parties=NAMES):
    return Terms("credit-1", service, "bank", parties, SumOptions())


def lanes(service="score-1"):
    made = {name: Lane(terms(service), name, name.encode().ljust(32, b".")) for name in OTHERS}
    keys = {name: lane.offer(IDENTITIES[name]) for name, lane in made.items()}
    for lane in made.values():
        lane.take(keys, MEMBERS)
    return made


def answered(lane, number, tokens=TOKENS, known=(True, True, True), values=(0.5, -1.25, 3.0)):
    lane.claim(number)
    return lane.words(number, tokens, np.array(values), np.array(known))


def total(words):
    return np.sum(words, axis=0, dtype=np.uint64)


def test_scores_are_the_exact_sum_of_all_parts_question_after_question_in_any_order():
    made = lanes()
    for number in (0, 2, 1, 7):
        words = total([answered(lane, number) for lane in made.values()])
        scores, known = scores_from(words, np.array([1.0, 1.0, 1.0]), np.ones(3, bool), SCALE)
        assert scores.tolist() == [2.5, -2.75, 10.0]
        assert known.tolist() == [True, True, True]


def test_a_row_that_one_party_lacks_has_no_score_and_its_parts_stay_hidden():
    made = lanes()
    words = [answered(lane, 0, known=(True, name != "shop", True)) for name, lane in made.items()]
    scores, known = scores_from(total(words), np.zeros(3), np.ones(3, bool), SCALE)
    assert known.tolist() == [True, False, True]
    assert scores.tolist() == [1.5, 0.0, 9.0]
    assert abs(total(words)[4].view(np.int64) / SCALE + 2.5) > 1e-3  # the others' parts of that row are not told


def test_one_answer_alone_is_noise_and_no_two_questions_share_it():
    lane = lanes()["shop"]
    first, second = answered(lane, 0), answered(lane, 1)
    assert not set(first.tolist()) & set(second.tolist())
    plain = np.rint(np.array([0.5, -1.25, 3.0]) * SCALE).astype(np.int64).view(np.uint64)
    assert not set(first.tolist()) & {0, *plain.tolist()}


def test_parties_that_were_asked_for_different_rows_give_words_that_do_not_cancel():
    made = lanes()
    words = [answered(lane, 0, TOKENS if name != "shop" else TOKENS[::-1]) for name, lane in made.items()]
    _, known = scores_from(total(words), np.zeros(3), np.ones(3, bool), SCALE)
    assert known.tolist() == [False, False, False]


def test_a_question_number_is_answered_once():
    lane = lanes()["shop"]
    answered(lane, 3)
    with pytest.raises(Refused, match="has answered question 3"):
        lane.claim(3)
    lane.claim(0)  # it was overtaken, not used


def test_a_key_that_its_owner_did_not_sign_for_this_session_is_refused():
    honest = {name: Lane(terms(), name, name.encode().ljust(32, b".")) for name in OTHERS}
    keys = {name: lane.offer(IDENTITIES[name]) for name, lane in honest.items()}
    forged = Lane(terms(), "telecom", b"x" * 32).offer(IDENTITIES["bank"])
    older = Lane(terms("score-0"), "telecom", b"y" * 32).offer(IDENTITIES["telecom"])
    for key in (forged, older, (b"", b"")):
        with pytest.raises(Refused, match="'telecom' did not sign"):
            honest["shop"].take({**keys, "telecom": key}, MEMBERS)
    with pytest.raises(Refused, match="not been given the others' keys"):
        Lane(terms(), "post", b"z" * 32).claim(0)


def test_a_second_key_of_the_same_party_is_refused():
    made = lanes()
    other = Lane(terms(), "telecom", b"x" * 32).offer(IDENTITIES["telecom"])
    keys = {name: lane.offer(IDENTITIES[name]) for name, lane in made.items()}
    with pytest.raises(Refused, match="two keys of 'telecom'"):
        made["shop"].take({**keys, "telecom": other}, MEMBERS)
