"""The tables of surveys: whatever the order of chunks, mu is the gradient of the block's own table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import UnexpectedEvent
from offbeat.learning.blocks import make_block
from offbeat.learning.penalties import L2
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.tables import PIECE_LEAST, PIECES, RowsRefreshed, Tables
from offbeat.party.works import Works

ROWS, WIDTH = 23, 3
CHUNKS = {0: 7, 7: 14, 14: 20, 20: 23}
MANY = 64 * 50
LONG_CHUNKS = {0: 1000, 1000: 2000, 2000: 3000, 3000: MANY}
X = np.random.default_rng(0).standard_normal((ROWS, WIDTH))
POINT = np.zeros((1, WIDTH + 1))


class Desk:
    """A block, its tables and its one lane."""

    def __init__(self, x=X, chunks=CHUNKS):
        self.block = make_block(x, penalty=L2, strength=0.1, method="svrg")
        self.works, self.chunks = Works(RowsRefreshed), chunks
        self.tables = Tables(self.block, 1, self.works)
        self.tables.blank(chunks)
        self.lane = []

    def expect(self, survey, late=False):
        digests = self.tables.digests(derivatives(survey, self.block.rows)[None], None)
        self.tables.expect(survey, POINT, digests, late)

    def take(self, survey, start):
        part = derivatives(survey, self.block.rows)[start : self.chunks[start]]
        self.lane += self.tables.take(survey, start, part)

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


def derivatives(survey, rows=ROWS):
    return np.random.default_rng(survey).standard_normal(rows)


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
    desk.tables.expect(1, POINT, desk.tables.digests(derivatives(1)[None], second), late=False)
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


# -- who is late -------------------------------------------------------------------------------------------------------


def late_desk(surveys=1):
    """At the beginning of a late table, after some that were waited for."""
    x = np.random.default_rng(1).standard_normal((MANY, WIDTH))
    desk = Desk(x, LONG_CHUNKS)
    for survey in range(1, surveys + 1):
        desk.expect(survey, late=survey == surveys)
        for start in LONG_CHUNKS:
            desk.take(survey, start)
        while survey < surveys and desk.lane:
            desk.work()
    return desk, x


def test_who_is_late_takes_its_table_in_pieces():
    desk, _ = late_desk()
    pieces = {start: stop for start, (stop, _) in desk.tables.pieces.items()}
    assert sorted(pieces) == [0, *sorted(pieces.values())[:-1]] and max(pieces.values()) == MANY
    assert PIECES <= len(pieces) <= PIECES + len(LONG_CHUNKS)
    assert all(chunk <= start and stop <= LONG_CHUNKS[chunk] for start, (stop, chunk) in desk.tables.pieces.items())
    while desk.lane:
        desk.work()
    assert np.array_equal(desk.block.table[0], derivatives(1, MANY)) and not desk.tables.working


def test_few_rows_are_taken_in_few_pieces():
    desk = Desk()
    desk.expect(1, late=True)
    assert ROWS < PIECE_LEAST and sorted(desk.tables.pieces) == sorted(CHUNKS)


@pytest.mark.parametrize("done", [1, 7, 30])
def test_the_gradient_so_far_is_the_old_one_and_the_change_in_the_rows_refreshed(done):
    desk, x = late_desk(surveys=2)
    for _ in range(done):
        desk.work()
    rows = np.array(
        [any(start <= row < desk.tables.pieces[start][0] for start in desk.tables.left) for row in range(MANY)]
    )
    old, new = derivatives(1, MANY), derivatives(2, MANY)
    slow = x.T @ old / MANY + x[~rows].T @ (new - old)[~rows] / (~rows).sum()
    assert np.allclose(desk.tables.gradient_so_far()[0, :-1], slow, atol=1e-14)


def test_the_gradient_so_far_is_right_on_average_and_in_the_end_exact():
    desk, x = late_desk()
    whole = x.T @ derivatives(1, MANY) / MANY
    errors = []
    while desk.tables.left:
        desk.work()
        errors.append(float(np.abs(desk.tables.gradient_so_far()[0, :-1] - whole).max()))
    assert np.mean(errors[:8]) > np.mean(errors[8:16]) > np.mean(errors[16:24]) > np.mean(errors[24:])
    assert np.array_equal(desk.tables.gradient_so_far(), desk.block.mean_gradient())


def test_a_late_table_goes_on_after_a_crash():
    desk, _ = late_desk(surveys=2)
    for _ in range(5):
        desk.work()
    other = Desk(np.random.default_rng(1).standard_normal((MANY, WIDTH)), LONG_CHUNKS)
    other.block.restore(decode_state(encode_state(desk.block.snapshot())))
    other.tables.restore(decode_state(encode_state(desk.tables.snapshot())))
    assert np.array_equal(other.tables.gradient_so_far(), desk.tables.gradient_so_far())
    assert (other.tables.pieces, other.tables.left) == (desk.tables.pieces, desk.tables.left)
