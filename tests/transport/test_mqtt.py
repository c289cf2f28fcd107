"""MAPA's parties over a real broker: TLS, access rules, bounds, broken frames, lost peers."""

import ssl
import threading

import msgspec
import numpy as np
import pytest

pytest.importorskip("paho.mqtt.client", reason="the extra `mqtt` is not installed")

from mosquitto import Broker, need_mosquitto
from paho.mqtt import client as paho

from offbeat.algorithms.mapa import MESSAGES, Cloud, Edge, GradientStep, Hello, Upload
from offbeat.algorithms.mapa.privacy import EdgePrivacy
from offbeat.algorithms.mapa.rates import SteadyRate
from offbeat.errors import BadInput, PeerFailed
from offbeat.learning.horizontal import LinearModel, edge_data
from offbeat.message.codec import Codec
from offbeat.party.contract import Finish, PeerBack, PeerLost, Received, Send, Started, Wake
from offbeat.privacy.ledger import Budget
from offbeat.privacy.mechanism import Gaussian, NoNoise
from offbeat.privacy.noise import SeededNoise
from offbeat.runtime.delivery import Packet
from offbeat.runtime.mqtt import Address, ClientBounds, Mqtt, MqttRun
from offbeat.testing.runtime_checks import MESSAGES as RACE
from offbeat.testing.runtime_checks import check_runtime

MODEL = LinearModel("logistic", 6)
TRUTH = np.random.default_rng(0).standard_normal(6)
EDGES = ("edge1", "edge2", "edge3")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    need_mosquitto()
    started = Broker(tmp_path_factory.mktemp("broker"), EDGES).start()
    yield started
    started.stop()


def rows_of(seed, count=200):
    features = np.random.default_rng(seed).standard_normal((count, 6))
    return edge_data(features, (features @ TRUTH > 0).astype(int))


def runtime(broker, name, run, folder=None, **kwargs):
    return Mqtt(Address("127.0.0.1", broker.port, broker.identity(name)), run, MESSAGES, folder, **kwargs)


def serve_all(broker, run, parties, folder=None, **kwargs):
    """Every party on its own thread with its own certificate."""
    outcomes, problems = {}, []

    def work(party):
        try:
            outcomes[party.name] = runtime(broker, party.name, run, folder, **kwargs).serve(party)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(party,), daemon=True) for party in parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not problems, problems
    assert not any(thread.is_alive() for thread in threads), "a party hangs"
    return outcomes


def build(updates=60, private=True):
    noise = Gaussian(2.0, 0.2, 200)
    recipe = EdgePrivacy(noise, Budget(100.0, 1e-5), ((noise.cost(), 500),)) if private else EdgePrivacy(NoNoise(20))
    cloud = Cloud(
        MODEL.start(), GradientStep(SteadyRate(0.5, clip=1.0), 1e-4), updates=updates, lag_max=50, edges=EDGES
    )
    edges = [Edge(name, MODEL, rows_of(i), recipe, SeededNoise(1, name), retry_s=2.0) for i, name in enumerate(EDGES)]
    return [cloud, *edges]


def test_a_run_over_the_broker_learns_and_ends(broker, tmp_path):
    parties = build()
    outcomes = serve_all(broker, "learns", parties, tmp_path)
    cloud, edges = parties[0], parties[1:]
    assert cloud.version == 60 and outcomes["cloud"].finished["cloud"].verdict == "passes"
    assert all(outcomes[name].finished[name].verdict == "passes" for name in EDGES)
    assert MODEL.accuracy(cloud.parameters, rows_of(9, 2000)) > 0.8
    for edge in edges:
        assert edge.ledger.releases == edge.uploads >= cloud.applied.get(edge.name, 0)  # one may come late
    assert sum(cloud.applied.values()) == 60


@pytest.mark.parametrize("snapshot_s", [5.0, 0.0], ids=["from its log", "from a snapshot"])
def test_a_party_keeps_its_ledger_for_the_next_run(broker, tmp_path, snapshot_s):
    first = build(updates=5)
    serve_all(broker, f"first{snapshot_s}", first, tmp_path, snapshot_s=snapshot_s)
    paid = {edge.name: edge.ledger.releases for edge in first[1:]}
    again = build(updates=5)
    for path in tmp_path.glob("*/cloud.*"):  # a new cloud, the same edges
        path.unlink()
    serve_all(broker, f"second{snapshot_s}", again, tmp_path, snapshot_s=snapshot_s)
    for edge in again[1:]:
        # An upload that the first cloud never took may be sent again, in the same bytes: that is no second release.
        assert edge.uploads == edge.ledger.releases >= max(paid[edge.name], again[0].applied.get(edge.name, 0))
    assert again[0].version == 5 and sum(paid.values()) >= 5
    assert sum(edge.ledger.releases for edge in again[1:]) > sum(paid.values())
    logs = [path.name for path in (tmp_path / "events").iterdir() if path.name.startswith("edge1")]
    assert len(logs) == 1, "what lies behind a snapshot, or belongs to another run, is removed"


