"""Two links joined by a wire that breaks: whatever happens, each side gets every message once and in order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadFrame, PeerFailed
from offbeat.runtime.grpc.link import Link
from offbeat.runtime.grpc.wire import Bounds, Data

SMALL = Bounds(packet_frames=3, packet_bytes=64, window_frames=6, window_bytes=96, frame_bytes=32)

# One step of the world: a side sends, a packet crosses, the receiver logs some, an acknowledgement crosses, the wire
# breaks (packets on it are lost), or a side crashes back to what it had logged.
STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "cross", "log", "acknowledge", "break", "crash"]), st.booleans()), max_size=200
)


class World:
    """Ana and Bo, the packets between them, and what each party has been given."""

    def __init__(self) -> None:
        self.links = {"ana": Link("bo", SMALL), "bo": Link("ana", SMALL)}
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
        data = self.links[side].take()
        if data is not None:
            peer = self.other(side)
            for number, frame in self.links[peer].arrived(data):
                self.given[peer].append(frame)
                assert number == len(self.given[peer])

    def log(self, side: str) -> None:
        if self.logged[side] < len(self.given[side]):
            self.logged[side] += 1
            self.links[side].logged(self.logged[side])

    def acknowledge(self, side: str) -> None:
        self.links[self.other(side)].acknowledged(self.links[side].durable)

    def reconnect(self) -> None:
        for side, link in self.links.items():
            link.opened(self.links[self.other(side)].accepted)

    def crash(self, side: str) -> None:
        """What was not logged is gone; what was sent is rebuilt by replay, acknowledged or not."""
        fresh = Link(self.other(side), SMALL)
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
    assert all(link.unacknowledged == 0 and link.unacknowledged_bytes == 0 for link in world.links.values())


def test_packets_coalesce_up_to_their_bounds() -> None:
    link = Link("bo", SMALL)
    for _ in range(7):
        link.offer(b"x" * 10)
    assert link.take() == Data(1, 0, [b"x" * 10] * 3)
    assert link.take() == Data(4, 0, [b"x" * 10] * 3)
    assert link.take() is None, "the window of six unacknowledged messages is full"
    link.acknowledged(2)
    assert link.take() == Data(7, 0, [b"x" * 10])


def test_a_large_message_travels_alone() -> None:
    bounds = Bounds(packet_bytes=16, frame_bytes=64)
    link = Link("bo", bounds)
    link.offer(b"a" * 60)
    link.offer(b"b")
    assert link.take() == Data(1, 0, [b"a" * 60])
    assert link.take() == Data(2, 0, [b"b"])
    with pytest.raises(PeerFailed, match="larger than the 64 bytes"):
        link.offer(b"c" * 65)


def test_the_backlog_has_a_bound() -> None:
    link = Link("bo", Bounds(backlog_frames=2))
    link.offer(b"1")
    link.offer(b"2")
    with pytest.raises(PeerFailed, match="2 messages"):
        link.offer(b"3")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Data(3, 0, [b"x"]), "where 1 was next"),
        (Data(0, 0, [b"x"]), "begin at 1"),
        (Data(1, 0, [b"x" * 33]), "larger than 32"),
        (Data(1, 0, [b"x"] * 7), "without waiting"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_refused(data: Data, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        Link("bo", SMALL).arrived(data)


def test_an_acknowledgement_of_nothing_is_refused() -> None:
    with pytest.raises(BadFrame, match="never written"):
        Link("bo", SMALL).acknowledged(1)


def test_run_folders_that_do_not_belong_together_are_refused() -> None:
    link = Link("bo", SMALL)
    link.offer(b"x")
    with pytest.raises(PeerFailed, match="do not belong together"):
        link.opened(5)
