"""A label holder that tells parties different things, to keep all blocks but one where it wants them.

Eve holds the labels and the chair. She sends the derivatives, the leaps and the tables, and so moves the blocks.
"""

from hashlib import sha256

import numpy as np
from asker import BEGIN, ROWS, WIDTH, ask, decoded, is_noise, refused, says, share_of, told, world

from offbeat.algorithms import afsgd_vp, vfb2
from offbeat.algorithms.vfb2 import Backward
from offbeat.learning.blocks import make_block
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2
from offbeat.party.contract import Compute, Computed, PeerLost, Received, Send
from offbeat.party.lifecycle import Begin, Halt, RosterNamed
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import EPOCH_STRIDE, PRODUCTS, SURVEY, ShareGiven
from offbeat.party.problem import Problem
from offbeat.party.survey_messages import Certified, GoOn, Leap, Mark, TablePart
from offbeat.party.told import Told
from offbeat.privacy.masks import NetMask
from offbeat.runtime.simulator import Simulator

BOTH = ("ana", "bo")


def at_zero(**options):
    here = world(**options)
    for name in BOTH:
        here.parties[name].block.set_weights(np.zeros((1, WIDTH + 1)))
    return here


def total(here, number, names=BOTH):
    """What Eve adds up to for one question."""
    words = [says(here.parties[name], ask(first=number))[0] for name in names]
    return sum(words[1:], words[0])


def derivatives(here, number):
    start, stop = here.schedule.block(number)
    return np.random.default_rng(number).normal(size=stop - start)


def both_shares(here, number):
    rows = here.schedule.block(number)
    return share_of(here, "ana", *rows) + share_of(here, "bo", *rows)


def announced(here, table):
    digests = here.ana.party.survey.tables.digests(np.atleast_2d(table), None)
    return Leap(0, 1, np.zeros(0), 1.0, digests)


# -- derivatives -------------------------------------------------------------------------------------------------------


def test_told_alike_the_total_is_what_it_should_be():
    here = at_zero()
    for number in range(4):
        assert np.abs(decoded(total(here, number)) - both_shares(here, number)).max() < 2.0**-38
        for name in BOTH:
            says(here.parties[name], Backward(0, number, derivatives(here, number), 0, -1, 0))
    assert np.abs(here.bo.block.weights()).max() > 0.0


def test_a_label_holder_that_lies_to_one_party_sees_noise_from_then_on():
    """Told zeros, Bo's block stays at zero, and an honest total would be Ana's share."""
    here = at_zero()
    assert not decoded(total(here, 0)).any(), "nothing has moved, and nothing was told"
    for number in range(4):
        truth = derivatives(here, number)
        for name, theta in (("ana", truth), ("bo", np.zeros_like(truth))):
            says(here.parties[name], Backward(0, number, theta, 0, -1, 0))
        assert np.abs(here.ana.block.weights()).max() > 0.0 == np.abs(here.bo.block.weights()).max()
        assert is_noise(total(here, number + 1))


def test_one_bit_of_one_derivative_is_enough():
    here = at_zero()
    total(here, 0)
    theta = derivatives(here, 0)
    other = theta.copy()
    other[5] = np.nextafter(other[5], 1.0)
    says(here.ana, Backward(0, 0, theta, 0, -1, 0))
    says(here.bo, Backward(0, 0, other, 0, -1, 0))
    assert is_noise(total(here, 1))


def test_a_lie_cannot_be_made_good():
    """The truth told later, in another order, leaves another history."""
    here = at_zero()
    total(here, 0)
    total(here, 1)
    first, second = (Backward(0, number, derivatives(here, number), 0, -1, 0) for number in (0, 1))
    for party, order in ((here.ana, (first, second)), (here.bo, (second, first))):
        for body in order:
            says(party, body)
    assert is_noise(total(here, 2))


def test_words_left_of_a_lie_are_uniform_in_every_bit():
    """Also the lowest: a factor that is even would leave them bare."""
    keys = [bytes(range(16))]
    plus, minus = NetMask(keys, [], 64), NetMask([], keys, 64)
    lies = [sha256(bytes([n])).digest() for n in range(200)]
    left = [plus.take(n, 1, 64, lies[n]) + minus.take(n, 1, 64, lies[n - 1]) for n in range(1, 200)]
    bits = np.unpackbits(np.concatenate(left).view(np.uint8).reshape(-1, 8), axis=1)
    spread = np.sqrt(len(bits)) / 2
    assert np.abs(bits.sum(axis=0) - len(bits) / 2).max() < 5 * spread
    same = plus.take(300, 1, 64, lies[3]) + minus.take(300, 1, 64, lies[3])
    assert not same.any(), "told alike they cancel"


