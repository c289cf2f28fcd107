"""An asker that wants one row more often than its owner allows: whatever it tries, the ledger has counted before."""

import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from asker import BEGIN, ROWS, ask, probe, world

from offbeat.algorithms import afsgd_vp
from offbeat.errors import Refused, UnexpectedEvent
from offbeat.learning.losses import LOGISTIC, softmax
from offbeat.orgs.guards import Guarded, WatchedRows
from offbeat.orgs.row_ledger import Reservation, RowLedger
from offbeat.orgs.scoring import TableScores
from offbeat.party.contract import Broadcast, Compute, Computed, Finish, Received, Send
from offbeat.party.lifecycle import Ready
from offbeat.party.masked_sum import PRODUCTS, SURVEY, ShareGiven
from offbeat.party.survey_messages import Mark

IDS = [f"c{row}" for row in range(ROWS)]
CAP = 20  # probes alone are 16 numbers of a row


def guarded(folder: Path, name: str = "ana", *, cap: int = CAP, what: str = "run", begin=BEGIN):
    """Ana behind her guard, with her ledger on the disk."""
    here = world(begin=None, method=afsgd_vp)
    tokens = [row.to_bytes(16, "big") for row in range(ROWS)]
    reserve = Reservation(RowLedger(folder), IDS, what=what, asker="eve", cap=cap)
    party = Guarded(here.parties[name], WatchedRows(name, tokens, reserve=reserve, cap=cap))
    if begin is not None:
        party.handle(Received("eve", begin))
    return SimpleNamespace(party=party, schedule=here.schedule, reserve=reserve)


def shares(effects):
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.body, ShareGiven)]


def asked_for_ever(here, passes=500):
    """Eve asks for one block of rows after another; how often each row is answered, and how it ends."""
    for number in range(passes * here.schedule.blocks_a_pass):
        effects = here.party.handle(Received("eve", ask(first=number)))
        if not shares(effects):
            return number / here.schedule.blocks_a_pass, next(e for e in effects if isinstance(e, Finish))
    return passes, None


def test_a_row_is_answered_no_more_often_than_its_cap(tmp_path):
    """Before: 500 answers at a cap of 3, counted 0."""
    here = guarded(tmp_path)
    got, end = asked_for_ever(here)
    assert got == CAP and end.verdict == "row-cap" and "'eve' asked for one more" in end.reason
    assert RowLedger(tmp_path).counts(IDS).tolist() == [CAP] * ROWS


def test_probes_are_numbers_of_rows_like_any_others(tmp_path):
    """Before: 50 probes of every row at a cap of 3, counted 0."""
    few = guarded(tmp_path / "few", cap=15, begin=None)
    *_, end = few.party.handle(Received("eve", probe(few.party.inner)))
    assert isinstance(end, Finish) and end.verdict == "row-cap"
    enough = guarded(tmp_path / "enough", cap=17, begin=None)
    assert shares(enough.party.handle(Received("eve", probe(enough.party.inner))))
    assert RowLedger(tmp_path / "enough").counts(IDS).min() >= 16


def test_a_run_that_fails_has_used_its_rows(tmp_path):
    """Before: a run that ended by an error never wrote its counts."""
    here = guarded(tmp_path)
    for number in range(4):
        assert shares(here.party.handle(Received("eve", ask(PRODUCTS, 0, number))))
    with pytest.raises(UnexpectedEvent):
        here.party.handle(Received("eve", ask(PRODUCTS, 0, 0)))
    assert RowLedger(tmp_path).counts(IDS).min() >= 1, "reserved, though nobody has settled it"
    here.reserve.settle(here.party.rows.asked)
    assert RowLedger(tmp_path).counts(IDS).sum() == sum(np.diff(here.schedule.block(k))[0] for k in range(4))


def test_a_party_killed_between_two_answers_does_not_forget_the_first(tmp_path):
    """kill -9 and start again, as another run: what the first one reserved is not there for the second."""
    assert asked_for_ever(guarded(tmp_path), passes=7)[0] == 7
    reserved = int(RowLedger(tmp_path).counts(IDS).max())
    got, end = asked_for_ever(guarded(tmp_path, what="next"))
    assert reserved >= 7 and got == CAP - reserved and end.verdict == "row-cap"


