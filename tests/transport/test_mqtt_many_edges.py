"""Edge processes over Mosquitto, six or twenty, through a broker restart and two kills: as accurate as simulated.

Pictures are MNIST's where they are found and generated ones elsewhere; the test's output says which.
"""

import json
import os
import subprocess
import sys
import threading

import msgspec
import numpy as np
import pytest

pytest.importorskip("paho.mqtt.client", reason="the extra `mqtt` is not installed")

from mosquitto import Broker, need_mosquitto
from test_mqtt import raw_client

from offbeat.algorithms.mapa import CLOUD, MESSAGES, Upload
from offbeat.data.horizontal import HorizontalData, horizontal_from_arrays
from offbeat.data.load import load_images
from offbeat.data.places import find_set
from offbeat.families.horizontal import rows_for
from offbeat.jobs.horizontal import edge_job_from
from offbeat.jobs.rules import model_of
from offbeat.message.codec import Codec
from offbeat.run.experiment import run_experiment
from offbeat.runtime.delivery import Packet

UPDATES_EACH = 60
JOB = {
    "run": "many",
    "algorithm": "steady",
    "batch": 150,
    "lag_max": 200,
    "seed": 7,
    "retry_s": 1.0,
    "model": {"kind": "softmax", "features": 784, "classes": 10, "rows": "unit", "row_norm": 4.0},
    "rate": {"step": 0.3, "clip": 2.0},  # well within what a lag of twenty allows
    "privacy": {"mode": "sound", "epsilon": 8.0, "uploads": 150},
}


def pictures(edges: int) -> HorizontalData:
    images = load_images("mnist" if find_set("mnist") is not None else "digits-like")
    kept = np.random.default_rng(0).permutation(images.y_train.size)[: 1_500 * edges]
    return horizontal_from_arrays(
        images.x_train[kept], images.y_train[kept], images.x_test, images.y_test, edges, source=images.source
    )


def toml(tree):
    lines = [f"{key} = {json.dumps(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, table in tree.items():
        if isinstance(table, dict):
            lines += [f"[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


class Spy:
    """Reads every upload on its way to the cloud: the truth that ledgers are held to."""

    def __init__(self, broker):
        self.codec, self.uploads, self.conflicts = Codec(MESSAGES), {}, []
        self.news = threading.Condition()
        self.client = raw_client(broker, "cloud", "spy")
        self.client.on_connect = lambda client, *_: client.subscribe("offbeat/many/to/cloud/+", 1)
        self.client.on_message = self._heard
        self.client.subscribe("offbeat/many/to/cloud/+", 1)

    def _heard(self, client, userdata, message):
        sender = message.topic.rpartition("/")[2]
        for frame in msgspec.msgpack.decode(message.payload, type=Packet[bytes]).frames:
            body = self.codec.decode(frame)
            if isinstance(body, Upload):
                with self.news:
                    mine = self.uploads.setdefault(sender, {})
                    content = hash(body.gradient.tobytes())
                    if mine.setdefault(body.number, content) != content:
                        self.conflicts.append((sender, body.number))
                    self.news.notify_all()

    def count(self):
        return sum(len(mine) for mine in self.uploads.values())

    def wait_for(self, uploads, seconds):
        with self.news:
            assert self.news.wait_for(lambda: self.count() >= uploads, seconds), f"only {self.count()} uploads"

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


class Site:
    """One party as an operating-system process."""

    def __init__(self, folder, broker, name, *arguments):
        self.folder, self.name, self.starts = folder, name, 0
        role = "cloud" if name == "cloud" else "edge"
        self.command = [
            sys.executable, "-m", "offbeat", role, "serve", str(folder / "job.toml"), *arguments,
            "--identity", str(broker.identity(name)), "--state", str(folder / "state"),
            "--broker", f"127.0.0.1:{broker.port}", "--json",
        ]  # fmt: skip
        self.process = None

    def start(self):
        self.starts += 1
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        out = open(self.folder / f"{self.name}.{self.starts}.json", "wb")  # noqa: SIM115
        err = open(self.folder / f"{self.name}.{self.starts}.err", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(self.command, stdout=out, stderr=err, env=environment)
        return self

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def result(self, seconds):
        """Whoever was killed may be back after the cloud has left, and then nobody answers it."""
        code = self.process.wait(seconds)
        error = (self.folder / f"{self.name}.{self.starts}.err").read_text()
        assert code == 0 or (code == 3 and self.starts > 1), f"{self.name} ended with {code}: {error[-2000:]}"
        return json.loads((self.folder / f"{self.name}.{self.starts}.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("edges", [6, 20])
def test_edge_processes_survive_a_broker_restart_and_two_kills(tmp_path, capsys, edges):
    need_mosquitto()
    data, updates = pictures(edges), UPDATES_EACH * edges
    wanted = {**JOB, "updates": updates}
    job = edge_job_from(wanted)
    (tmp_path / "job.toml").write_text(toml(wanted))
    for name, (x, y) in data.edges.items():
        np.savez(tmp_path / f"{name}.npz", x=np.asarray(x, dtype=np.float32), y=y)
    broker = Broker(tmp_path / "broker", data.names).start()
    sites = {
        name: Site(tmp_path, broker, name, "--name", name, "--data", str(tmp_path / f"{name}.npz"))
        for name in data.names
    }
    cloud = Site(tmp_path, broker, "cloud", "--edges", ",".join(data.names))
    spy = Spy(broker)
    try:
        for site in (cloud, *sites.values()):
            site.start()
        spy.wait_for(updates // 10, 240)
        broker.stop()
        broker.start()
        spy.wait_for(4 * updates // 10, 240)
        victims = [sites[name] for name in data.names[3:5]]
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.start()
        ended = cloud.result(240)
        stated_by = {name: site.result(120) for name, site in sites.items()}
    finally:
        for site in (cloud, *sites.values()):
            if site.process is not None and site.process.poll() is None:
                site.kill()
        spy.close()
        broker.stop()
    assert ended["verdict"] == "passes" and ended["version"] == updates
    assert sum(ended["applied"].values()) == updates, "an upload was applied twice or lost its count"
    assert not spy.conflicts, "two different uploads under one number"
    for name, stated in stated_by.items():
        released = spy.uploads.get(name, {})
        assert stated["privacy"]["releases"] >= max(released, default=0)
        assert stated["privacy"]["releases"] >= len(released) >= ended["applied"].get(name, 0) - 60
        assert stated["privacy"]["releases"] >= ended["applied"].get(name, 0)
        assert stated["privacy"]["epsilon"] <= 8.0
    assert ended["mqtt_connections"] >= 2, "the broker's restart was not noticed"
    _compare_with_simulator(data, job, tmp_path, capsys, ended)


def _compare_with_simulator(data, job, folder, capsys, ended):
    from safetensors.numpy import load_file

    averaged = run_experiment(data, job).models[CLOUD].arrays["averaged"]
    model, test = model_of(job), rows_for(job, data.x_test, data.y_test)
    parameters = load_file(folder / "state" / "model.safetensors")["averaged"]
    found, expected = model.accuracy(parameters, test), model.accuracy(averaged, test)
    with capsys.disabled():
        print(
            f"\n  {data.source}: {found:.4f} over the broker, {expected:.4f} simulated; {ended['seconds']:.1f} s, "
            f"{ended['refused']} refused, {ended['repeated']} repeated"
        )
    assert abs(found - expected) < 0.02
