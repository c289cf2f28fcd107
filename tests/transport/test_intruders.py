"""Who may not get in, does not; who may, and breaks the rules, is dropped. The server stays up, memory bounded."""

import contextlib
import dataclasses
import random
import resource
import threading
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

import grpc
from loopback import QUICK, Loopback, run_all
from toys import MESSAGES, Count, counters

from offbeat.errors import BadFrame, OffbeatError, PeerFailed
from offbeat.message.codec import Codec
from offbeat.orgs.control import decode_request
from offbeat.runtime.contract import Outcome
from offbeat.runtime.grpc.channel import Channel
from offbeat.runtime.grpc.identity import (
    Identity,
    Member,
    PinnedRoster,
    new_authority,
    new_identity,
    new_request,
    sign_request,
    tls_name,
)
from offbeat.runtime.grpc.wire import (
    PROTOCOL_VERSION,
    SERVICE,
    Beat,
    Bounds,
    Bye,
    Data,
    Greeting,
    Refusal,
    Welcome,
    pack,
    unpack,
)

FUZZED_FRAMES = 100_000


def signed_by(authority: Identity, name: str) -> Identity:
    key, request = new_request(name)
    return Identity(name, sign_request(request, authority), key)


class Door:
    """Ana's server, a run that is open at it, and ways to knock."""

    def __init__(self) -> None:
        self.authority = new_authority()
        self.world = Loopback(("ana", "bo"))
        self.dan = signed_by(self.authority, "dan")
        members = (*self.world.roster.members, Member("dan", self.dan.certificate_pem))
        self.world.roster = PinnedRoster(members, (self.authority.certificate_pem,))
        self.server = self.world.server("ana")
        self.got: list[int] = []
        self.delivered: Callable[..., None] = lambda peer, number, frame, body: self.got.append(number)
        self.job_digest, self.roster = "", self.world.roster
        self.channels = {
            name: Channel(name, Codec(MESSAGES), Bounds(), self.delivered, beat_s=0.05, notify=lambda: None)
            for name in ("bo", "dan")
        }
        self.server.serve("run", self)

    def channel(self, peer: str) -> Channel:
        return self.channels[peer]

    def hello(self, name: str = "bo", **changes: object) -> Greeting:
        good = Greeting(PROTOCOL_VERSION, "0", "run", name, self.world.roster.hash, "", 0, b"n" * 32)
        return msgspec.structs.replace(good, **changes)

    def knock(
        self, who: Identity | None, packets: list[bytes] | Iterator[bytes], timeout_s: float = 5.0
    ) -> list[bytes]:
        """Send these packets; the answers until the stream ends, or the RpcError."""
        roots = self.world.roster.roots_pem
        pair = (who.key_pem, who.certificate_pem) if who is not None else (None, None)
        options = [("grpc.ssl_target_name_override", tls_name("ana")), ("grpc.max_send_message_length", -1)]
        with grpc.secure_channel(self.world.listen["ana"], grpc.ssl_channel_credentials(roots, *pair), options) as wire:
            return list(wire.stream_stream(f"/{SERVICE}/Join")(iter(packets), timeout=timeout_s))

    def still_open(self) -> bool:
        """A well-behaved member gets in."""
        done = threading.Event()

        def greet_and_wait() -> Iterator[bytes]:
            yield pack(self.hello(accepted=self.channels["bo"].delivery.sent))
            done.wait(5)

        try:
            roots = self.world.roster.roots_pem
            bo = self.world.identities["bo"]
            credentials = grpc.ssl_channel_credentials(roots, bo.key_pem, bo.certificate_pem)
            options = [("grpc.ssl_target_name_override", tls_name("ana"))]
            with grpc.secure_channel(self.world.listen["ana"], credentials, options) as wire:
                call = wire.stream_stream(f"/{SERVICE}/Join")(greet_and_wait(), timeout=5)
                return isinstance(unpack(next(call), Bounds()), Welcome)
        finally:
            done.set()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.world.stop()


# -- certificates -----------------------------------------------------------------------------------------------------


def test_without_a_certificate_nobody_gets_in(door: Door) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        door.knock(None, [pack(door.hello())])
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert door.still_open()


def test_a_stranger_of_the_same_name_does_not_get_in(door: Door) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        door.knock(new_identity("bo"), [pack(door.hello())])
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert door.still_open()


def test_a_wrong_authority_does_not_let_in(door: Door) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        door.knock(signed_by(new_authority(), "bo"), [pack(door.hello())])
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert door.still_open()


def test_the_right_authority_alone_does_not_let_in(door: Door) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        door.knock(signed_by(door.authority, "eve"), [pack(door.hello("eve"))])
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "not on the roster of 'ana'" in str(refused.value.details())
    assert door.server.refused["not on the roster"] == 1
    assert door.still_open()