def test_a_question_is_bound_to_what_was_told_before_it_however_late_it_is_answered():
    """Bo is slow: he has heard more than Ana when he answers. Both answers belong to the moment of the question."""
    here = at_zero()
    for number in (0, 1):
        total(here, number)
    body = Backward(0, 0, derivatives(here, 0), 0, 2, 0)
    (ana,) = says(here.ana, body)
    late = here.bo.handle(Received("eve", body))
    more = Backward(0, 1, derivatives(here, 1), 0, -1, 0)
    says(here.ana, more)
    here.bo.handle(Received("eve", more))
    (bo,) = [e.body.words for e in _worked(here.bo, late) if hasattr(e, "body") and isinstance(e.body, ShareGiven)]
    rows = here.schedule.block(2)
    one_step = decoded(ana + bo) - share_of(here, "bo", *rows)
    assert np.abs(one_step).max() < 1.0, "a product, and no noise"


def _worked(party, effects):
    work = [effect for effect in effects if isinstance(effect, Compute)]
    return [done for effect in work for done in party.handle(Computed(effect.ticket))]


# -- what else moves a block -------------------------------------------------------------------------------------------


def test_another_step_size_for_each():
    """A step of almost nothing keeps Bo's block at almost zero."""
    here = world(begin=None)
    here.ana.handle(Received("eve", BEGIN))
    here.bo.handle(Received("eve", Begin(0, 1e-300, *[getattr(BEGIN, f) for f in BEGIN.__struct_fields__[2:]])))
    assert is_noise(total(here, 0))


def test_another_pace_or_leap_for_each():
    table = b"a table"
    for other in (Leap(0, 2, np.zeros(0), 1e-9, table), Leap(0, 2, np.zeros(0), 1.0, b"another table")):
        here = at_zero()
        for name in BOTH:
            here.parties[name].party.survey.current = 1  # as after a first survey
            here.parties[name].handle(Received("eve", Mark(0, 2, 0, 0b110)))
        here.ana.handle(Received("eve", Leap(0, 2, np.zeros(0), 1.0, table)))
        here.bo.handle(Received("eve", other))
        for name in BOTH:
            here.parties[name].handle(Received("eve", GoOn(0, 2)))
            here.parties[name].party.survey.tables.arrived = True
        assert is_noise(total(here, 0))


def test_another_table_than_was_announced_to_all_is_refused():
    here = at_zero()
    table = np.random.default_rng(1).normal(size=ROWS)
    for name in BOTH:
        here.parties[name].handle(Received("eve", Mark(0, 1, 0, 0)))
        here.parties[name].handle(Received("eve", announced(here, table)))
    refused(here.bo, TablePart(0, 1, 0, np.zeros(ROWS)), match="another table from row 0")
    says(here.ana, TablePart(0, 1, 0, table))
    assert np.array_equal(here.ana.block.table[0], table) and not here.bo.block.table.any()


def test_a_table_that_is_withheld_is_missed():
    """Without it Bo's mean gradient stays zero; with derivatives of zero his block would, and Ana's would move."""
    here = at_zero()
    table = np.random.default_rng(1).normal(size=ROWS)
    here.bo.handle(Received("eve", Mark(0, 1, 0, 0)))
    here.bo.handle(Received("eve", announced(here, table)))
    refused(here.bo, ask(first=0), match="a question before the table")
    refused(here.bo, Certified(0, 1, 0.1, 0.1, 0.1, 1), match="a certificate of survey 1")


def test_a_party_is_not_left_without_a_table_but_while_it_takes_one():
    here = at_zero()
    refused(here.bo, Mark(0, 1, 0, 0b100), match="leaves others without a table")
    refused(here.bo, Mark(0, 1, 0, 0b100, False), match="leaves others without a table")
    here.bo.party.survey.current = 1  # as after a first survey, that waited for all
    refused(here.bo, Mark(0, 2, 0, 0b100, False), match="leaves others without a table")
    here.bo.handle(Received("eve", Mark(0, 2, 0, 0b100)))
    here.bo.handle(Received("eve", Leap(0, 2, np.zeros(0), 1.0)))
    here.bo.handle(Received("eve", GoOn(0, 2)))
    refused(here.bo, Mark(0, 3, 0, 0b100), match="leaves others without a table")
    refused(here.bo, Mark(0, 3, 0, 0b110, False), match="leaves others without a table")
    here.bo.handle(Received("eve", Mark(0, 3, 0, 0b100, False)))


