"""An edge against the other clients of a broker: with their client ids, with status words, with nonsense."""

import getpass
import shutil
import subprocess
import threading
import tracemalloc
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from offbeat.algorithms.mapa import MESSAGES, Cloud, GradientStep, Halt, Hello, Model, Upload
from offbeat.algorithms.mapa.rates import SteadyRate
from offbeat.cli.root import app
from offbeat.errors import BadInput, PeerFailed
from offbeat.message.codec import Codec
from offbeat.runtime import broker
from offbeat.runtime.broker import BrokerPlan, find_mosquitto, running_broker, write_broker
from offbeat.runtime.delivery import Packet
from offbeat.runtime.mqtt import Address, ClientBounds, Mqtt, MqttRun, ServesOthers, _client, _tls, client_id
from offbeat.runtime.processes import free_ports

paho = pytest.importorskip("paho.mqtt.client", reason="the extra `mqtt` is not installed")


class Connected:
    """A client of ours, or of somebody who has one certificate and chooses an id; `ended` when the line is taken."""

    def __init__(self, broker, certificate, identifier=""):
        self.up, self.ended, self.heard = threading.Event(), threading.Event(), []
        address = Address("127.0.0.1", broker.port, broker.identity)
        if identifier:
            self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, identifier, False, protocol=paho.MQTTv311)
            self.client.tls_set_context(_tls(address, certificate))
        else:
            self.client = _client(Mqtt(address, "digits", ()), certificate, None, None)
        self.client.on_connect = lambda *_: self.up.set()
        self.client.on_disconnect = lambda *_: self.ended.set()
        self.client.on_message = lambda client, data, message: self.heard.append(message.payload)
        self.client.reconnect_delay_set(30, 60)
        self.client.connect("127.0.0.1", broker.port, 15)
        self.client.loop_start()
        assert self.up.wait(20)

    def told(self, topic):
        """Whether the broker still takes what this client says."""
        return self.client.publish(topic, b"here", 1).wait_for_publish(10) is None and not self.ended.is_set()

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


def test_an_edge_does_not_take_the_place_of_another_or_of_the_cloud():
    """Before: ids followed from the run and the name; any edge put any other off the line, the cloud too."""
    with running_broker(["oslo", "porto"]) as broker:
        if broker is None:
            pytest.skip("no mosquitto on this machine")
        victims = {name: Connected(broker, name) for name in ("porto", "cloud")}
        for name in victims:
            for guess in (f"offbeat-digits-{name}", f"offbeat-{name}", f"offbeat-{name}-{0:032x}"):
                eve = Connected(broker, "oslo", guess)
                eve.client.subscribe(f"offbeat/digits/to/{name}/+", 1)
                assert eve.told("offbeat/digits/status/oslo")
                assert victims[name].told(f"offbeat/digits/status/{name}"), "it is still there"
                assert eve.heard == []
                eve.close()
        # The attack itself works: whoever knows an id has the place.
        address = Address("127.0.0.1", broker.port, broker.identity)
        thief = Connected(broker, "oslo", client_id(address, "digits", "porto"))
        assert victims["porto"].ended.wait(20)
        for one in (thief, *victims.values()):
            one.close()


def test_an_id_is_its_partys_secret_and_the_same_after_a_restart(tmp_path):
    for name in ("oslo", "porto"):
        (tmp_path / f"{name}.key").write_bytes(f"key of {name}".encode())
        for other in ("authority.crt", f"{name}.crt"):
            (tmp_path / other).touch()
    address = Address("x", 1, tmp_path)
    ids = [client_id(address, run, name) for run in ("a", "b") for name in ("oslo", "porto")]
    assert len(set(ids)) == 4 and ids[0] == client_id(address, "a", "oslo")
    (tmp_path / "oslo.key").write_bytes(b"another key")
    assert client_id(address, "a", "oslo") != ids[0]


def offbeat(*words):
    told = CliRunner().invoke(app, [str(word) for word in words])
    said = " ".join(told.stderr.split())
    if told.exit_code == BadInput.exit_code:
        raise BadInput(said)
    assert told.exit_code == 0, said
    return said


def test_a_site_makes_its_own_key_and_the_broker_takes_it(tmp_path):
    """Before: `mqtt init` made everybody's private key, so whoever ran the broker was everybody."""
    place, site = tmp_path / "broker-files", tmp_path / "oslo"
    (port,) = free_ports(1)
    asked = offbeat("mqtt", "request", "oslo", "--dir", site)
    with pytest.raises(BadInput, match="expected an authority"):
        offbeat("mqtt", "sign", place, site / "oslo.csr")
    write_broker(place, BrokerPlan((), bind="127.0.0.1", port=port, run_as=getpass.getuser(), own_keys=True))
    signed = offbeat("mqtt", "sign", place, site / "oslo.csr")
    mark = asked.split("compare by telephone: ")[1][:39]
    assert len(mark.split()) == 8 and mark in signed, "both sides read the same mark"
    assert [path.name for path in place.rglob("*.key")] == ["authority.key", "server.key"]
    assert (site / "oslo.key").stat().st_mode & 0o077 == 0
    with pytest.raises(BadInput, match="has a certificate of 'oslo' already"):
        offbeat("mqtt", "sign", place, site / "oslo.csr")
    (tmp_path / "not.csr").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="expected a certificate request in PEM"):
        offbeat("mqtt", "sign", place, tmp_path / "not.csr")
    if find_mosquitto() is None:
        pytest.skip("no mosquitto on this machine")
    for path in (place / "parties" / "oslo").iterdir():
        shutil.copy(path, site / path.name)
    process = subprocess.Popen([find_mosquitto(), "-c", place / "broker" / "mosquitto.conf"], stderr=subprocess.DEVNULL)
    try:
        broker._wait_until_open(port, process)
        oslo = Connected(broker.RunningBroker(port, site), "oslo")
        assert oslo.told("offbeat/digits/status/oslo")
        oslo.close()
    finally:
        process.terminate()
        process.wait(10)