class Killed(Exception):
    """Stands for the end of a process."""


def test_a_party_that_dies_at_any_event_goes_on_where_it_was(broker, tmp_path):
    """The cloud and an edge die again and again; every upload is paid for once, applied once, and none is lost."""
    uploads = {}

    def life(party, folder, events):
        """Carries a party until it ends, or dies at the given event."""
        serving = MqttRun(runtime(broker, party.name, "lives", folder, snapshot_s=0.05), party, None)
        timed, left = serving.host._timed, events

        def mortal(event):
            nonlocal left
            left -= 1
            if left == 0:
                serving.host.close = lambda: None  # nothing is written any more
                raise Killed
            return timed(event)

        serving.host._timed = mortal
        return serving.run()

    def lives(make, name):
        rng = np.random.default_rng([*name.encode()])
        while True:
            party = make()
            try:
                return party, life(party, tmp_path, int(rng.integers(2, 60)) if name != "edge3" else 10**9)
            except Killed:
                continue

    parties = {party.name: party for party in build(updates=80)}

    def make(name):
        return next(party for party in build(updates=80) if party.name == name)

    threads = [
        threading.Thread(target=lambda n=name: uploads.__setitem__(n, lives(lambda: make(n), n)), daemon=True)
        for name in parties
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert set(uploads) == set(parties), "somebody hangs"
    cloud = uploads["cloud"][0]
    assert cloud.version == 80 == sum(cloud.applied.values()) and cloud.dropped == 0
    for name in EDGES:
        edge = uploads[name][0]
        assert edge.ledger.releases == edge.uploads
        assert edge.uploads - cloud.applied.get(name, 0) <= 1, "at most the last one came after the end"


class Watcher:
    """Finishes when a peer was lost and came back."""

    name = "cloud"

    def __init__(self):
        self.seen = []

    def handle(self, event):
        if isinstance(event, PeerLost | PeerBack):
            self.seen.append(event)
        return [Finish("passes")] if len(self.seen) == 2 else [Wake(0.2)] if isinstance(event, Started) else []

    def snapshot(self):
        return {}

    def restore(self, state):
        return None


def raw_client(broker, name, identifier, will_topic=None):
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, identifier, clean_session=True)
    folder = broker.identity(name)
    context = ssl.create_default_context(cafile=str(folder / "authority.crt"))
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    client.tls_set_context(context)
    if will_topic:
        client.will_set(will_topic, b"lost", qos=1, retain=True)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    return client


def test_the_last_will_is_a_lost_peer(broker):
    watcher = Watcher()
    thread = threading.Thread(target=lambda: serve_all(broker, "wills", [watcher]), daemon=True)
    thread.start()
    topic = "offbeat/wills/status/edge1"
    one = raw_client(broker, "edge1", "one", topic)
    one.publish(topic, b"here", qos=1, retain=True).wait_for_publish(10)
    one._sock.shutdown(2)  # the line goes dead without a word
    while not watcher.seen and thread.is_alive():
        thread.join(0.05)
    two = raw_client(broker, "edge1", "two")
    two.publish(topic, b"here", qos=1, retain=True).wait_for_publish(10)
    thread.join(30)
    assert watcher.seen == [PeerLost("edge1"), PeerBack("edge1")]
    for client in (one, two):
        client.disconnect()
        client.loop_stop()


class Listener:
    """A cloud that keeps what it hears and stops at the second Hello."""

    name = "cloud"

    def __init__(self):
        self.heard = []

    def handle(self, event):
        if isinstance(event, Received):
            self.heard.append(event)
        return [Finish("passes")] if len(self.heard) == 2 else []

    def snapshot(self):
        return {}

    def restore(self, state):
        return None