def test_runs_side_by_side_share_one_cap(tmp_path):
    """Before: eight runs at once each saw the counts of before, and each used the whole cap."""
    barrier = threading.Barrier(8)

    def one(number):
        here = guarded(tmp_path, what=f"run-{number}")
        barrier.wait(30)
        return asked_for_ever(here)[0]

    with ThreadPoolExecutor(8) as eve:
        got = list(eve.map(one, range(8)))
    assert sum(got) <= CAP and RowLedger(tmp_path).counts(IDS).max() <= CAP


def test_derivatives_tell_of_the_label_holders_own_rows_and_are_counted(tmp_path):
    """Tried: a label holder answers no sums, so its cap was never reached, though its share is in every derivative."""
    here = world(begin=None)
    bodies = []
    tokens = [row.to_bytes(16, "big") for row in range(ROWS)]
    reserve = Reservation(RowLedger(tmp_path), IDS, what="run", asker="eve", cap=0)
    eve = Guarded(here.parties["eve"], WatchedRows("eve", tokens, reserve=reserve))
    queue = [("eve", Received(name, body)) for name, body in ready(here)]
    while queue and len(bodies) < 5:
        to, event = queue.pop(0)
        party = eve if to == "eve" else here.parties[to]
        for effect in party.handle(event):
            if isinstance(effect, Send | Broadcast):
                bodies += [effect.body] if to == "eve" and type(effect.body).__name__ == "TablePart" else []
                names = (effect.to,) if isinstance(effect, Send) else effect.to
                queue += [(name, Received(to, effect.body)) for name in names]
            elif isinstance(effect, Compute):
                queue.append((to, Computed(effect.ticket, effect.job() if effect.job else None)))
    told = sum(len(body.derivatives) for body in bodies)
    assert told > 0 and eve.rows.asked.sum() >= told and RowLedger(tmp_path).counts(IDS).min() > 0


def ready(here):
    return [(name, Ready()) for name in ("ana", "bo")]


# -- predictions -------------------------------------------------------------------------------------------------------


class Kept:
    """A table of four rows; the run's parties share the first three."""

    table = SimpleNamespace(ids=np.array(["a", "b", "c", "d"]))

    def rows_of(self, tokens, salt):
        return np.array([int(token[0]) if token[0] < 4 else -1 for token in tokens])


def scorer(folder, cap, name="predict-0", loss=LOGISTIC):
    policy = SimpleNamespace(row_cap=cap)
    home = SimpleNamespace(name="shop", config=SimpleNamespace(policy=policy, data=SimpleNamespace(shape=())))
    job = SimpleNamespace(embedding=SimpleNamespace(epsilon=None), embeds=False, loss=loss)
    aligned = {"tokens": [bytes([row]) * 16 for row in range(3)]}
    own = SimpleNamespace(salt=b"", given=None, kept=lambda name: aligned)
    model = SimpleNamespace(
        network=None, weights=np.ones(2), block=lambda table, rows: rows, products=lambda rows: 1.0 * rows
    )
    if loss.outputs > 1:
        model.weights, model.products = np.ones((loss.outputs, 2)), lambda rows: np.ones((len(rows), loss.outputs))
    run = SimpleNamespace(run="joint", job=job, own=own)
    return TableScores(home, run, Kept(), model, RowLedger(folder), what=name, asker="eve")


def test_a_prediction_whose_name_comes_twice_is_counted_twice(tmp_path):
    """Tried: a prediction's name is the asker's choice, and a name that was noted cost nothing the second time."""
    for asked in range(3):
        scorer(tmp_path, cap=3).scores([bytes([1]) * 16])
        assert RowLedger(tmp_path).counts(["b"]).tolist() == [asked + 1]
    with pytest.raises(Refused, match="'shop' lets a row enter at most 3 sums"):
        scorer(tmp_path, cap=3).scores([bytes([1]) * 16])


def test_the_same_question_under_a_second_roster_is_a_second_sum(tmp_path):
    """Tried: leave a party out after the first answer; the second sum of the same rows was free."""
    one = scorer(tmp_path, cap=2)
    one.scores([bytes([1]) * 16])
    one.scores([bytes([1]) * 16])
    with pytest.raises(Refused):
        one.scores([bytes([1]) * 16])


def test_a_row_named_twice_in_one_question_counts_twice(tmp_path):
    scorer(tmp_path, cap=9).scores([bytes([1]) * 16, bytes([2]) * 16, bytes([1]) * 16])
    assert RowLedger(tmp_path).counts(["a", "b", "c"]).tolist() == [0, 2, 1]