# -- one edge against the others of its cloud -------------------------------------------------------------------------


def cloud_of(*edges, bounds=None):
    """A cloud at the broker's door: what came from the broker is put in by hand, what leaves is kept."""
    cloud = Cloud(np.zeros(3), GradientStep(SteadyRate(0.1), 1.0), updates=1000, lag_max=10, edges=edges)
    setting = Mqtt(Address("127.0.0.1", 1), "digits", MESSAGES, bounds=bounds or ClientBounds())
    run = MqttRun(setting, ServesOthers(cloud), None)
    run.sent = []
    run._transmit = run.carrier._transmit = lambda peer, packet: run.sent.append((peer, packet))
    run.host.begin()
    settle(run)
    return run, cloud


def settle(run):
    """All that waits for the party is handled."""
    while run.host.inbox.ready:
        items = run.host.inbox.take(32, 0.0)
        if batch := run.host._for_the_party(items):
            run.host.handle(batch)
        run.host.inbox.settle(len(items))
        run._turn()


def came(run, topic, payload):
    run._on_message(None, None, SimpleNamespace(topic=f"offbeat/digits/{topic}", payload=payload))


def packet(number, *bodies, accepted=0, durable=0):
    frames = [Codec(MESSAGES).encode(body) for body in bodies]
    return msgspec.msgpack.encode(Packet(number, number, frames, 1, accepted, durable))


def test_status_words_of_one_edge_take_no_memory():
    """Tried: words of 16 MiB, as many as the broker carries. Each waited in the inbox of every party, outside its
    bound."""
    run, _ = cloud_of("oslo")
    tracemalloc.start()
    for number in range(2000):
        came(run, "status/eve", (b"here", b"lost", b"", bytes(10_000) + number.to_bytes(4, "big"))[number % 4])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(run.host.inbox) == 1 and held < 2**20 and run.counts.refused_frames == 500
    settle(run)
    assert run.carrier.links["eve"].closed and "eve" not in run.lost  # the last word that is one


@pytest.mark.parametrize("body", [Model(np.zeros(3), 0, 1.0, 0, 0, 0), Halt("passes", "done"), Hello(-1.0, 0)])
def test_nonsense_of_one_edge_does_not_end_the_run_of_all(body):
    """Tried: a message that only a cloud sends, or a number that cannot be. The cloud ended with an error."""
    run, cloud = cloud_of("oslo")
    came(run, "to/cloud/eve", packet(1, body))
    settle(run)
    assert run.host.party.passed_over == 1 and run.host.drive.finished is None
    came(run, "to/cloud/oslo", packet(1, Hello(0.1, 0), Upload(np.ones(3), 0, 1, -1.0)))
    settle(run)
    assert cloud.version == 1 and cloud.applied == {"oslo": 1}


def test_an_edge_that_asks_and_takes_nothing_is_lost_and_the_others_are_not():
    """Tried: ask for the model again and again, and acknowledge none. What was kept for this edge grew to half a
    gigabyte; then the cloud ended with an error."""
    run, cloud = cloud_of("oslo", bounds=ClientBounds(window=4))
    for number in range(1, 101):
        came(run, "to/cloud/eve", packet(number, Hello(0.1, 0)))
        settle(run)
    link = run.carrier.links["eve"]
    assert run.lost == {"eve"} and link.unacknowledged <= 16 and link.dropped > 50
    came(run, "to/cloud/eve", packet(101, accepted=link.sent, durable=link.sent))  # it was only slow
    settle(run)
    assert run.lost == set() and not link.lost
    came(run, "to/cloud/oslo", packet(1, Hello(0.1, 0), Upload(np.ones(3), 0, 1, -1.0)))
    settle(run)
    assert cloud.version == 1 and run.host.drive.finished is None


def test_an_edge_that_holds_what_was_never_sent_ends_nobody_elses_run():
    """Tried: after the cloud was restarted, say that one holds message 2^40 of it. Every restart ended at once."""
    run, cloud = cloud_of("oslo")
    for name in ("oslo", "eve"):
        came(run, f"to/cloud/{name}", packet(1, Hello(0.1, 0)))
        settle(run)
        run.carrier.links[name].restore(sent=1, kept=[], accepted=1)
    came(run, "to/cloud/eve", packet(2, Hello(0.1, 0), accepted=2**40))
    settle(run)
    assert run.lost == {"eve"} and run.carrier.links["eve"].closed
    came(run, "status/porto", b"here")  # it has a part at the broker, and none in this
    settle(run)
    came(run, "to/cloud/oslo", packet(2, Upload(np.ones(3), 0, 1, -1.0)))
    settle(run)
    assert cloud.version == 1 and run.host.drive.finished is None
    came(run, "to/cloud/oslo", packet(3, Hello(0.1, 0), accepted=2**40))
    with pytest.raises(PeerFailed, match="our state is older than what we have sent"):  # all who know it say so
        settle(run)