def test_repeats_broken_frames_and_false_senders_do_not_reach_the_party(broker):
    listener, codec = Listener(), Codec(MESSAGES)
    box = {}
    thread = threading.Thread(target=lambda: box.update(serve_all(broker, "frames", [listener])), daemon=True)
    client = raw_client(broker, "edge1", "frames")
    status = threading.Event()
    client.on_message = lambda *_: status.set()
    client.subscribe("offbeat/frames/status/cloud", 1)
    thread.start()
    assert status.wait(20)
    mine, other = "offbeat/frames/to/cloud/edge1", "offbeat/frames/to/cloud/edge2"

    def post(topic, payload):
        client.publish(topic, payload, qos=1).wait_for_publish(10)

    def hello(number, frame=None, accepted=0):
        frames = [frame or codec.encode(Hello(0.5, number))]
        return msgspec.msgpack.encode(Packet(1, number, frames, 1, accepted, 0))

    post(mine, hello(1))
    post(mine, hello(1))  # the same message again
    post(mine, b"\x93garbage")
    post(other, hello(2))  # the broker's access rules stop this one
    post(mine, hello(2, b"\x91\xa9Unheard-of"))
    post(mine, hello(2, accepted=2**62))  # says that it holds what was never sent
    post(mine, msgspec.msgpack.encode([1, 0, [], 1, 0, -1]))
    post(mine, hello(2))
    client.publish("offbeat/frames/status/edge1", b"", qos=1, retain=True).wait_for_publish(10)  # wants no answer
    thread.join(30)
    assert [(event.sender, event.body.uploads) for event in listener.heard] == [("edge1", 1), ("edge1", 2)]
    observed = {name: value for _, _, name, value in box["cloud"].observations}
    assert observed["mqtt_repeated"] == 1 and observed["mqtt_refused_frames"] == 4
    client.disconnect()
    client.loop_stop()


def test_an_edge_may_not_listen_to_another(broker):
    client = raw_client(broker, "edge1", "curious")
    heard, told = [], threading.Event()
    client.on_message = lambda _, __, message: (heard.append(message.topic), told.set())
    client.subscribe(
        [("offbeat/secret/to/edge2/+", 1), ("offbeat/secret/to/cloud/+", 1), ("offbeat/secret/to/edge1/+", 1)]
    )
    sender = raw_client(broker, "cloud", "speaker")
    for receiver in ("edge2", "edge1"):
        sender.publish(f"offbeat/secret/to/{receiver}/cloud", b"x", qos=1).wait_for_publish(10)
    assert told.wait(20)
    assert heard == ["offbeat/secret/to/edge1/cloud"]
    for one in (client, sender):
        one.disconnect()
        one.loop_stop()


def test_a_stranger_is_refused(broker, tmp_path):
    strangers = Broker(tmp_path, ("edge1",))
    address = Address("127.0.0.1", broker.port, strangers.identity("edge1"))
    with pytest.raises(PeerFailed, match="could not reach the broker"):
        Mqtt(address, "r", MESSAGES, bounds=ClientBounds(connect_s=2.0)).serve(build()[1])


def test_a_missing_identity_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"edge1.crt|authority.crt"):
        Mqtt(Address("127.0.0.1", 1, tmp_path), "r", MESSAGES).serve(build()[1])


class Shouter:
    name = "edge1"

    def handle(self, event):
        return [Send("cloud", Upload(np.zeros(10_000), 0, 1, -1.0))]

    def snapshot(self):
        return {}

    def restore(self, state):
        return None


def test_an_oversized_message_is_refused_before_it_leaves(broker):
    with pytest.raises(PeerFailed, match="larger than the 1000 bytes"):
        runtime(broker, "edge1", "large", bounds=ClientBounds(frame_bytes=1000)).serve(Shouter())


def test_several_parties_of_one_process_share_a_runtime(broker, tmp_path):
    cloud_only = broker.identity("cloud")
    for name in EDGES:
        for suffix in ("crt", "key"):
            (cloud_only / f"{name}.{suffix}").write_bytes((broker.identity(name) / f"{name}.{suffix}").read_bytes())
    parties = build(updates=12, private=False)
    setting = Mqtt(Address("127.0.0.1", broker.port, cloud_only), "together", MESSAGES)
    looks = []
    outcome = setting.run(parties, lambda time_s: looks.append(time_s) or 0.1)
    assert set(outcome.finished) == {"cloud", *EDGES} and parties[0].version == 12
    assert outcome.clock == "wall" and not outcome.stalled


def test_the_runtime_does_what_every_runtime_must(tmp_path):
    need_mosquitto()
    runners = tuple(f"runner{i}" for i in range(3))
    open_house = Broker(tmp_path, runners)
    (tmp_path / "broker" / "access.rules").write_text("pattern readwrite offbeat/#\n")
    together = open_house.identity("cloud")
    for name in runners:
        for suffix in ("crt", "key"):
            (together / f"{name}.{suffix}").write_bytes((open_house.identity(name) / f"{name}.{suffix}").read_bytes())
    open_house.start()
    try:
        check_runtime(lambda: Mqtt(Address("127.0.0.1", open_house.port, together), "race", RACE))
    finally:
        open_house.stop()