def test_a_second_certificate_of_a_member_is_not_the_pinned_one(door: Door) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        door.knock(signed_by(door.authority, "dan"), [pack(door.hello("dan"))])
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_pinned_certificate_of_the_authority_gets_in(door: Door) -> None:
    with contextlib.suppress(grpc.RpcError):
        door.knock(door.dan, [pack(door.hello("dan"))], timeout_s=0.5)
    assert door.channels["dan"].met


def test_control_calls_are_for_members_too(door: Door) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        roots = door.world.roster.roots_pem
        eve = signed_by(door.authority, "eve")
        credentials = grpc.ssl_channel_credentials(roots, eve.key_pem, eve.certificate_pem)
        with grpc.secure_channel(
            door.world.listen["ana"], credentials, [("grpc.ssl_target_name_override", tls_name("ana"))]
        ) as wire:
            wire.unary_unary(f"/{SERVICE}/Control")(b"anything", timeout=5)
    assert refused.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


def test_a_listener_without_the_pinned_key_is_found_out() -> None:
    """Somebody with a certificate of the right authority and the right name answers in Ana's place."""
    authority = new_authority()
    ana, impostor, bo = (signed_by(authority, name) for name in ("ana", "ana", "bo"))
    world = Loopback(("ana", "bo"))
    address = world.listen["ana"]
    pinned = (Member("ana", ana.certificate_pem, address), Member("bo", bo.certificate_pem))
    world.roster = PinnedRoster(pinned, (authority.certificate_pem,))
    world.identities = {"ana": impostor, "bo": bo}
    parties = counters(("ana", "bo"), 5)
    ends = run_all([world.session(p, MESSAGES, options=dataclasses.replace(QUICK, on_loss="stop")) for p in parties])
    world.stop()
    assert isinstance(ends["bo"], PeerFailed)
    assert "does not hold the key" in str(ends["bo"])


# -- greetings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protocol": PROTOCOL_VERSION + 1}, "install the same version"),
        ({"name": "ana"}, "the certificate belongs to 'bo'"),
        ({"roster": "0" * 64}, "the rosters differ"),
        ({"run": "another"}, "run 'another' is not open"),
        ({"job": "another"}, "disagree about run"),
        ({"accepted": 99}, "do not belong together"),
    ],
)
def test_a_greeting_that_does_not_agree_is_answered_by_the_reason(
    door: Door, changes: dict[str, object], reason: str
) -> None:
    (answer,) = door.knock(door.world.identities["bo"], [pack(door.hello(**changes))])
    refusal = unpack(answer, Bounds())
    assert isinstance(refusal, Refusal) and reason in refusal.reason
    assert door.still_open()


@pytest.mark.parametrize("first", [b"", b"\x00", pack(Beat(0)), pack(Welcome(0, b"")), b"\x93" + b"x" * 50])
def test_a_stream_that_does_not_begin_with_a_greeting_is_closed(door: Door, first: bytes) -> None:
    try:
        answers = [unpack(raw, Bounds()) for raw in door.knock(door.world.identities["bo"], [first])]
        assert all(isinstance(answer, Refusal) for answer in answers)
    except grpc.RpcError as refused:
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert door.still_open()


# -- frames of a member that breaks the rules -------------------------------------------------------------------------


def count(index: int) -> bytes:
    return Codec(MESSAGES).encode(Count(index, np.arange(8)))


def test_replayed_frames_reach_the_party_once(door: Door) -> None:
    recorded = [pack(door.hello()), pack(Data(1, 0, [count(1), count(2)])), pack(Data(3, 0, [count(3)]))]
    for _ in range(3):
        with contextlib.suppress(grpc.RpcError):
            door.knock(door.world.identities["bo"], [*recorded, *recorded[1:]], timeout_s=0.4)
    assert door.got == [1, 2, 3]
    assert door.channels["bo"].delivery.repeated > 0
    assert door.still_open()


