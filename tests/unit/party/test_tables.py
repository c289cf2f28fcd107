"""The tables of surveys: whatever the order of chunks, mu is the gradient of the block's own table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import UnexpectedEvent
from offbeat.learning.blocks import make_block
from offbeat.learning.penalties import L2
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.tables import RowsRefreshed, Tables
from offbeat.party.works import Works

ROWS, WIDTH = 23, 3
CHUNKS = {0: 7, 7: 14, 14: 20, 20: 23}
X = np.random.default_rng(0).standard_normal((ROWS, WIDTH))
POINT = np.zeros((1, WIDTH + 1))


class Desk:
    """A block, its tables and its one lane."""

    def __init__(self):
        self.block = make_block(X, penalty=L2, strength=0.1, method="svrg")
        self.works = Works(RowsRefreshed)
        self.tables = Tables(self.block, 1, self.works)
        self.tables.blank(CHUNKS)
        self.lane = []

    def expect(self, survey):
        self.tables.expect(survey, POINT, self.tables.digests(derivatives(survey)[None], None))

    def take(self, survey, start):
        self.lane += self.tables.take(survey, start, derivatives(survey)[start : CHUNKS[start]])

    def work(self):
        """The lane's oldest work is done."""
        if self.lane:
            assert self.tables.done(self.works.end(self.lane.pop(0).ticket))
            self.lane += self.tables.work()

    def check(self):
        """mu = X^T table / n, always; the means are not centred, so the constant's part is the mean."""
        mean, table = self.block.mean_gradient()[0], self.block.table[0]
        assert np.allclose(mean[:-1], X.T @ table / ROWS, atol=1e-15)
        assert mean[-1] == pytest.approx(table.mean(), abs=1e-15)


def derivatives(survey):
    return np.random.default_rng(survey).standard_normal(ROWS)


@pytest.mark.parametrize("order", [[0, 7, 14, 20], [20, 0, 14, 7]])
def test_a_whole_table_gives_the_whole_gradient(order):
    desk = Desk()
    desk.expect(1)
    for start in order:
        assert desk.tables.working
        desk.take(1, start)
        desk.work()
        desk.check()
    assert not desk.tables.working
    assert np.array_equal(desk.block.table[0], derivatives(1))


def test_a_chunk_is_what_was_announced_or_is_refused():
    desk = Desk()
    desk.expect(1)
    for start, stop in CHUNKS.items():
        desk.tables.check("ana", start, derivatives(1)[start:stop])
        for other in (np.zeros(stop - start), derivatives(1)[start:stop] + 1e-300, derivatives(2)[start:stop]):
            same = np.array_equal(other, derivatives(1)[start:stop])
            if not same:
                with pytest.raises(UnexpectedEvent, match=f"ana sent another table from row {start}"):
                    desk.tables.check("ana", start, other)


def test_curvatures_are_part_of_what_was_announced():
    desk = Desk()
    second = np.random.default_rng(5).random((1, ROWS))
    desk.tables.expect(1, POINT, desk.tables.digests(derivatives(1)[None], second))
    for start, stop in CHUNKS.items():
        with pytest.raises(UnexpectedEvent, match="another table"):
            desk.tables.check("ana", start, derivatives(1)[start:stop])
        desk.tables.take_second(start, second[:, start:stop])
        desk.tables.check("ana", start, derivatives(1)[start:stop])


def test_one_chunk_at_a_time():
    desk = Desk()
    desk.expect(1)
    for start in CHUNKS:
        desk.take(1, start)
    assert len(desk.lane) == 1 and desk.works.count[RowsRefreshed] == 1


def test_work_of_a_table_that_was_given_up_changes_nothing():
    desk = Desk()
    desk.expect(1)
    desk.take(1, 0)
    desk.tables.blank({0: 12, 12: 23})
    assert not desk.tables.done(RowsRefreshed(1, 0))
    assert not desk.block.table.any()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["take", "take", "take", "work", "next", "crash"]), max_size=60), st.randoms())
def test_in_any_order_mu_belongs_to_the_table(moves, random):
    desk, survey, left = Desk(), 1, list(CHUNKS)
    desk.expect(survey)
    for move in moves:
        if move == "take" and left:
            desk.take(survey, left.pop(random.randrange(len(left))))
        elif move == "work":
            desk.work()
        elif move == "next" and not desk.tables.working:
            assert np.array_equal(desk.block.table[0], derivatives(survey))
            survey, left = survey + 1, list(CHUNKS)
            desk.expect(survey)
        elif move == "crash":
            state = decode_state(encode_state(desk.tables.snapshot()))
            desk.tables.blank(CHUNKS)
            desk.tables.restore(state)
        desk.check()


def test_a_snapshot_does_not_change_with_what_arrives_later():
    desk = Desk()
    desk.expect(1)
    desk.take(1, 0)
    before = desk.tables.snapshot()
    frame = encode_state(before)
    desk.take(1, 7)
    assert encode_state(before) == frame


def test_a_chunk_is_judged_by_what_it_holds_though_the_array_before_was_right():
    desk = Desk()
    desk.expect(1)
    right = derivatives(1)[:7]
    desk.tables.check("a", 0, right)
    desk.tables.check("a", 0, right)  # the same array once more, as the next party of this process is given it
    with pytest.raises(UnexpectedEvent, match="another table"):
        desk.tables.check("a", 7, right)
    with pytest.raises(UnexpectedEvent, match="another table"):
        desk.tables.check("a", 0, right + 1.0)