def test_nobody_is_late_at_the_zero_start_of_a_new_roster_either():
    """Before: surveys of a new roster count from 2^32 on, and a mark of the first one named Bo late. Eve held back his
    table, Ana moved along hers, and the total of the second survey was Ana's share with an error of 4.5e-13."""
    here = at_zero(on_loss="continue")
    for name in BOTH:
        here.parties[name].handle(Received("eve", RosterNamed(3, ("eve", *BOTH), "eve")))
        refused(here.parties[name], Mark(3, 3 * EPOCH_STRIDE + 1, 0, 0b100), match="leaves others without a table")


def test_a_certificate_of_no_survey_ends_none():
    """Before: with no certificate on its way, one of survey 0 ended the first survey, and nobody had taken a table. The
    next mark named Bo late at zero; the total of the third survey was Ana's share, with an error of 4.5e-13."""
    here = at_zero()
    for name in BOTH:
        here.parties[name].handle(Received("eve", Mark(0, 1, 0, 0)))
        refused(here.parties[name], Certified(0, 0, 0.1, 0.1, 0.1, 0), match="a certificate of survey 0")
        refused(here.parties[name], Mark(0, 2, 0, 0b100), match="the mark of survey 2 after 1")


def test_between_organisations_nobody_is_late():
    """Else the difference of two surveys is what one party has moved: see the tests of it below."""
    four = ("eve", "ana", "bo", "cy")
    for names, late, taken in ((four[:3], 0b100, False), (four, 0b1000, False), (four, 0b1100, False), (four, 0, True)):
        here = world(names, in_step=True)
        here.ana.party.survey.current = 1  # as after a first survey
        if taken:
            here.ana.handle(Received("eve", Mark(0, 2, 0, late)))
        else:
            refused(here.ana, Mark(0, 2, 0, late), match="leaves others without a table")


def test_an_honest_label_holder_is_no_tool_against_others():
    """The chair alone asks about surveys. If it has lied, Ana and Bo are bound to different words, whoever asks."""
    for lies in (False, True):
        here = world(("eve", "flo", "ana", "bo"), labels_at=("eve", "flo"))
        start, stop = here.parties["ana"].rows_asked("eve", 0)
        for name in BOTH:
            told(here.parties[name], ask(first=0))
            theta = np.ones(stop - start) * (lies and name == "bo")
            says(here.parties[name], Backward(0, 0, theta, 0, -1, 0))
            here.parties[name].handle(Received("eve", Mark(0, 1, 0, 0)))
        bound = [here.parties[name].party.sums.told.when_asked("flo", (SURVEY, 1, 128)) for name in BOTH]
        assert (bound[0] != bound[1]) == lies


def test_a_model_remembers_what_its_training_was_told():
    """Lies in training would otherwise be read in the first prediction: Bo's part of every score is zero."""
    alike, lied, kept = at_zero(), at_zero(), at_zero()
    for here in (alike, lied, kept):
        total(here, 0)
        for name in BOTH:
            theta = derivatives(here, 0) * (here is not lied or name == "ana")
            says(here.parties[name], Backward(0, 0, theta, 0, -1, 0))
            best = -1 if here is kept and name == "bo" else 0
            here.parties[name].handle(Received("eve", Halt("target", "", best)))
    ends = [[here.parties[name].party.sums.told.last for name in BOTH] for here in (alike, lied, kept)]
    assert ends[0][0] == ends[0][1] and ends[1][0] != ends[1][1] and ends[2][0] != ends[2][1]


def test_a_model_remembers_what_a_chair_told_that_has_vanished():
    """Before: the last word was nobody's, or an honest heir's, and held nothing of what the chair had told. Where
    on_loss is "stop", which policies allow, Eve lied, vanished, and read Ana's part in the first prediction."""
    for labels, named in ((("eve",), Certified), (("eve",), Mark), (("eve", "flo"), Certified)):
        lasts = []
        for lies in (False, True):
            here = world(("eve", "flo", "ana", "bo"), labels_at=labels, on_loss="stop")
            for name in BOTH:
                party = here.parties[name]
                party.block.set_weights(np.zeros((1, WIDTH + 1)))
                told(party, ask(first=0))
                start, stop = party.rows_asked("eve", 0)
                says(party, Backward(0, 0, np.ones(stop - start) * (name == "ana" or not lies), 0, -1, 0))
                party.party.survey.best = 1  # as after a survey, whose messages are told to all alike
                party.party.survey.points[1] = party.block.weights()
                if named is Mark:
                    says(party, Mark(0, 1, 1, 0))
                else:
                    party.party.survey.certifying = 1
                    says(party, Certified(0, 1, 0.1, 0.1, 0.1, 1))
                if labels == ("eve",):
                    party.handle(PeerLost("eve"))
                else:
                    party.handle(Received("flo", Halt("peer-lost", "", 1)))
            assert all(here.parties[name].party.lifecycle.kept == 1 for name in BOTH)
            assert np.abs(here.ana.block.weights()).max() > 0.0 and here.bo.block.weights().any() != lies
            lasts.append([here.parties[name].party.sums.told.last for name in BOTH])
        assert lasts[0][0] == lasts[0][1] and lasts[1][0] != lasts[1][1], (labels, named)