def test_the_scores_of_all_classes_are_as_many_numbers_of_a_row(tmp_path):
    scores, known = scorer(tmp_path, cap=3, loss=softmax(3)).scores([bytes([1]) * 16])
    assert scores.shape == (1, 3) and known.all() and RowLedger(tmp_path).counts(["b"]).tolist() == [3]
    with pytest.raises(Refused):
        scorer(tmp_path, cap=3, loss=softmax(3)).scores([bytes([1]) * 16])


def test_a_cap_does_not_tell_who_has_a_row_that_not_all_have(tmp_path):
    """Before: a guessed id, more often than the cap in one question to one party, was refused if the party has it and
    answered if not, uncounted; the refusal also said how many of a list of ids it has."""
    here, lacking, common = bytes([3]) * 16, bytes([9]) * 16, bytes([1]) * 16
    for question in ([here] * 4, [lacking] * 4, [here, lacking] * 2):
        known = scorer(tmp_path, cap=3).scores(question)[1]
        assert known.tolist() == [token == here and question.count(here) <= 3 for token in question]
    assert not scorer(tmp_path, cap=3).scores([here] * 2)[1].any(), "two of its three sums are used"
    assert RowLedger(tmp_path).counts(["d"]).tolist() == [2]
    for others in ([], [here], [here, lacking]):
        with pytest.raises(Refused, match=r"at most 3 sums \(row_cap\); 1 of the rows would pass that\.$"):
            scorer(tmp_path, cap=3).scores([common] * 4 + others)


def test_two_predictions_at_once_share_one_cap(tmp_path):
    """Tried: both look at the counts before either has written."""
    ledger = RowLedger(tmp_path)

    def one(number):
        try:
            ledger.use(["b"], np.ones(1, np.int64), what=f"p{number}", asker="eve", who="shop", cap=5)
        except Refused:
            return 0
        return 1

    with ThreadPoolExecutor(8) as eve:
        assert sum(eve.map(one, range(40))) == 5


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_small_question_in_training_takes_little_memory():
    """Before: 512 MiB for one message of 40 bytes."""
    here = world()
    here.ana.handle(Received("eve", Mark(0, 1, 0, 0)))
    tracemalloc.start()
    for question in (ask(SURVEY, 1, 0, 2**25), ask(SURVEY, 1, 0, 2**40), ask(SURVEY, 1, 2**62, 1)):
        with pytest.raises(UnexpectedEvent, match="eve"):
            here.ana.handle(Received("eve", question))
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()


def test_questions_without_end_take_no_memory_of_whoever_answers(tmp_path, monkeypatch):
    """Before: the name of every question was remembered in three places, 266 bytes for each, for ever."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    ledger, one = RowLedger(tmp_path), np.ones(1, np.int64)

    def ask_often(times):
        for number in range(times):
            terms = {"what": f"credit/{number}", "asker": "eve", "who": "bo"}
            ledger.use(["b"], one, shared=lambda: np.ones(1, np.bool_), once=False, **terms)

    ask_often(100)
    tracemalloc.start()
    ask_often(1000)
    assert tracemalloc.get_traced_memory()[0] < 2**14
    tracemalloc.stop()
    assert RowLedger(tmp_path).counts(["b"]).tolist() == [1100] == [sum(line["sum"] for line in ledger.history())]


def test_a_training_that_is_taken_up_after_its_end_is_counted_again(tmp_path):
    """Tried: kill a daemon, or fill its disk, after a failed training is settled and before its folder says so. It is
    taken up at the next start, and the ledger granted whatever it asked for."""
    ids, terms = list(range(10)), {"what": "run", "asker": "eve", "cap": 6}
    ledger = RowLedger(tmp_path)
    assert ledger.reserve(ids, 3, **terms) >= 3
    ledger.settle(np.full(10, 3), what="run", asker="eve")
    for book in (ledger, RowLedger(tmp_path)):  # also after a restart
        assert book.reserve(ids, 3, **terms) == 3 and book.counts(ids).tolist() == [3] * 10, "a replay of what was"
    assert RowLedger(tmp_path).reserve(ids, 4, **terms) == 0, "3 and 4 are more than the cap of 6"
    free = {**terms, "what": "other", "cap": 0}
    ledger.reserve(ids, 2, **free)
    ledger.settle(np.full(10, 2), what="other", asker="eve")
    assert RowLedger(tmp_path).reserve(ids, 5, **free) >= 5
    assert RowLedger(tmp_path).counts(ids).min() >= 3 + 2 + 5, "nothing leaves uncounted"
