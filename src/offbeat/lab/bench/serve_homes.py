"""Three organisations in three folders, with daemons in processes of their own and slow wires between them."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.errors import PeerFailed
from offbeat.jobs.organisations import OrgJob, OrgMethod, OrgModel, OrgRows
from offbeat.orgs.client import ask
from offbeat.orgs.control import Ping, Status, Submit
from offbeat.orgs.party_config import CONTROL_FILE, example
from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity, write_private, write_roster
from offbeat.runtime.processes import free_ports
from offbeat.testing.link_proxy import LinkProxy

NAMES = ("bank", "shop", "telecom")
COLUMNS = 8
TRAINED_ROWS = 2000
WITHIN_S = 180.0
PAUSE_S = 0.05


class Homes:
    """The folders, the wires and the daemons. Close it."""

    def __init__(self, folder: Path, round_trip_s: float) -> None:
        self.folder, self.round_trip_s = folder, round_trip_s
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._wires: Any = None

    def make(self) -> None:
        """Keys, rosters that name the slow wires, settings, small tables to train on."""
        ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
        addresses = self._lay_wires({name: f"127.0.0.1:{port}" for name, port in ports.items()})
        identities = {name: new_identity(name) for name in NAMES}
        roster = PinnedRoster(
            tuple(Member(name, one.certificate_pem, addresses[name]) for name, one in identities.items())
        )
        for name, identity in identities.items():
            home = self.folder / name
            write_private(home / "keys" / f"{name}.key", identity.key_pem)
            (home / "keys" / f"{name}.crt").write_bytes(identity.certificate_pem)
            write_roster(home / "roster.toml", roster)
            text = example(
                name,
                data="table.parquet",
                label="label" if name == "bank" else "",
                listen=f"127.0.0.1:{ports[name]}",
                jobs=("scores",),
                initiators=("bank",),
                leaders=("bank",),
                labels_for=("any",),
                predictions_for=("bank",),
            )
            (home / "party.toml").write_text(text, encoding="utf-8")
            self.table(name, TRAINED_ROWS)

    def table(self, name: str, rows: int) -> None:
        """The same ids at every party, in an order of its own."""
        import pandas

        place = NAMES.index(name)
        rng = np.random.default_rng(place)
        order = rng.permutation(rows)
        frame = pandas.DataFrame({f"{name}{j}": rng.standard_normal(rows) for j in range(COLUMNS)})
        frame.insert(0, "id", [f"P{i:07d}" for i in order])
        if name == "bank":
            frame["label"] = (frame["bank0"] + rng.standard_normal(rows) > 0).astype(int)
        unfinished = self.folder / name / "table.new.parquet"
        frame.to_parquet(unfinished)
        unfinished.rename(self.folder / name / "table.parquet")

    def start(self) -> None:
        for name in NAMES:
            self.process(name, "party", "serve", "--home", str(self.folder / name))
        for name in NAMES:
            self._until(lambda name=name: self._answers(name))

    def process(self, name: str, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "offbeat", *arguments], stdout=log, stderr=log, env=environment
            )

    def train(self) -> str:
        job = OrgJob(
            name="scores",
            parties=NAMES,
            labels_at=("bank",),
            method=OrgMethod(algorithm="vfb2-svrg", target=1e-3, passes=30.0),
            model=OrgModel(strength=0.01),
            rows=OrgRows(test_fraction=0.0),
        )
        run: str = ask(self.folder / "bank", Submit(job.text), timeout_s=WITHIN_S).run
        self._until(lambda: all(self._phase(name, run) == "done" for name in NAMES))
        return run

    def memory(self) -> dict[str, dict[str, float]]:
        """Of each process: megabytes now and at most."""
        return {name: _memory(process.pid) for name, process in self.processes.items()}

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(30)
        if self._wires is not None:
            self._wires.terminate()
            self._wires.join()

    def _lay_wires(self, targets: Mapping[str, str]) -> Mapping[str, str]:
        """The wires are a process of their own: they must not wait for the clock of whoever measures."""
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._wires = context.Process(target=_wires, args=(dict(targets), self.round_trip_s, theirs), daemon=True)
        self._wires.start()
        addresses: Mapping[str, str] = ours.recv()
        return addresses

    def _answers(self, name: str) -> bool:
        if not (self.folder / name / "private" / CONTROL_FILE).is_file():
            return False
        try:
            ask(self.folder / name, Ping(), timeout_s=5.0)
        except PeerFailed:
            return False
        return True

    def _phase(self, name: str, run: str) -> str:
        phase: str = ask(self.folder / name, Status(run)).phase
        if phase in ("failed", "refused", "stopped"):
            raise PeerFailed(f"the training ended as '{phase}' at '{name}'; see the logs in {self.folder}.")
        return phase

    def _until(self, ready: Any) -> None:
        end_s = time.monotonic() + WITHIN_S
        while not ready():
            if time.monotonic() > end_s:
                raise PeerFailed(f"waited {WITHIN_S:.0f} s in vain; see the logs in {self.folder}.")
            time.sleep(PAUSE_S)


def _wires(targets: dict[str, str], round_trip_s: float, told: Connection) -> None:
    import signal

    told.send({name: LinkProxy(target, round_trip_s=round_trip_s).start() for name, target in targets.items()})
    signal.pause()


def _memory(pid: int) -> dict[str, float]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {key: float(lines[field].split()[0]) / 1024 for key, field in (("now", "VmRSS"), ("most", "VmHWM"))}