def test_a_model_remembers_the_same_wherever_it_was_trained():
    """Also at the one who told all of it, and whoever else holds labels."""
    for labels in (("eve",), ("eve", "ana")):
        rng = np.random.default_rng(2)
        X = {name: rng.normal(size=(60, 3)) for name in ("eve", "ana", "bo", "cy")}
        problem = Problem(60, LOGISTIC, L2, 1e-3, np.sign(rng.normal(size=60)))
        blocks = {name: make_block(x, penalty=L2, strength=1e-3) for name, x in X.items()}
        made = vfb2.build(blocks, problem, LinearOptions(passes=4.0), labels_at=labels, secrets_seed=1)
        Simulator(seed=1).run(made)
        assert len({party.party.sums.told.last for party in made}) == 1 != len(made[0].party.sums.told.last)


def test_whoever_has_not_moved_yet_does_not_show_what_the_others_are():
    """Not to be waited for, Bo would answer from zero while Ana has stepped: the total would be Ana's share."""
    here = at_zero()
    total(here, 0)
    body = Backward(0, 0, derivatives(here, 0), 0, 1, 0b100)
    assert says(here.ana, body)
    started = here.bo.handle(Received("eve", body))
    assert not [e for e in started if hasattr(e, "body")], "nothing leaves before the first step"
    assert not told(here.bo, ask(first=2)), "whatever is asked beside it"


def test_a_share_that_leaves_its_range_is_not_told():
    """Before: the alarm named the rows and the largest share, to six digits. A derivative of 1e12 at one row made that
    the row's squared length at Ana alone."""
    reasons = []
    for at in (3, 4):
        here = at_zero()
        total(here, 0)
        theta = np.zeros(64)
        theta[at] = 1e12
        says(here.ana, Backward(0, 0, theta[: len(derivatives(here, 0))], 0, -1, 0))
        (alarm,) = [e.body for e in here.ana.handle(Received("eve", ask(first=4))) if isinstance(e, Send)]
        reasons.append(alarm.reason)
    assert reasons[0] == reasons[1] and "one is too large" in reasons[0]


def hurried(here):
    """Both are told the same, Bo in one burst; of five derivatives one moves who takes it."""
    for number in range(5):
        total(here, number)
    bodies = [Backward(0, number, derivatives(here, number) * (number == 2), 0, -1, 0) for number in range(5)]
    for party in (here.ana, here.bo):
        says(party, bodies[0])
    for body in bodies[1:]:
        says(here.ana, body)
    begun = [effect for body in bodies[1:] for effect in here.bo.handle(Received("eve", body))]
    while begun:
        begun = _worked(here.bo, begun)
    return here


def surveyed(here, derivative=0.0):
    """A first survey at zero, whose table moves nobody where its derivatives are zero."""
    table = np.full(ROWS, derivative)
    for name in BOTH:
        for body in (Mark(0, 1, 0, 0), announced(here, table), TablePart(0, 1, 0, table)):
            says(here.parties[name], body)
        says(here.parties[name], Certified(0, 1, 0.1, 0.1, 0.1, 1))


def test_a_block_that_leaves_the_range_does_not_go_back_alone():
    """Before: it went back to where the last survey had ended, which the first time is zero. Eve told both the same,
    large derivatives until only one of them had: five attempts, and the other's share of every row, error 0."""
    ended = set()
    for size in np.geomspace(1e4, 1e6, 16):
        here = at_zero()
        surveyed(here)
        total(here, 0)
        theta = np.zeros(len(derivatives(here, 0)))
        theta[5] = size
        for name in BOTH:
            says(here.parties[name], Backward(0, 0, theta, 0, -1, 0))
        given = [says(here.parties[name], ask(first=1)) for name in BOTH]
        over = [here.parties[name].party.sums.over for name in BOTH]
        assert [not words for words in given] == over and all(here.parties[n].block.weights().any() for n in BOTH)
        ended.add(tuple(over))
        for name, stuck in zip(BOTH, over, strict=True):
            assert bool(says(here.parties[name], ask(first=2))) != stuck, "who is out of range answers nothing more"
    assert {(False, False), (True, False), (False, True), (True, True)} >= ended and len(ended) >= 3, ended


