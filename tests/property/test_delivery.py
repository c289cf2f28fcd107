"""Two deliveries joined by a wire that breaks, or by a carrier that loses, doubles and reorders packets: whatever
happens, each side gets every message once and in order, and nothing grows without bound."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadFrame, PeerFailed
from offbeat.runtime.delivery import Bounds, Delivery, Packet, PacketLink, RoundTrips, Timing

SMALL = Bounds(packet_frames=3, packet_bytes=64, window_frames=6, window_bytes=96, frame_bytes=32)

# One step of the world: a side sends, a packet crosses, the receiver logs some, an acknowledgement crosses, the wire
# breaks (packets on it are lost), or a side crashes back to what it had logged.
STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "cross", "log", "acknowledge", "break", "crash"]), st.booleans()), max_size=200
)


class World:
    """Ana and Bo, the packets between them, and what each party has been given."""

    def __init__(self) -> None:
        self.links = {"ana": Delivery("bo", SMALL), "bo": Delivery("ana", SMALL)}
        self.given: dict[str, list[bytes]] = {"ana": [], "bo": []}
        self.logged = {"ana": 0, "bo": 0}
        self.sent: dict[str, list[bytes]] = {"ana": [], "bo": []}

    def other(self, side: str) -> str:
        return "bo" if side == "ana" else "ana"

    def send(self, side: str) -> None:
        frame = f"{side} {len(self.sent[side])}".encode()
        assert self.links[side].offer(frame) == len(self.sent[side]) + 1
        self.sent[side].append(frame)

    def cross(self, side: str) -> None:
        taken = self.links[side].take()
        if taken is not None:
            peer = self.other(side)
            for number, frame in self.links[peer].arrived(*taken, self.links[side].first_kept):
                self.given[peer].append(frame)
                assert number == len(self.given[peer])

    def log(self, side: str) -> None:
        if self.logged[side] < len(self.given[side]):
            self.logged[side] += 1
            self.links[side].logged(self.logged[side])

    def acknowledge(self, side: str) -> None:
        self.links[self.other(side)].acknowledge(self.links[side].durable)

    def reconnect(self) -> None:
        for side, link in self.links.items():
            link.opened(self.links[self.other(side)].accepted)

    def crash(self, side: str) -> None:
        """What was not logged is gone; what was sent is rebuilt by replay, acknowledged or not."""
        fresh = Delivery(self.other(side), SMALL)
        kept = self.links[side].kept()
        fresh.restore(sent=len(self.sent[side]), kept=kept, accepted=self.logged[side])
        self.links[side] = fresh
        del self.given[side][self.logged[side] :]
        self.reconnect()


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_each_message_arrives_once_and_in_order(steps: list[tuple[str, bool]]) -> None:
    world = World()
    for action, first in steps:
        side = "ana" if first else "bo"
        if action == "break":
            world.reconnect()
        else:
            getattr(world, action)(side)
        for name in ("ana", "bo"):
            assert world.given[name] == world.sent[world.other(name)][: len(world.given[name])]
            assert world.links[name].unacknowledged <= len(world.sent[name])
    for _ in range(2000):
        for side in ("ana", "bo"):
            world.cross(side)
            world.log(side)
            world.acknowledge(side)
    assert world.given["ana"] == world.sent["bo"] and world.given["bo"] == world.sent["ana"]
    assert all(link.unacknowledged == 0 and link._kept_bytes == 0 for link in world.links.values())


def test_packets_coalesce_up_to_their_bounds() -> None:
    link = Delivery("bo", SMALL)
    for _ in range(7):
        link.offer(b"x" * 10)
    assert link.take() == (1, [b"x" * 10] * 3)
    assert link.take() == (4, [b"x" * 10] * 3)
    assert link.take() is None, "the window of six unacknowledged messages is full"
    link.acknowledge(2)
    assert link.take() == (7, [b"x" * 10])


def test_a_large_message_travels_alone() -> None:
    bounds = Bounds(packet_bytes=16, frame_bytes=64)
    link = Delivery("bo", bounds)
    link.offer(b"a" * 60)
    link.offer(b"b")
    assert link.take() == (1, [b"a" * 60])
    assert link.take() == (2, [b"b"])
    with pytest.raises(PeerFailed, match="larger than the 64 bytes"):
        link.offer(b"c" * 65)


def test_the_backlog_has_a_bound() -> None:
    link = Delivery("bo", Bounds(backlog_frames=2))
    link.offer(b"1")
    link.offer(b"2")
    with pytest.raises(PeerFailed, match="2 messages"):
        link.offer(b"3")


@pytest.mark.parametrize(
    ("first", "frames", "why"),
    [
        (3, [b"x"], "where 1 was next"),
        (0, [b"x"], "begin at 1"),
        (1, [b"x" * 33], "larger than 32"),
        (1, [b"x"] * 7, "without waiting"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_refused(first: int, frames: list[bytes], why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        Delivery("bo", SMALL).arrived(first, frames)


def test_a_peer_that_does_not_wait_for_acknowledgements_is_refused() -> None:
    link: Delivery[bytes] = Delivery("bo", SMALL)
    for i in range(6):
        link.arrived(i + 1, [b"x"])
    with pytest.raises(BadFrame, match="without waiting"):
        link.arrived(7, [b"x"])
    large: Delivery[bytes] = Delivery("bo", SMALL)
    for i in range(4):
        large.arrived(i + 1, [b"x" * 32])
    with pytest.raises(BadFrame, match="128 bytes without waiting"):
        large.arrived(5, [b"x"])


def test_an_acknowledgement_of_nothing_is_refused() -> None:
    with pytest.raises(BadFrame, match="never written"):
        Delivery("bo", SMALL).acknowledge(1)


def test_run_folders_that_do_not_belong_together_are_refused() -> None:
    link: Delivery[bytes] = Delivery("bo", SMALL)
    link.offer(b"x")
    with pytest.raises(PeerFailed, match="do not belong together"):
        link.opened(5)
    link.take()
    link.acknowledge(1)
    with pytest.raises(PeerFailed, match="do not belong together"):
        link.opened(0)


# -- a peer that is lost, and comes back -------------------------------------------------------------------------------


def test_what_is_kept_for_a_lost_peer_is_the_latest_window_and_it_gets_that_when_it_is_back() -> None:
    ana, bo = Delivery("bo", SMALL), Delivery("ana", SMALL)
    ana.offer(b"0")
    assert bo.arrived(*ana.take(), ana.first_kept) == [(1, b"0")]  # type: ignore[misc]
    ana.peer_lost()
    for i in range(1, 100):
        assert ana.offer(str(i).encode()) == i + 1, "numbers do not depend on what is forgotten"
    assert ana.unacknowledged == SMALL.window_frames and ana.dropped == 94
    ana.peer_back()
    ana.opened(1)
    got = []
    while (taken := ana.take()) is not None:
        got += bo.arrived(*taken, ana.first_kept)
    assert [frame for _, frame in got] == [b"94", b"95", b"96", b"97", b"98", b"99"]
    assert (bo.accepted, bo.missed) == (100, 93)
    bo.logged(100)
    ana.acknowledge(bo.durable)
    assert ana.unacknowledged == ana._kept_bytes == 0


def test_nothing_is_kept_for_who_takes_nothing_more() -> None:
    link: Delivery[bytes] = Delivery("bo", Bounds(backlog_frames=3))
    link.offer(b"1")
    link.close()
    assert [link.offer(b"x") for _ in range(9)] == list(range(2, 11))
    assert link.unacknowledged == 0 and link.take() is None


# -- packets -----------------------------------------------------------------------------------------------------------

TIMING = Timing(answer_s=0.5, first_s=4.0, least_s=1.0, most_s=30.0)
TRAVELS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "arrive", "arrive", "lose", "double", "log", "wait", "crash"]),
        st.booleans(),
        st.integers(0, 7),
    ),
    max_size=250,
)


class Carrier:
    """Ana and Bo, the packets between them in any order, a clock, and what each has got and logged."""

    def __init__(self) -> None:
        self.now, self.life = 0.0, 1
        self.links = {side: self.fresh(side) for side in ("ana", "bo")}
        self.flying: dict[str, list[Packet[bytes]]] = {"ana": [], "bo": []}  # towards
        self.given: dict[str, list[bytes]] = {"ana": [], "bo": []}
        self.logged = {"ana": 0, "bo": 0}
        self.sent: dict[str, list[bytes]] = {"ana": [], "bo": []}
        self.packets = 0

    def fresh(self, side: str) -> PacketLink[bytes]:
        return PacketLink(self.other(side), SMALL, TIMING, life=self.life)

    def other(self, side: str) -> str:
        return "bo" if side == "ana" else "ana"

    def pump(self, side: str) -> None:
        while (packet := self.links[side].packet(self.now)) is not None:
            self.flying[self.other(side)].append(packet)
            self.packets += 1

    def send(self, side: str, which: int) -> None:
        if self.links[side].unacknowledged < 40:
            self.sent[side].append(f"{side} {len(self.sent[side])}".encode())
            self.links[side].offer(self.sent[side][-1])
            self.pump(side)

    def arrive(self, side: str, which: int) -> None:
        if self.flying[side]:
            packet = self.flying[side].pop(which % len(self.flying[side]))
            for number, frame in self.links[side].heard(packet, self.now):
                self.given[side].append(frame)
                assert number == len(self.given[side])
            self.pump(side)

    def lose(self, side: str, which: int) -> None:
        if self.flying[side]:
            self.flying[side].pop(which % len(self.flying[side]))

    def double(self, side: str, which: int) -> None:
        if self.flying[side]:
            self.flying[side].append(self.flying[side][which % len(self.flying[side])])

    def log(self, side: str, which: int) -> None:
        self.logged[side] = min(self.logged[side] + which, len(self.given[side]))
        self.links[side].logged(self.logged[side])
        self.pump(side)

    def wait(self, side: str, which: int) -> None:
        self.now += 0.3 * which
        for each in ("ana", "bo"):
            self.pump(each)

    def crash(self, side: str, which: int) -> None:
        """Back to what was logged; what was sent is rebuilt from the log, acknowledged or not."""
        self.life += 1
        kept = self.sent[side][max(0, self.links[side].acknowledged - which) :]
        self.links[side] = self.fresh(side)
        self.links[side].restore(sent=len(self.sent[side]), kept=kept, accepted=self.logged[side])
        del self.given[side][self.logged[side] :]
        self.pump(side)

    def heal(self) -> None:
        """Every packet arrives and everything is logged, until nobody has anything to do."""
        for _ in range(500):
            if not any(self.flying.values()) and all(link.due_s == inf for link in self.links.values()):
                return
            for side in ("ana", "bo"):
                while self.flying[side]:
                    self.arrive(side, 0)
                self.log(side, 10**6)
            if not any(self.flying.values()):
                due_s = min(link.due_s for link in self.links.values())
                self.now = max(self.now, due_s) if due_s < inf else self.now
            for side in ("ana", "bo"):
                self.pump(side)
        raise AssertionError("they never come to rest")


@given(TRAVELS)
@settings(max_examples=500, deadline=None)
def test_each_message_arrives_once_and_in_order_whatever_the_carrier_does(
    travels: list[tuple[str, bool, int]],
) -> None:
    world = Carrier()
    for action, first, which in travels:
        getattr(world, action)("ana" if first else "bo", which)
        for side in ("ana", "bo"):
            assert world.given[side] == world.sent[world.other(side)][: len(world.given[side])]
            delivery = world.links[side]
            assert len(delivery._early) + len(delivery._inbox) <= SMALL.window_frames
            assert delivery._held_bytes <= SMALL.window_bytes + SMALL.frame_bytes
    world.heal()
    for side in ("ana", "bo"):
        assert world.given[side] == world.sent[world.other(side)]
        assert world.links[side].settled and world.links[side]._kept_bytes == 0
        assert world.links[side]._held_bytes == 0


def test_a_message_that_was_lost_is_repeated_after_a_time_that_grows() -> None:
    link: PacketLink[bytes] = PacketLink("bo", SMALL, TIMING, life=1)
    link.offer(b"x")
    now, waits = 0.0, []
    assert link.packet(now) == Packet(1, 1, [b"x"], 1, 0, 0)
    for _ in range(5):
        assert link.packet(now) is None
        waits.append(link.due_s - now)
        now = link.due_s
        assert link.packet(now) == Packet(1, 1, [b"x"], 1, 0, 0)
    assert waits == [4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_time_until_a_repetition_follows_the_round_trips() -> None:
    trips = RoundTrips(TIMING)
    for _ in range(40):
        trips.measured(2.0)
    assert trips.timeout_s == pytest.approx(2.0, abs=0.01)
    trips.missed()
    assert trips.timeout_s == pytest.approx(4.0, abs=0.01)
    for _ in range(40):
        trips.measured(0.01)
    assert trips.timeout_s == TIMING.least_s


def test_a_repeated_message_does_not_count_as_a_round_trip() -> None:
    """Nobody knows which of the two was answered."""
    link: PacketLink[bytes] = PacketLink("bo", SMALL, TIMING, life=1)
    link.offer(b"x")
    link.packet(0.0)
    link.packet(4.0)
    link.heard(Packet(1, 1, [], 1, 1, 1), 4.1)
    assert link._trips._mean_s == 0.0 and link.due_s == inf


def test_an_acknowledgement_travels_with_a_message_or_alone_a_little_later() -> None:
    link: PacketLink[bytes] = PacketLink("bo", SMALL, TIMING, life=1)
    assert link.heard(Packet(1, 1, [b"a"], 1, 0, 0), 10.0) == [(1, b"a")]
    link.logged(1)
    assert link.packet(10.0) is None and link.due_s == 10.5
    link.offer(b"b")
    assert link.packet(10.1) == Packet(1, 1, [b"b"], 1, 1, 1)
    link.heard(Packet(1, 2, [b"c"], 1, 1, 1), 11.0)
    link.logged(2)
    assert link.packet(11.5) == Packet(2, 2, [], 1, 2, 2)
    assert link.packet(11.5) is None and link.due_s == inf


def test_a_peer_that_was_started_again_gets_what_it_had_not_logged_at_once() -> None:
    ana: PacketLink[bytes] = PacketLink("bo", SMALL, TIMING, life=1)
    for i in range(3):
        ana.offer(b"%d" % i)
    ana.packet(0.0)
    ana.heard(Packet(1, 1, [], 1, 3, 1), 0.1)
    again = PacketLink("ana", SMALL, TIMING, life=2)
    again.restore(sent=0, kept=[], accepted=1)
    assert again.due_s == 0.0
    hello = again.packet(0.2)
    assert hello is not None
    ana.heard(hello, 0.2)
    assert ana.packet(0.2) == Packet(2, 2, [b"1", b"2"], 1, 0, 0)


def test_who_has_forgotten_what_it_sent_is_told() -> None:
    link: PacketLink[bytes] = PacketLink("bo", SMALL, TIMING, life=1)
    with pytest.raises(BadFrame, match="never sent"):
        link.heard(Packet(1, 1, [], 1, 5, 5), 0.0)
    link.restore(sent=4, kept=[], accepted=0)
    with pytest.raises(PeerFailed, match="our state is older than what we have sent"):
        link.heard(Packet(1, 1, [], 1, 5, 5), 0.0)


def test_of_a_packet_that_breaks_the_rules_nothing_is_taken() -> None:
    link: PacketLink[bytes] = PacketLink("bo", SMALL, TIMING, life=1)
    for accepted, durable in ((7, 0), (0, 7)):
        with pytest.raises(BadFrame):
            link.heard(Packet(1, 1, [b"a"], 1, accepted, durable), 0.0)
    assert link.heard(Packet(1, 1, [b"a"], 1, 0, 0), 0.0) == [(1, b"a")]


def test_a_side_that_numbers_from_a_later_base_is_understood_and_old_packets_are_not_heard() -> None:
    """A party without memory that is started again numbers above all that it sent in an earlier life."""
    bo: PacketLink[bytes] = PacketLink("ana", SMALL, TIMING, life=1)
    first: PacketLink[bytes] = PacketLink("bo", SMALL, TIMING, life=1, base=1000)
    first.offer(b"old")
    old = first.packet(0.0)
    assert old is not None
    assert bo.heard(old, 0.0) == [(1001, b"old")]
    second: PacketLink[bytes] = PacketLink("bo", SMALL, TIMING, life=2, base=2000)
    second.offer(b"new")
    new = second.packet(0.0)
    assert new is not None
    assert bo.heard(new, 0.0) == [(2001, b"new")] and bo.heard(old, 0.0) == []
