"""Beginning, rosters and ending, one event at a time, with losses."""

import pytest

from offbeat.errors import BadJob, UnexpectedEvent
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Broadcast, Finish, Observe, Send
from offbeat.party.lifecycle import LOSS_POLICIES, Alarm, Begin, Halt, Lifecycle, RosterNamed
from offbeat.party.roster import EPOCHS_MAX, Roster

NAMES = ("ana", "bo", "cy", "di")
BEGIN = Begin(0, 0.5, 64, 2.0, 9.0, 1.0)


def lifecycle(me, on_loss="continue", active=("bo", "cy")):
    return Lifecycle(Roster(me, NAMES, active), on_loss)


def sent(effects):
    return [effect for effect in effects if isinstance(effect, (Send, Broadcast))]


# -- the roster ------------------------------------------------------------------------------------------------------


def test_the_first_label_holder_takes_the_chair():
    rosters = [Roster(me, NAMES, ("bo", "cy")) for me in NAMES]
    assert [roster.is_chair for roster in rosters] == [False, True, False, False]
    assert [roster.holds_labels for roster in rosters] == [False, True, True, False]
    assert rosters[2].peers == ("ana", "bo", "di") and rosters[2].labelled == ("bo", "cy")


def test_a_roster_knows_who_is_left():
    roster = Roster("di", NAMES, ("bo", "cy"))
    roster.enter(6, ("ana", "cy", "di"), "cy")
    assert (roster.epoch, roster.chair, roster.peers, roster.labelled) == (6, "cy", ("ana", "cy"), ("cy",))
    again = Roster("di", NAMES, ("bo", "cy"))
    again.restore(decode_state(encode_state(roster.snapshot())))
    assert vars(again) == vars(roster)


def test_unknown_policies_are_refused():
    with pytest.raises(BadJob, match="on_loss must be one of wait, stop, continue"):
        lifecycle("ana", on_loss="panic")


# -- beginning -------------------------------------------------------------------------------------------------------


def test_the_chair_is_ready_when_everybody_on_the_roster_is():
    chair = lifecycle("bo")
    for name in ("ana", "cy"):
        chair.ready.add(name)
        assert not chair.all_ready
    chair.ready.add("di")
    assert chair.all_ready


def test_the_chair_says_what_it_chose():
    chair = lifecycle("bo")
    assert chair.begin(BEGIN) == [Broadcast(("ana", "cy", "di"), BEGIN), Observe("step", [0.5, 64])]
    assert chair.begun and (chair.eta, chair.batch, chair.smoothness, chair.spacing) == (0.5, 64, 2.0, 1.0)


def test_begin_is_heeded_once():
    party = lifecycle("ana")
    assert party.on_begin("bo", BEGIN)
    assert not party.on_begin("bo", Begin(0, 0.7, 32, 1.0, 1.0, 2.0))
    assert (party.eta, party.batch) == (0.5, 64)


@pytest.mark.parametrize(
    ("sender", "begin"),
    [
        ("cy", BEGIN),
        ("bo", Begin(0, 0.0, 64, 2.0, 9.0, 1.0)),
        ("bo", Begin(0, float("nan"), 64, 2.0, 9.0, 1.0)),
        ("bo", Begin(0, float("inf"), 64, 2.0, 9.0, 1.0)),
        ("bo", Begin(0, 0.5, 0, 2.0, 9.0, 1.0)),
    ],
    ids=["not the chair", "no step", "no number", "without end", "no batch"],
)
def test_a_beginning_that_makes_no_sense_is_refused(sender, begin):
    party = lifecycle("ana")
    with pytest.raises(UnexpectedEvent, match=f"{sender} sent"):
        party.on_begin(sender, begin)
    assert not party.begun


# -- losing somebody -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("me", NAMES[:3])
def test_whoever_waits_gives_nothing_up(me):
    party = lifecycle(me, "wait")
    assert party.on_lost("di") == (False, "")
    assert party.roster.names == NAMES and not party.without_labels


def test_stopping_is_the_chairs():
    assert lifecycle("bo", "stop").on_lost("di") == (False, "di was lost and on_loss is 'stop'")
    assert lifecycle("cy", "stop").on_lost("di") == (False, "")
    assert lifecycle("ana", "stop").on_lost("di") == (False, "")