# -- between organisations a share is of all that was told, and of nothing more ----------------------------------------


def test_in_step_nobody_answers_before_the_step():
    """Before: after a step along zeros Bo counted as moved. One derivative that moves, with the word that Bo shall not
    be waited for: Bo answered from zero, Ana after her step. Eve told both the same."""
    here = at_zero(in_step=True, leap=False)
    body = told_zeros_first(here)
    words = [says(here.parties[name], body)[0] for name in BOTH]
    assert np.abs(decoded(words[0] + words[1]) - both_shares(here, 2)).max() < 2.0**-38


def told_zeros_first(here):
    """What moves both, and says that Bo need not be waited for; before it, what moves nobody."""
    for number in range(2):
        total(here, number)
    for name in BOTH:
        says(here.parties[name], Backward(0, 0, np.zeros(len(derivatives(here, 0))), 0, -1, 0))
    return Backward(0, 1, derivatives(here, 1), 0, 2, 0b100)


def test_in_step_a_burst_drops_nothing():
    """Where nobody leaps, too."""
    here = hurried(at_zero(in_step=True, leap=False))
    rows = here.schedule.block(5)
    assert here.bo.dropped == 0 and np.abs(here.bo.block.weights()).max() > 0.0
    both = share_of(here, "ana", *rows) + share_of(here, "bo", *rows)
    assert np.abs(decoded(total(here, 5)) - both).max() < 2.0**-38


def test_in_step_a_question_comes_after_what_was_told_before_it_and_before_what_was_told_after():
    """Tried: Ana is told one thing after the other, and asked in between; Bo, whose lane is busy, all of it at once. He
    answered the question from before or from after all of it."""
    here = at_zero(in_step=True)
    for number in range(3):
        total(here, number)
    bodies = [
        Backward(0, 0, derivatives(here, 0), 0, 3, 0),
        ask(first=4),
        Backward(0, 1, derivatives(here, 1), 0, 5, 0),
        Backward(0, 2, derivatives(here, 2), 0, 6, 0),
    ]
    ana = [words for body in bodies for words in says(here.ana, body)]
    begun, bo = [effect for body in bodies for effect in here.bo.handle(Received("eve", body))], []
    while begun:
        bo += [e.body.words for e in begun if isinstance(e, Send) and isinstance(e.body, ShareGiven)]
        begun = _worked(here.bo, begun)
    assert len(ana) == len(bo) == 4
    alone = at_zero(in_step=True)  # the same without a busy lane
    for number in range(3):
        total(alone, number)
    for place, body in enumerate(bodies):
        words = [says(alone.parties[name], body) for name in BOTH]
        if words[0]:
            there, here_ = words[0][0] + words[1][0], ana[min(place, 3)] + bo[min(place, 3)]
            assert np.array_equal(there, here_) and np.abs(decoded(there)).max() < 1e3


def test_in_step_what_is_told_during_a_survey_waits_for_its_end():
    """Tried: derivatives between a mark and the last of its table. Whoever had more of the table made another step."""
    weights = []
    for late in (False, True):
        here = at_zero(in_step=True)
        total(here, 0)
        table = np.random.default_rng(3).normal(size=ROWS)
        words = [Mark(0, 1, 0, 0), announced(here, table), TablePart(0, 1, 0, table), Certified(0, 1, 0.1, 0.1, 0.1, 1)]
        words.insert(3 if late else 1, Backward(0, 0, derivatives(here, 0), 0, -1, 0))
        for body in words[:-1]:
            says(here.bo, body)
        assert here.bo.resting and not here.bo.block.weights().any(), "nothing moves before the certificate"
        says(here.bo, words[-1])
        assert not here.bo.resting
        weights.append(here.bo.block.weights())
    assert weights[0].any() and np.array_equal(*weights)


class Telling:
    """Eve says whatever a label holder may, in any order: questions, derivatives of those that were asked, surveys."""

    def __init__(self, here, rng):
        self.here, self.rng, self.number, self.survey, self.due = here, rng, -1, 0, []
        self.table = rng.normal(size=ROWS)

    def says(self):
        kind = self.rng.integers(4)
        if self.due and (kind == 0 or isinstance(self.due[0], TablePart)):  # who asks before it is refused
            return self.due.pop(0)
        if not self.due and kind == 1 and self.survey < 3:
            self.survey += 1
            number, moves = self.survey, self.survey - 1
            digests = self.here.ana.party.survey.tables.digests(np.atleast_2d(self.table), None)
            self.due = [
                ask(SURVEY, number, 0, ROWS),
                Leap(0, number, self.rng.normal(size=moves) * 0.1, 1.0, digests),
                TablePart(0, number, 0, self.table),
                Certified(0, number, 0.1, 0.1, 0.1, number),
            ]
            return Mark(0, number, number - 1, 0)
        answered = sorted(self.here.ana.answered.get("eve", ()))
        if kind == 2 and answered:
            number = int(self.rng.choice(answered))
            start, stop = self.here.schedule.block(number)
            return Backward(0, number, self.rng.normal(size=stop - start), 0, self._next(), int(self.rng.integers(8)))
        return ask(first=self._next())

    def _next(self):
        self.number += 1
        return self.number


