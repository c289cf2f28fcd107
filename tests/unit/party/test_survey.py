"""A survey: the table, the gradient and the certificate of one frozen point, whatever the cut and the arrivals."""

import numpy as np
import pytest

from offbeat.errors import UnexpectedEvent
from offbeat.learning import central
from offbeat.learning.losses import LOGISTIC, SQUARED
from offbeat.learning.penalties import L2, NONCONVEX
from offbeat.message.codec import decode_state, encode_state
from offbeat.party import survey as surveys
from offbeat.party.contract import Broadcast, Compute, Computed, Observe, Received, Started, Woken
from offbeat.party.masked_sum import ShareAsked, SumOptions
from offbeat.party.member import LinearOptions
from offbeat.party.survey import EPOCH_STRIDE, Certified, Go, Mark, Marked, Ready, Table, TableWanted
from offbeat.testing.small_problem import SmallProblem, build_parties, draw_problem


class Room:
    """Parties that survey and do nothing else: requests for products at the current point are dropped."""

    def __init__(self, problem, method="vfb2-saga", **options):
        self.problem = problem
        self.options = LinearOptions(method=method.split("-")[-1], batch=16, **options)
        self.method = method
        self.parties = {party.name: party for party in build_parties(method, problem, self.options, 1)}
        self.queue, self.seen = [(name, Started()) for name in self.parties], []
        self.settle()

    @property
    def chair(self):
        return next(party.member for party in self.parties.values() if party.member.conduct.presides)

    def member(self, name):
        return self.parties[name].member

    def post(self, name, effects):
        for effect in effects:
            if isinstance(effect, Compute):
                self.queue.append((name, Computed(effect.ticket)))
            elif isinstance(effect, Observe):
                self.seen.append((effect.name, effect.value))
            elif hasattr(effect, "body") and getattr(effect.body, "point", 0) != -1:
                to = effect.to if isinstance(effect, Broadcast) else (effect.to,)
                self.queue += [(peer, Received(name, effect.body)) for peer in to]

    def settle(self, rng=None, lose=0.0, keep=lambda event: True):
        while self.queue:
            name, event = self.queue.pop(0 if rng is None else int(rng.integers(len(self.queue))))
            lost = isinstance(event, Received) and (not keep(event) or (lose and rng.random() < lose))
            if not lost:
                self.post(name, self.parties[name].handle(event))

    def move(self, name, rng):
        member = self.member(name)
        member.block.set_weights(rng.standard_normal(member.block.width))

    def frozen(self, number):
        return self.problem.pooled({name: self.member(name).shares.points[number] for name in self.parties})