def test_a_lost_chair_is_stopped_by_its_heir():
    heir = lifecycle("cy", "stop")
    assert heir.on_lost("bo") == (False, "bo was lost and on_loss is 'stop'")
    assert heir.roster.is_chair and heir.roster.names == NAMES
    assert lifecycle("ana", "stop").on_lost("bo") == (False, "")


def test_going_on_names_a_new_roster():
    chair = lifecycle("bo")
    assert chair.on_lost("di") == (True, "")
    named, observed = chair.name_roster()
    assert named == Broadcast(("ana", "cy"), RosterNamed(chair.roster.epoch, ("ana", "bo", "cy"), "bo"))
    assert observed == Observe("roster", [chair.roster.epoch, ["ana", "bo", "cy"]])


def test_whoever_returns_may_have_missed_the_beginning():
    chair = lifecycle("bo")
    chair.begin(BEGIN)
    chair.on_lost("di")
    chair.name_roster()
    assert chair.on_back("di")
    named, _, begin = chair.name_roster()
    assert named.body.names == NAMES
    assert begin == Broadcast(("ana", "cy", "di"), Begin(chair.roster.epoch, 0.5, 64, 2.0, 9.0, 1.0))


def test_whoever_is_not_the_chair_leaves_the_roster_alone():
    party = lifecycle("cy")
    assert party.on_lost("di") == (False, "")
    assert not party.on_back("di")


def test_the_next_label_holder_takes_a_lost_chairs_place():
    heir, other = lifecycle("cy"), lifecycle("ana")
    assert other.on_lost("bo") == (False, "") and other.roster.chair == "bo", "until the heir names itself"
    assert heir.on_lost("bo") == (True, "")
    (named, _) = heir.name_roster()
    assert heir.roster.is_chair
    assert named.body == RosterNamed(heir.roster.epoch, ("ana", "cy", "di"), "cy")
    assert other.on_roster("cy", named.body) and other.roster.chair == "cy"


def test_succession_goes_on_to_the_last_label_holder():
    di = lifecycle("di", active=("bo", "cy", "di"))
    assert di.on_lost("bo") == (False, ""), "cy's turn"
    assert di.on_lost("cy") == (True, "")
    di.name_roster()
    assert di.roster.names == ("ana", "di") and di.roster.is_chair


def test_without_any_label_holder_the_others_wait_for_one_to_come_back():
    party = lifecycle("ana")
    party.on_lost("bo")
    assert not party.without_labels
    assert party.on_lost("cy") == (False, "") and party.without_labels
    party.on_back("cy")
    assert not party.without_labels


def test_whoever_is_told_to_stop_does_not_wait_for_the_last_label_holder():
    party = lifecycle("ana", "stop", active=("bo",))
    assert party.on_lost("bo") == (False, "bo was lost, the last party with labels")


def test_a_loss_after_the_end_or_of_somebody_gone_changes_nothing():
    chair = lifecycle("bo")
    chair.on_lost("di")
    chair.name_roster()
    assert chair.on_lost("di") == (False, "")
    chair.end("target", "good enough", 4)
    assert chair.on_lost("ana") == (False, "") and not chair.on_back("di")


@pytest.mark.parametrize("on_loss", LOSS_POLICIES)
def test_a_party_accepts_only_rosters_that_its_own_job_allows(on_loss):
    party = lifecycle("ana", on_loss)
    named = RosterNamed(5, ("ana", "bo", "cy"), "bo")
    if on_loss == "continue":
        assert party.on_roster("bo", named) and party.roster.names == ("ana", "bo", "cy")
    else:
        with pytest.raises(UnexpectedEvent, match=f"bo sent .*on_loss is '{on_loss}'"):
            party.on_roster("bo", named)
        assert party.roster.names == NAMES and party.roster.epoch == 0


def test_epochs_only_rise():
    party = lifecycle("ana")
    assert party.on_roster("bo", RosterNamed(5, ("ana", "bo", "cy"), "bo"))
    for epoch in (5, 1):
        assert not party.on_roster("bo", RosterNamed(epoch, NAMES, "bo"))
    assert (party.roster.epoch, party.roster.names) == (5, ("ana", "bo", "cy"))
    assert party.on_roster("bo", RosterNamed(9, NAMES, "bo"))