def can_hear(party, body):
    """What is said too early is refused, and the run ends."""
    if isinstance(body, Backward):
        return body.number in party.answered.get("eve", {})
    if isinstance(body, Leap | Certified):
        return not party.party.survey.tables.working and not party.party.survey.marked
    return True


def test_in_step_every_answer_follows_from_what_was_told_however_busy_a_party_is():
    """The same words to one who does everything at once and to one whose work ends at any time: the same answers."""
    compared = surveys = 0
    for seed in range(30):
        rng, work, given = np.random.default_rng(seed), [], {}
        idle, busy = (at_zero(in_step=True) for _ in range(2))
        telling = Telling(idle, rng)

        def note(effects, which, given=given):
            for effect in effects:
                if isinstance(effect, Send) and isinstance(effect.body, ShareGiven):
                    key = (effect.body.kind, effect.body.survey, effect.body.first)
                    given.setdefault(key, {})[which] = effect.body.words.tobytes()
            return [effect for effect in effects if isinstance(effect, Compute)]

        for _ in range(60):
            body = telling.says()
            now = note(idle.ana.handle(Received("eve", body)), "idle")
            while now:
                now = note(idle.ana.handle(Computed(now[0].ticket)), "idle") + now[1:]
            while not can_hear(busy.ana, body):
                work += note(busy.ana.handle(Computed(work.pop(0).ticket)), "busy")
            work += note(busy.ana.handle(Received("eve", body)), "busy")
            while work and rng.random() < 0.3:
                work += note(busy.ana.handle(Computed(work.pop(0).ticket)), "busy")
        while work:
            work += note(busy.ana.handle(Computed(work.pop(0).ticket)), "busy")
        assert all(len(words) == 2 and words["idle"] == words["busy"] for words in given.values()), seed
        assert np.array_equal(idle.ana.block.weights(), busy.ana.block.weights()) and idle.ana.block.weights().any()
        compared, surveys = compared + len(given), surveys + telling.survey
    assert compared > 600 and surveys > 30, (compared, surveys)


def test_in_rounds_a_mark_waits_for_the_step_and_nothing_is_told_during_a_survey():
    """Tried: derivatives and a mark right behind them; whoever was busy froze the block as it had been before."""
    here = at_zero(synchronous=True)
    total(here, 0)
    body = Backward(0, 0, derivatives(here, 0), 0, -1, 0)
    says(here.ana, body)
    here.ana.handle(Received("eve", Mark(0, 1, 0, 0)))
    begun = here.bo.handle(Received("eve", body))
    here.bo.handle(Received("eve", Mark(0, 1, 0, 0)))
    assert here.ana.party.survey.frozen is not None and here.bo.party.survey.frozen is None
    _worked(here.bo, begun)
    assert here.bo.party.survey.frozen.any(), "after the step"
    for party in (here.ana, here.bo):
        told(party, ask(first=1))
        refused(party, Backward(0, 1, derivatives(here, 1), 0, -1, 0), match="derivatives of round 1")


# -- what still works --------------------------------------------------------------------------------------------------


def test_a_party_that_is_hurried_misses_what_the_other_takes():
    """Bo drops what he has no time for, and stays where he is: he misses the one derivative that moves Ana."""
    here = hurried(at_zero())
    assert here.bo.dropped == 1 and not here.bo.block.weights().any()
    rows = here.schedule.block(5)
    assert np.abs(decoded(total(here, 5)) - share_of(here, "ana", *rows)).max() < 2.0**-38


def test_a_party_that_is_not_waited_for_shows_what_the_other_has_moved():
    """Both are told the same, and that Bo is slow."""
    here = at_zero()
    body = told_zeros_first(here)
    words = [says(here.parties[name], body)[0] for name in BOTH]
    share = share_of(here, "ana", *here.schedule.block(2))
    assert np.abs(share).max() > 0.1 and np.abs(decoded(words[0] + words[1]) - share).max() < 2.0**-38


