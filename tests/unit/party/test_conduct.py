"""Beginning, rosters and ending, one event at a time, with losses."""

import pytest

from offbeat.errors import BadJob, UnexpectedEvent
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.conduct import (
    TRIES_MAX,
    Alarm,
    Begin,
    Begun,
    Conduct,
    Halt,
    Halted,
    Roster,
    Rostered,
)
from offbeat.party.contract import Broadcast, Finish, Observe, Send

NAMES = ("ana", "bo", "cy", "di")


def conduct(me, on_loss="continue", active=("bo", "cy")):
    return Conduct(me=me, roster=NAMES, active=active, on_loss=on_loss)


def sent(effects):
    return [effect for effect in effects if isinstance(effect, (Send, Broadcast))]


def test_the_first_label_holder_takes_the_chair():
    assert [conduct(me).presides for me in NAMES] == [False, True, False, False]


def test_unknown_policies_are_refused():
    with pytest.raises(BadJob, match="on_loss"):
        conduct("ana", on_loss="panic")


def test_begin_is_said_until_everybody_has_heard():
    chair = conduct("bo")
    assert sent(chair.begin(0.5, 64)) == [Broadcast(("ana", "cy", "di"), Begin(0.5, 64))]
    chair.on_acknowledged("begin", "ana")
    assert chair.patrol(-1) == [Broadcast(("cy", "di"), Begin(0.5, 64))]
    chair.on_acknowledged("begin", "cy")
    chair.on_acknowledged("begin", "di")
    assert chair.patrol(-1) == []


def test_begin_is_heeded_once_and_acknowledged_each_time():
    party = conduct("ana")
    assert party.on_begin("bo", Begin(0.5, 64)) == ([Send("bo", Begun())], True)
    assert party.on_begin("bo", Begin(0.7, 32)) == ([Send("bo", Begun())], False)
    assert (party.eta, party.batch) == (0.5, 64)


# -- losing somebody -------------------------------------------------------------------------------------------------


def test_whoever_waits_gives_nothing_up():
    chair = conduct("bo", "wait")
    assert chair.on_lost("di", 7) == ([Observe("lost", "di")], False)
    assert chair.roster == NAMES


def test_stopping_tells_everybody_left_which_model_to_keep():
    chair = conduct("bo", "stop")
    effects, changed = chair.on_lost("di", 7)
    assert not changed
    assert sent(effects) == [Broadcast(("ana", "cy", "di"), Halt("peer-lost", "di was lost and on_loss is 'stop'", 7))]
    assert chair.unacknowledged["halt"] == {"ana", "cy"}, "nobody waits for the lost one, which may be alive"


def test_going_on_names_a_new_roster_until_it_is_acknowledged():
    chair = conduct("bo")
    effects, changed = chair.on_lost("di", -1)
    assert changed
    roster = Roster(chair.epoch, ("ana", "bo", "cy"), "bo")
    assert sent(effects) == [Broadcast(("ana", "cy"), roster)]
    chair.on_acknowledged("roster", "ana")
    assert chair.patrol(-1) == [Broadcast(("cy",), roster)]


def test_whoever_is_not_the_chair_leaves_the_roster_alone():
    assert conduct("cy").on_lost("di", -1) == ([Observe("lost", "di")], False)


def test_the_next_label_holder_takes_a_lost_chairs_place():
    heir, other = conduct("cy"), conduct("ana")
    assert other.on_lost("bo", -1) == ([Observe("lost", "bo")], False)
    effects, changed = heir.on_lost("bo", -1)
    assert changed and heir.presides and other.chair == "bo", "until the heir names itself"
    assert sent(effects) == [Broadcast(("ana", "di"), Roster(heir.epoch, ("ana", "cy", "di"), "cy"))]


def test_without_any_label_holder_there_is_nothing_to_do():
    party = conduct("ana")
    party.on_lost("bo", -1)
    effects, changed = party.on_lost("cy", -1)
    assert not changed and effects == [Observe("lost", "cy")], "it may be alive, and is given time to come back"
    for _ in range(TRIES_MAX):
        assert party.patrol(-1) == []
    assert [effect.verdict for effect in party.patrol(-1)] == ["peer-lost"]


def test_whoever_is_told_to_stop_does_not_wait_for_the_last_label_holder():
    party = conduct("ana", "stop", active=("bo",))
    effects, _ = party.on_lost("bo", -1)
    assert effects[-1] == Finish("peer-lost", "bo was lost, the last party with labels")


def test_a_label_holder_that_comes_back_in_time_is_waited_for_anew():
    party = conduct("ana", active=("bo",))
    for _ in range(3):
        party.on_lost("bo", -1)
        for _ in range(TRIES_MAX):
            assert party.patrol(-1) == []
        party.on_back("bo")
        assert party.patrol(-1) == []


def test_whoever_was_left_out_is_told_how_the_run_ended():
    chair = conduct("bo")
    chair.on_lost("di", -1)
    left_out, kept = {}, {}
    for effect in sent(chair.end("target", "good enough", 4)):
        (left_out if effect.body.verdict == "peer-lost" else kept).update(dict.fromkeys(effect.to, effect.body))
    assert kept == dict.fromkeys(("ana", "cy"), Halt("target", "good enough", 4))
    assert list(left_out) == ["di"] and "without this party" in left_out["di"].reason and left_out["di"].best == -1