def test_two_chairs_never_name_the_same_epoch():
    """Each may have thought the other lost; the higher epoch wins everywhere."""
    bo, cy, ana = lifecycle("bo"), lifecycle("cy"), lifecycle("ana")
    named = {}
    for party, lost in ((bo, "di"), (cy, "bo")):
        party.on_lost(lost)
        named[party] = party.name_roster()[0].body
    low, high = sorted((bo, cy), key=lambda party: party.roster.epoch)
    assert low.roster.epoch < high.roster.epoch
    assert ana.on_roster(low.roster.me, named[low])
    assert ana.on_roster(high.roster.me, named[high])
    assert not ana.on_roster(low.roster.me, named[low])
    assert ana.roster.chair == high.roster.me
    for _ in range(20):
        before = bo.roster.epoch
        bo.name_roster()
        assert bo.roster.epoch > before and bo.roster.epoch % 4 == NAMES.index("bo")


@pytest.mark.parametrize(
    ("sender", "named"),
    [
        ("bo", RosterNamed(5, ("bo", "cy"), "bo")),
        ("bo", RosterNamed(5, ("ana", "bo", "eve"), "bo")),
        ("bo", RosterNamed(5, ("bo", "ana", "cy"), "bo")),
        ("bo", RosterNamed(5, ("ana", "ana", "bo"), "bo")),
        ("bo", RosterNamed(5, ("ana", "bo", "cy"), "cy")),
        ("bo", RosterNamed(5, ("ana", "cy"), "bo")),
        ("bo", RosterNamed(6, ("ana", "bo", "cy"), "bo")),
        ("di", RosterNamed(7, ("ana", "bo", "di"), "di")),
        ("bo", RosterNamed(EPOCHS_MAX + 1, ("ana", "bo", "cy"), "bo")),
    ],
    ids=[
        "without me",
        "with a stranger",
        "in another order",
        "somebody twice",
        "of another chair",
        "without its chair",
        "in another's epoch",
        "by somebody without labels",
        "beyond all",
    ],
)
def test_a_roster_that_makes_no_sense_is_refused(sender, named):
    party = lifecycle("ana")
    with pytest.raises(UnexpectedEvent, match=f"{sender} sent the roster"):
        party.on_roster(sender, named)
    assert party.roster.epoch == 0


# -- ending ----------------------------------------------------------------------------------------------------------


def test_the_chair_halts_everybody_once():
    chair = lifecycle("bo")
    halt = Broadcast(("ana", "cy", "di"), Halt("target", "good enough", 4))
    assert chair.end("target", "good enough", 4) == [halt, Finish("target", "good enough")]
    assert chair.halted and chair.end("passes", "another reason", 5) == []


def test_whoever_was_left_out_is_told_how_the_run_ended():
    chair = lifecycle("bo")
    chair.on_lost("di")
    chair.name_roster()
    kept, left_out, finish = chair.end("target", "good enough", 4)
    assert kept == Broadcast(("ana", "cy"), Halt("target", "good enough", 4))
    assert left_out.to == ("di",) and (left_out.body.verdict, left_out.body.best) == ("peer-lost", -1)
    assert "without this party" in left_out.body.reason
    assert finish == Finish("target", "good enough")


def test_a_party_that_is_told_to_halt_ends():
    party = lifecycle("ana")
    assert party.over("target", "good enough", 4) == [Finish("target", "good enough")]
    assert party.halted


def test_an_alarm_goes_to_the_chair_of_the_time():
    party = lifecycle("ana")
    assert party.alarm("range", "too large") == [Send("bo", Alarm("range", "too large"))]
    party.on_roster("cy", RosterNamed(6, ("ana", "cy", "di"), "cy"))
    assert party.alarm("range", "too large") == [Send("cy", Alarm("range", "too large"))]


@pytest.mark.parametrize("me", NAMES)
def test_a_restored_party_goes_on_where_it_was(me):
    party = lifecycle(me)
    party.begin(BEGIN) if party.roster.is_chair else party.on_begin("bo", BEGIN)
    party.ready |= {"ana", "cy"}
    party.on_lost("di" if me != "di" else "ana")
    party.end("target", "good enough", 2)
    again = lifecycle(me)
    again.restore(decode_state(encode_state(party.snapshot())))
    assert again.snapshot() == party.snapshot()
    assert again.on_lost("cy") == party.on_lost("cy")