def test_who_moves_alone_while_the_others_are_late_is_seen_in_two_surveys():
    """Bo is late, and rests: the totals of two surveys differ by the products of Ana's move with her rows alone. Where
    Bo is slow, an honest chair gets them too. Where organisations train, nobody is late."""
    here = world(begin=Begin(0, 0.1, 64, 1.0, 1.0, 1.0))
    here.bo.block.set_weights(np.ones((1, WIDTH + 1)))
    digests = here.ana.party.survey.tables.digests(np.ones((1, ROWS)), None)
    totals, shares = [], []
    for survey in (2, 3):
        for name in BOTH:
            here.parties[name].party.survey.current = survey - 1
            says(here.parties[name], Mark(0, survey, 0, 0b100, survey == 2))
        words = [says(here.parties[name], ask(SURVEY, survey, 0, ROWS))[0] for name in BOTH]
        totals.append(decoded(words[0] + words[1]))
        shares.append(here.ana.party.survey.shares)
        for name in BOTH:
            says(here.parties[name], Leap(0, survey, np.zeros(survey - 2), 1.0, digests))
        says(here.ana, TablePart(0, survey, 0, np.ones(ROWS)))
        for name in BOTH:
            says(here.parties[name], GoOn(0, survey))
    moved = shares[1] - shares[0]
    assert np.abs(moved).max() > 0.01 and np.abs(totals[1] - totals[0] - moved).max() < 2.0**-38


def test_who_alone_is_late_is_seen_when_its_table_is_done():
    """In one place. Ana and Cy make the same step twice, Bo his own behind them: what is left of three surveys' totals
    is his move. Organisations of four allowed this, since three of them were not late."""
    others = ("ana", "bo", "cy")
    here = world(("eve", *others), begin=Begin(0, 0.1, 64, 1.0, 1.0, 1.0))
    table = np.full((1, ROWS), 0.5)
    digests, totals, shares, busy = here.ana.party.survey.tables.digests(table, None), [], [], []
    for survey in (2, 3, 4):
        for name in others:
            here.parties[name].party.survey.current = survey - 1
            says(here.parties[name], Mark(0, survey, 0, 0b100, survey == 2))
        words = [says(here.parties[name], ask(SURVEY, survey, 0, ROWS))[0] for name in others]
        totals.append(decoded(words[0] + words[1] + words[2]))
        shares.append(here.bo.party.survey.shares)
        for name in others:
            says(here.parties[name], Leap(0, survey, np.zeros(survey - 2), 1.0, digests))
            if name != "bo":
                says(here.parties[name], TablePart(0, survey, 0, table[0]))
            elif survey == 2:
                busy = here.bo.handle(Received("eve", TablePart(0, 2, 0, table[0])))
            says(here.parties[name], GoOn(0, survey))
        while survey == 3 and busy:
            busy = _worked(here.bo, busy)
    moved = shares[2] - shares[1]
    assert not (shares[1] - shares[0]).any() and np.abs(moved).max() > 0.1
    assert np.abs(totals[2] - 2 * totals[1] + totals[0] - moved).max() < 0.01 * np.abs(moved).max()


def test_two_label_holders_together_keep_a_party_where_it_is():
    """Eve lies to Bo, and Flo asks. Answers are bound to what the asker told, and Flo told both the same: nothing."""
    here = world(("eve", "flo", "ana", "bo"), labels_at=("eve", "flo"))
    for name in BOTH:
        here.parties[name].block.set_weights(np.zeros((1, WIDTH + 1)))
    for number in range(4):
        total(here, number)
        start, stop = here.bo.rows_asked("eve", number)
        truth = np.random.default_rng(number).normal(size=stop - start)
        for name, theta in (("ana", truth), ("bo", np.zeros_like(truth))):
            says(here.parties[name], Backward(0, number, theta, 0, -1, 0))
    asked = {name: says(here.parties[name], ask(first=0), "flo")[0] for name in BOTH}
    start, stop = here.bo.rows_asked("flo", 0)
    eve = here.parties["eve"].party.sums  # what the masks with her leave is hers to take away
    told(here.parties["eve"], ask(first=0), "flo")
    eve.stride = here.bo.party.sums.stride
    words = asked["ana"] + asked["bo"] + eve.mask("flo", PRODUCTS, 0, 0, 1, stop - start)
    share = share_of(here, "ana", start, stop)
    assert np.abs(share).max() > 0.1 and np.abs(decoded(words) - share).max() < 2.0**-38


