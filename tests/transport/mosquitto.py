"""A real Mosquitto on loopback, with TLS and access rules, that can be stopped and started again."""

import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from offbeat.runtime.broker import BrokerPlan, write_broker

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def need_mosquitto():
    if MOSQUITTO is None:
        pytest.skip("no mosquitto on this machine (Debian: apt-get install mosquitto)")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    """Certificates and configuration by our own generator; the process by the test."""

    def __init__(self, folder: Path, edges):
        self.folder = folder
        self.port = free_port()
        plan = BrokerPlan(tuple(edges), bind="127.0.0.1", port=self.port, run_as=getpass.getuser())
        self.configuration = write_broker(folder, plan)
        self.process = None

    def start(self):
        log = open(self.folder / "mosquitto.log", "ab")  # noqa: SIM115  (lives as long as the process)
        self.process = subprocess.Popen([MOSQUITTO, "-c", str(self.configuration)], stdout=log, stderr=log)
        self._wait_until_open()
        return self

    def _wait_until_open(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "mosquitto.log").read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            self.process_is_starting()
        raise AssertionError("mosquitto did not open its port")

    def process_is_starting(self):
        try:
            self.process.wait(0.05)
        except subprocess.TimeoutExpired:
            return

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)

    def identity(self, name):
        return self.folder / "parties" / name
