"""An edge against the other clients of a broker: it comes with their client ids."""

import getpass
import shutil
import subprocess
import threading

import pytest
from typer.testing import CliRunner

from offbeat.cli.edges import edge_commands
from offbeat.errors import BadInput
from offbeat.runtime import broker
from offbeat.runtime.broker import BrokerPlan, find_mosquitto, running_broker, write_broker
from offbeat.runtime.mqtt import Address, Mqtt, _client, _tls, client_id
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
    told = CliRunner().invoke(edge_commands(), [str(word) for word in words])
    if told.exception is not None and not isinstance(told.exception, SystemExit):
        raise told.exception
    return " ".join(told.stderr.split())


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