def test_two_chairs_never_name_the_same_epoch():
    """Each may have thought the other lost; the higher epoch wins everywhere, the other is not acknowledged."""
    bo, cy, ana = conduct("bo"), conduct("cy"), conduct("ana")
    bo.on_lost("di", -1)
    cy.on_lost("bo", -1)
    assert bo.epoch != cy.epoch
    low, high = sorted((bo, cy), key=lambda party: party.epoch)
    rosters = {party: Roster(party.epoch, party.roster, party.me) for party in (low, high)}
    ana.on_roster(low.me, rosters[low])
    assert ana.on_roster(high.me, rosters[high]) == ([Send(high.me, Rostered(high.epoch))], True)
    assert ana.on_roster(low.me, rosters[low]) == ([], False)
    assert (ana.epoch, ana.roster, ana.chair) == (high.epoch, high.roster, high.me)


@pytest.mark.parametrize(
    "roster",
    [
        Roster(6, ("bo", "cy"), "bo"),
        Roster(6, ("ana", "bo", "eve"), "bo"),
        Roster(6, ("bo", "ana", "cy"), "bo"),
        Roster(6, ("ana", "bo", "cy"), "cy"),
        Roster(-1, ("ana", "bo", "cy"), "bo"),
        Roster(2**40, ("ana", "bo", "cy"), "bo"),
    ],
    ids=["without me", "with a stranger", "in another order", "of another chair", "before all", "beyond all"],
)
def test_a_roster_that_makes_no_sense_is_refused(roster):
    with pytest.raises(UnexpectedEvent):
        conduct("ana").on_roster("bo", roster)


def test_a_party_that_returns_is_on_a_new_roster_and_hears_begin_again():
    chair = conduct("bo")
    chair.begin(0.5, 64)
    for name in ("ana", "cy", "di"):
        chair.on_acknowledged("begin", name)
    chair.on_lost("di", -1)
    first = chair.epoch
    effects, changed = chair.on_back("di")
    assert changed and chair.epoch > first
    assert sent(effects) == [Broadcast(("ana", "cy", "di"), Roster(chair.epoch, NAMES, "bo"))]
    assert Broadcast(("ana", "cy", "di"), Begin(0.5, 64)) in chair.patrol(-1)


def test_a_new_chair_says_begin_to_those_who_may_have_missed_it():
    heir = conduct("cy")
    heir.on_begin("bo", Begin(0.5, 64))
    heir.on_lost("bo", -1)
    assert Broadcast(("ana", "di"), Begin(0.5, 64)) in heir.patrol(-1)


def test_a_roster_that_is_never_acknowledged_ends_the_run():
    chair = conduct("bo")
    chair.on_lost("di", -1)
    chair.on_acknowledged("roster", "cy")
    for _ in range(TRIES_MAX):
        chair.patrol(3)
    halt, _ = sent(chair.patrol(3))
    assert halt.body == Halt("peer-lost", "ana did not acknowledge the new roster", 3)


# -- ending ----------------------------------------------------------------------------------------------------------


def test_halt_is_said_until_acknowledged_and_then_the_chair_is_done():
    chair = conduct("bo")
    halt = Halt("target", "good enough", 4)
    assert chair.end("target", "good enough", 4) == [Broadcast(("ana", "cy", "di"), halt)]
    assert chair.end("passes", "another reason", 5) == []
    for name in ("ana", "cy"):
        assert chair.on_acknowledged("halt", name) == []
    assert chair.patrol(4) == [Broadcast(("di",), halt)]
    assert chair.on_acknowledged("halt", "di") == [Finish("target", "good enough")]


def test_a_chair_that_hears_nothing_ends_all_the_same():
    chair = conduct("bo")
    chair.end("target", "good enough", 4)
    for _ in range(TRIES_MAX):
        assert sent(chair.patrol(4))
    assert chair.patrol(4) == [Finish("target", "good enough")]


def test_a_party_that_is_told_to_halt_says_so_and_ends():
    assert conduct("ana").on_halt("bo", Halt("target", "good enough", 4)) == [
        Send("bo", Halted()),
        Finish("target", "good enough"),
    ]


def test_an_alarm_is_repeated_until_the_run_ends():
    party = conduct("ana")
    alarm = Send("bo", Alarm("range", "too large"))
    assert party.alarm("range", "too large", 2) == [alarm]
    assert party.patrol(2) == [alarm]
    party.on_halt("bo", Halt("range", "too large", 2))
    assert alarm not in party.patrol(2)


def test_an_alarm_follows_the_chair():
    party = conduct("ana")
    party.alarm("range", "too large", 2)
    party.on_lost("bo", 2)
    party.on_roster("cy", Roster(6, ("ana", "cy", "di"), "cy"))
    assert party.patrol(2) == [Send("cy", Alarm("range", "too large"))]


def test_the_chairs_own_alarm_ends_the_run():
    chair = conduct("bo")
    assert sent(chair.alarm("range", "too large", 2)) == [Broadcast(("ana", "cy", "di"), Halt("range", "too large", 2))]


@pytest.mark.parametrize("me", NAMES)
def test_a_restored_party_goes_on_where_it_was(me):
    party = conduct(me)
    party.begin(0.5, 64) if party.presides else party.on_begin("bo", Begin(0.5, 64))
    party.on_lost("di" if me != "di" else "ana", 1)
    party.alarm("range", "too large", 1)
    again = conduct(me)
    again.restore(decode_state(encode_state(party.snapshot())))
    assert again.snapshot() == party.snapshot()
    assert again.patrol(1) == party.patrol(1)