def test_oversize_frames_are_refused_and_memory_stays_bounded(door: Door) -> None:
    bo = door.world.identities["bo"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    huge = bytes(40 * 2**20)
    for packet in (huge, pack(Data(1, 0, [huge])), *[pack(Data(1, 0, [bytes(17 * 2**20)]))] * 4):
        with pytest.raises(grpc.RpcError):
            door.knock(bo, [pack(door.hello()), packet], timeout_s=5)
    assert door.got == []
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 600 * 1024, f"{grown_kb} kB more"
    assert door.still_open()


@pytest.mark.parametrize(
    "packet",
    [
        b"\xff" * 100,
        pack(Data(1, 0, [b"not a message"])),
        pack(Data(5, 0, [count(5)])),
        pack(Beat(7)),
        pack(Data(1, 0, [count(1)]))[:-9],
        pack(Greeting(1, "", "", "", "", "", 0, b"n" * 16)),
    ],
)
def test_a_frame_out_of_place_drops_the_stream_alone(door: Door, packet: bytes) -> None:
    with contextlib.suppress(grpc.RpcError):
        door.knock(door.world.identities["bo"], [pack(door.hello()), packet], timeout_s=2)
    assert door.got == []
    assert door.channels["bo"].faults == 1
    assert door.still_open()


def test_a_member_that_floods_is_held_to_the_window(door: Door) -> None:
    flood = [pack(Data(1 + 500 * i, 0, [count(j) for j in range(500)])) for i in range(20)]
    with contextlib.suppress(grpc.RpcError):
        door.knock(door.world.identities["bo"], [pack(door.hello()), *flood], timeout_s=2)
    assert len(door.got) <= Bounds().window_frames


# -- fuzzing ----------------------------------------------------------------------------------------------------------


def mutated(packet: bytes, rng: random.Random) -> bytes:
    """A random change: bits, a cut, an insertion, noise, or two packets run together."""
    kind = rng.randrange(6)
    raw = bytearray(packet)
    if kind == 0 and raw:
        for _ in range(rng.randint(1, 8)):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del raw[rng.randint(0, len(raw)) :]
    elif kind == 2:
        at = rng.randint(0, len(raw))
        raw[at:at] = rng.randbytes(rng.randint(1, 40))
    elif kind == 3:
        return rng.randbytes(rng.randint(0, 200))
    elif kind == 4:
        raw += packet
    else:
        a, b = sorted(rng.randint(0, len(raw)) for _ in range(2))
        del raw[a:b]
    return bytes(raw)


def test_a_hundred_thousand_damaged_frames_end_in_a_typed_error_or_nothing() -> None:
    """Every layer that reads what a peer wrote: packets, message bodies, control requests. Seed 20210301."""
    rng = random.Random(20210301)
    codec = Codec(MESSAGES)
    good = [
        pack(Data(1, 0, [count(1), count(2)])),
        pack(Beat(0)),
        pack(Bye(0, "target")),
        pack(Greeting(1, "0.1", "run", "bo", "f" * 64, "j", 3, b"n" * 32)),
        pack(Refusal("no", True)),
        pack(Welcome(2, b"s" * 70)),
    ]
    got: list[int] = []
    accepted = refused = 0
    channel = generation = None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in range(FUZZED_FRAMES):
        if channel is None or index % 1000 == 0:
            channel = Channel("bo", codec, Bounds(), lambda p, n, f, b: got.append(n), beat_s=1, notify=lambda: None)
            generation = channel.open(0, lambda: None)
            got.clear()
        frame = mutated(rng.choice(good), rng)
        try:
            assert generation is not None
            channel.receive(generation, frame)
            accepted += 1
        except OffbeatError:
            refused += 1
        if index % 10 == 0:
            for read in (codec.decode, decode_request):
                with contextlib.suppress(OffbeatError):
                    read(frame)
        assert got == list(range(1, len(got) + 1)), "a message reached the party out of order or twice"
        assert channel.delivery.accepted <= 2 + Bounds().window_frames
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{refused} refused, {accepted} harmless, {grown_kb} kB more memory")
    assert accepted + refused == FUZZED_FRAMES and grown_kb < 64 * 1024
    assert refused > FUZZED_FRAMES // 2 and accepted > 100


def test_bodies_of_every_kind_survive_damage_as_bad_frames_only() -> None:
    rng = random.Random(7)
    codec = Codec(MESSAGES)
    for _ in range(20_000):
        with contextlib.suppress(BadFrame):
            codec.decode(mutated(count(rng.randrange(2**40)), rng))


def test_an_intruder_does_not_disturb_a_run() -> None:
    """While Ana and Bo work, somebody with Bo's stolen greeting but no key, and a member with noise, keep knocking."""
    world = Loopback(("ana", "bo", "cy"))
    parties = counters(("ana", "bo"), 400)
    sessions = [world.session(p, MESSAGES, peers=("ana", "bo")) for p in parties]
    stop = threading.Event()
    rng = random.Random(3)

    def knock() -> None:
        cy, stranger = world.identities["cy"], new_identity("bo")
        while not stop.is_set():
            for who in (cy, stranger):
                credentials = grpc.ssl_channel_credentials(world.roster.roots_pem, who.key_pem, who.certificate_pem)
                options = [("grpc.ssl_target_name_override", tls_name("ana"))]
                wire = grpc.secure_channel(world.listen["ana"], credentials, options)
                with wire, contextlib.suppress(grpc.RpcError):
                    list(wire.stream_stream(f"/{SERVICE}/Join")(iter([rng.randbytes(100)] * 3), timeout=1))

    knocker = threading.Thread(target=knock)
    knocker.start()
    ends = run_all(sessions)
    stop.set()
    knocker.join()
    world.stop()
    assert all(isinstance(end, Outcome) and end.finished[name].verdict == "target" for name, end in ends.items())