@pytest.mark.parametrize("loss", [LOGISTIC, SQUARED], ids=lambda loss: loss.name)
@pytest.mark.parametrize("penalty", [L2, NONCONVEX], ids=lambda penalty: penalty.name)
@pytest.mark.parametrize("chunk", [7, 1024])
def test_mixed_cuts_give_the_table_the_gradient_and_the_certificate_of_the_frozen_point(
    loss, penalty, chunk, monkeypatch
):
    monkeypatch.setattr(surveys, "CHUNK_ROWS", chunk)
    drawn = draw_problem(4, parties=4, rows=90, sparse=False, loss=loss)
    problem = SmallProblem(drawn.X, drawn.y, loss, 0.02, drawn.columns, penalty, labels_at=("party0", "party2"))
    room, rng = Room(problem), np.random.default_rng(1)
    for name in room.parties:
        room.move(name, rng)
    room.post("party0", room.chair.survey.begin())
    while room.queue:  # a block moves whenever something arrives anywhere: no two freeze at one instant
        name, event = room.queue.pop(int(rng.integers(len(room.queue))))
        room.post(name, room.parties[name].handle(event))
        room.move(str(rng.choice(list(room.parties))), rng)
    w, number = room.frozen(0), 0
    theta = loss.derivative(problem.X @ w, problem.y)
    gradient = central.gradient(problem.X, problem.y, w, loss, penalty, 0.02)
    for name, columns in problem.columns.items():
        survey = room.member(name).survey
        assert survey.complete and survey.current == number
        assert np.abs(survey.table - theta).max() < 1e-9
        assert np.abs(survey.gradient - problem.X[:, columns].T @ theta / 90).max() < 1e-9
    (certified,) = [value for name, value in room.seen if name == "certificate"]
    assert certified["objective"] == pytest.approx(problem.objective(w), abs=1e-9)
    assert certified["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), abs=1e-9)
    if penalty is L2:
        assert certified["gap"] == pytest.approx(gradient @ gradient / 0.04, abs=1e-8)
        assert certified["gap"] >= problem.objective(w) - central.optimum(problem.X, problem.y, loss, 0.02)[1]
    else:
        assert np.isnan(certified["gap"])


def test_a_tiny_gradient_keeps_its_digits():
    """Scalars travel as two words: a squared norm far below the fixed-point grid is still summed to many digits."""
    problem = draw_problem(6, parties=3, rows=80, sparse=False, loss=LOGISTIC)
    room = Room(problem)
    best, _ = central.optimum(problem.X, problem.y, LOGISTIC, problem.strength, tolerance=1e-12)
    near = best + 1e-9
    for name, columns in problem.columns.items():
        room.member(name).block.set_weights(near[columns])
    room.post("party0", room.chair.survey.begin())
    room.settle()
    gradient = central.gradient(problem.X, problem.y, near, LOGISTIC, L2, problem.strength)
    (certified,) = [value for name, value in room.seen if name == "certificate"]
    assert certified["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-2)
    assert certified["gap"] < 1e-14


@pytest.mark.parametrize("seed", range(6))
def test_what_is_lost_is_asked_for_again(seed, monkeypatch):
    monkeypatch.setattr(surveys, "CHUNK_ROWS", 16)
    problem, rng = draw_problem(4, parties=4, rows=90, loss=LOGISTIC), np.random.default_rng(seed)
    room = Room(problem)
    for name in room.parties:
        room.move(name, rng)
    room.post("party0", room.chair.survey.begin())
    room.settle(rng, lose=0.4)
    for _ in range(200):
        if room.chair.survey.history:
            break
        for name, party in room.parties.items():
            room.post(name, party.handle(Woken()))
        room.settle(rng, lose=0.4)
    assert room.chair.survey.history[0].objective == pytest.approx(problem.objective(room.frozen(0)), abs=1e-9)


def test_the_objective_does_not_depend_on_the_order_of_arrival(monkeypatch):
    monkeypatch.setattr(surveys, "CHUNK_ROWS", 8)
    problem, objectives = draw_problem(4, parties=4, rows=90, loss=LOGISTIC), set()
    for seed in range(4):
        room, rng = Room(problem), np.random.default_rng(0)
        for name in room.parties:
            room.move(name, rng)
        room.post("party0", room.chair.survey.begin())
        room.settle(np.random.default_rng(seed))
        certified = room.chair.survey.history[0]
        objectives.add((certified.objective, certified.gradient_norm))
    assert len(objectives) == 1


def test_svrg_starts_at_zero_without_a_sum():
    problem = draw_problem(4, parties=3, rows=90, loss=LOGISTIC)
    room = Room(problem, "vfb2-svrg")
    assert {value["snapshot"] for name, value in room.seen if name == "certificate"} == {0}
    asked = [ask for party in room.parties.values() for ask in party.member.sums.open.values()]
    assert all(ask.point == -1 for ask in asked)
    for name in room.parties:
        assert np.array_equal(room.member(name).survey.table, -problem.y / 2)
        assert not room.frozen(0).any()
    assert room.seen[-1][1]["objective"] == pytest.approx(np.log(2), abs=1e-12)


def test_a_mark_is_acknowledged_each_time_and_freezes_once():
    room = Room(draw_problem(4, parties=3, rows=90))
    survey = room.member("party2").survey
    assert [e.body for e in survey.on_mark("party0", Mark(0, -1))] == [Marked(0)]
    frozen = survey.shares.points[0]
    room.move("party2", np.random.default_rng(0))
    assert [e.body for e in survey.on_mark("party0", Mark(0, -1))] == [Marked(0)]
    assert survey.shares.points[0] is frozen
    assert survey.on_mark("party0", Mark(-1, -1)) == []


def test_marks_of_another_roster_are_left_alone():
    room = Room(draw_problem(4, parties=4, rows=90))
    survey = room.member("party2").survey
    assert survey.on_mark("party0", Mark(EPOCH_STRIDE, -1)) == []
    survey.enter_epoch(1, ("party0", "party1", "party2"), "party0")
    assert survey.on_mark("party0", Mark(0, -1)) == []
    assert [e.body for e in survey.on_mark("party0", Mark(EPOCH_STRIDE, -1))] == [Marked(EPOCH_STRIDE)]


def test_tables_of_a_survey_that_was_given_up_are_left_alone():
    room = Room(draw_problem(4, parties=4, rows=90))
    survey = room.member("party2").survey
    survey.on_mark("party0", Mark(0, -1))
    survey.enter_epoch(1, ("party0", "party1", "party2"), "party0")
    survey.on_mark("party0", Mark(EPOCH_STRIDE, -1))
    assert survey.on_table("party0", Table(0, 0, np.ones(90), 1.0)) == []
    assert not survey.table.any()


def test_a_table_of_another_shape_is_a_typed_error():
    survey = Room(draw_problem(4, parties=3, rows=90)).member("party2").survey
    survey.on_mark("party0", Mark(0, -1))
    start = min(survey.chunks)
    for derivatives in (np.ones(1), np.ones((90, 1)), np.ones(90, np.float32)):
        with pytest.raises(UnexpectedEvent):
            survey.on_table("party0", Table(0, start, derivatives, 1.0))


def test_doubled_messages_change_nothing():
    problem = draw_problem(4, parties=3, rows=90, loss=LOGISTIC)
    room = Room(problem)
    room.post("party0", room.chair.survey.begin())
    while room.queue:
        name, event = room.queue.pop(0)
        room.post(name, room.parties[name].handle(event))
        if isinstance(event, Received) and not isinstance(event.body, TableWanted):
            room.post(name, room.parties[name].handle(event))
    assert len(room.chair.survey.history) == 1
    theta = LOGISTIC.derivative(problem.X @ room.frozen(0), problem.y)
    for name, columns in problem.columns.items():
        gradient = problem.X[:, columns].T @ theta / 90
        assert np.abs(room.member(name).survey.gradient - gradient).max() < 1e-12


def test_the_best_snapshot_is_the_one_of_lowest_objective_and_a_new_roster_starts_anew():
    survey = Room(draw_problem(4, parties=4, rows=90)).chair.survey
    survey.current, survey.best = 3, 2
    survey.history = [Certified(2, 0.5, 1.0, 1.0, 2)]
    assert survey._is_best(0.4) and not survey._is_best(0.6)
    survey.enter_epoch(1, ("party0", "party1", "party2"), "party0")
    assert survey._is_best(0.6)


def test_a_chair_that_missed_the_certificate_of_the_best_still_judges():
    survey = Room(draw_problem(4, parties=3, rows=90)).chair.survey
    survey.current, survey.best, survey.history = 3, 2, []
    assert survey._is_best(0.6)


def test_late_acknowledgements_and_strangers_are_left_alone():
    room = Room(draw_problem(4, parties=3, rows=90))
    survey = room.chair.survey
    survey.begin()
    assert survey.on_marked("party1", Marked(5)) == []
    assert survey.on_marked("nobody", Marked(0)) == []
    assert survey.on_ready("party1", Ready(5)) == []
    assert survey.on_go("party1", Go(5)) == []
    assert survey.unmarked == {"party1", "party2"}


@pytest.mark.parametrize("after", range(0, 60, 7))
def test_a_restored_party_takes_part_as_if_nothing_had_been(after):
    problem = draw_problem(4, parties=3, rows=90, loss=LOGISTIC)
    room = Room(problem)
    room.post("party0", room.chair.survey.begin())
    for _ in range(after):
        if room.queue:
            name, event = room.queue.pop(0)
            room.post(name, room.parties[name].handle(event))
    (again,) = build_parties(room.method, problem, room.options, 1, only="party1")
    again.restore(decode_state(encode_state(room.parties["party1"].snapshot())))
    assert encode_state(again.snapshot()) == encode_state(room.parties["party1"].snapshot())
    room.parties["party1"] = again
    room.settle()
    assert room.chair.survey.history[0].objective == pytest.approx(np.log(2), abs=1e-9)


@pytest.mark.parametrize(("size", "words"), [(1.0, 4), (2e5, 6)])
@pytest.mark.parametrize("scheme", ["pairwise", "two-tree"])
def test_scalars_beyond_the_fixed_point_range_travel_as_three_words(size, words, scheme):
    drawn = draw_problem(6, parties=4, rows=80, sparse=False, loss=SQUARED)
    problem = SmallProblem(drawn.X, size * drawn.y, SQUARED, 1e-4, drawn.columns, L2)
    room = Room(problem, sums=SumOptions(scheme=scheme))
    best, _ = central.optimum(problem.X, problem.y, SQUARED, 1e-4, tolerance=1e-12 * size)
    asked = []
    for distance in (-0.5, 1e-9):
        for name, columns in problem.columns.items():
            room.member(name).block.set_weights(best[columns] * (1 + distance))
        room.post("party0", room.chair.survey.begin())
        room.settle(keep=lambda event: asked.append(words_asked(event)) or True)
        certified = room.chair.survey.history[-1]
        at = room.frozen(certified.snapshot)
        gradient = central.gradient(problem.X, problem.y, at, SQUARED, L2, 1e-4)
        assert certified.objective == pytest.approx(problem.objective(at), rel=1e-12)
        assert certified.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-2)
    assert set(asked) - {0} == {words}


def words_asked(event):
    """How many words a request for scalars asks for; 0 for anything else."""
    body = event.body
    return body.stop - body.start if isinstance(body, ShareAsked) and body.point < -2 else 0