def after_a_round_of_eve(here, lie):
    """Eve's round, with zeros for Bo where she lies; then Flo's question, and what both of them can take away of it."""
    for name in BOTH:
        here.parties[name].block.set_weights(np.zeros((1, WIDTH + 1)))
    total(here, 0)
    truth = derivatives(here, 0)
    for name, theta in (("ana", truth), ("bo", truth * (not lie))):
        says(here.parties[name], Backward(0, 0, theta, 0, -1, 0))
    start, stop = here.schedule.block(1)
    words = sum(says(here.parties[name], ask(first=1), "flo")[0] for name in BOTH)
    eve = here.parties["eve"].party.sums
    eve.stride, eve.told.in_turn = here.bo.party.sums.stride, here.ana.party.sums.told.in_turn
    return decoded(words + eve.mask("flo", PRODUCTS, 0, 1, 1, stop - start)), (start, stop)


def test_in_turn_two_label_holders_together_see_noise():
    """Before: in rounds, too, answers were bound to what the asker alone had told: Flo read Ana's share, exactly."""
    world_of = lambda: world(("eve", "flo", "ana", "bo"), labels_at=("eve", "flo"), synchronous=True)  # noqa: E731
    honest = world_of()
    found, rows = after_a_round_of_eve(honest, lie=False)
    assert np.abs(found - share_of(honest, "ana", *rows) - share_of(honest, "bo", *rows)).max() < 2.0**-38
    found, _ = after_a_round_of_eve(world_of(), lie=True)
    assert is_noise((found * 2.0**40).astype(np.int64).view(np.uint64))


def test_in_turn_a_model_is_bound_to_what_all_label_holders_told():
    """Eve lies in her round, the chair tells all the same: what a prediction adds to its masks differs."""
    heard = {}
    for name, theta in (("ana", np.ones(3)), ("bo", np.zeros(3))):
        told_to = heard[name] = Told()
        told_to.hear("flo", Backward(0, 0, theta, 0, -1, 0), in_turn=True)
        told_to.hear("eve", Mark(0, 1, 0, 0))
        told_to.mark("eve", 1, 0)
        told_to.hear("eve", Certified(0, 1, 0.5, 0.1, 0.1, 1))
        told_to.name_best("eve", 1)
    kept = heard["ana"].snapshot()
    again = Told()
    again.restore(kept)
    for one in (*heard.values(), again):
        one.end("eve", 1)
    assert heard["ana"].last == again.last != heard["bo"].last


def test_a_worker_that_gives_wrong_shares_keeps_another_where_it_is():
    """AFSGD-VP: every worker asks for itself. Eve knows the labels; her share makes Bo's derivatives nothing."""
    here = world(labels_at=("eve", "ana", "bo"), method=afsgd_vp)
    here.bo.block.set_weights(np.zeros((1, WIDTH + 1)))
    start, stop = here.schedule.block(0)
    labels = here.bo.party.problem.labels[start:stop]
    (ana,) = told(here.ana, ask(first=0), "bo")
    sums = here.parties["eve"].party.sums
    sums.stride = 64
    eve = sums.mask("bo", PRODUCTS, 0, 0, 1, stop - start) + np.rint(60.0 * labels * 2.0**40).astype(np.int64).view(
        np.uint64
    )
    for name in ("ana", "eve"):
        told(here.bo, ask(first=0), name)
    for name, words in (("ana", ana), ("eve", eve)):
        says(here.bo, ShareGiven(0, PRODUCTS, 0, 0, words, 1, 0.0), name)
    assert here.bo.taken == 1 and np.abs(here.bo.block.weights()).max() < 1e-20


def test_the_tree_of_masks_is_bound_to_nothing_told():
    """`two-tree` adds every party's own masks: they vanish from the total whatever was told."""
    here = world(("eve", "ana", "bo", "cy"), scheme="two-tree")
    for name in ("ana", "bo", "cy"):
        here.parties[name].block.set_weights(np.zeros((1, WIDTH + 1)))
    through_trees(here, 0)
    truth = derivatives(here, 0)
    for name in ("ana", "bo", "cy"):
        says(here.parties[name], Backward(0, 0, truth * (name == "ana"), 0, -1, 0))
    rows = here.schedule.block(1)
    assert np.abs(decoded(through_trees(here, 1)) - share_of(here, "ana", *rows)).max() < 2.0**-38


def through_trees(here, number):
    """What reaches Eve when the others pass their sums on: masked shares by one tree, less the masks by the other."""
    queue = [(name, "eve", ask(first=number)) for name in ("ana", "bo", "cy")]
    words = []
    while queue:
        to, sender, body = queue.pop(0)
        for effect in here.parties[to].handle(Received(sender, body)):
            if effect.to == "eve":
                words.append(effect.body.words if effect.body.tree == 0 else -effect.body.words)
            else:
                queue.append((effect.to, to, effect.body))
    return sum(words[1:], words[0])
