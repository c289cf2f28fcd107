"""Three organisations in three folders of this machine, with daemons in this process or in processes of their own."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.families.linear import penalty_of
from offbeat.jobs.organisations import OrgJob, OrgMethod, OrgModel, OrgNetwork, OrgRows
from offbeat.learning.central import descend, optimum, products
from offbeat.learning.losses import weighted
from offbeat.learning.orders import Order
from offbeat.orgs import control
from offbeat.orgs.client import ask
from offbeat.orgs.daemon import Daemon
from offbeat.orgs.party_config import example, read_home
from offbeat.orgs.rows import load_table, own_rows
from offbeat.orgs.train import vertical_of
from offbeat.runtime.checkpoint import read_checkpoint
from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity, write_private, write_roster
from offbeat.runtime.processes import free_ports

NAMES = ("bank", "shop", "telecom")
ROWS = 240
WITHIN_S = 180.0
SCORES_AGREE = 1e-5  # a gap of 1e-13 at a strength of 0.05: |x| sqrt(2 gap / strength) is some 7e-6
AUCS_AGREE = 0.01  # two runs to a gap of 1e-9 may order a pair or two of nearly equal scores otherwise


def job(**method: object) -> OrgJob:
    options = {"algorithm": "vfb2-svrg", "target": 1e-13, "passes": 500.0, **method}
    return OrgJob(
        name="credit",
        parties=NAMES,
        labels_at=("bank",),
        method=OrgMethod(**options),  # type: ignore[arg-type]
        model=OrgModel(strength=0.05),
        rows=OrgRows(test_fraction=0.25),
        network=OrgNetwork(loss_s=20.0, wait_s=60.0),
    )


class Town:
    """Three organisations in three folders; their daemons, here in one process."""

    def __init__(self, folder: Path, *, silent: str = "", names: tuple[str, ...] = NAMES, columns: int = 4) -> None:
        self.folder, self.silent, self.names, self.columns = folder, silent, names, columns
        self.daemons: dict[str, Daemon] = {}
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        identities = {name: new_identity(name) for name in names}
        members = []
        for name, identity in identities.items():
            place = folder / name
            write_private(place / "keys" / f"{name}.key", identity.key_pem)
            (place / "keys" / f"{name}.crt").write_bytes(identity.certificate_pem)
            address = "" if name == silent else f"127.0.0.1:{self.ports[name]}"
            members.append(Member(name, identity.certificate_pem, address))
        self.roster = PinnedRoster(tuple(members))
        for k, name in enumerate(names):
            write_roster(folder / name / "roster.toml", self.roster)
            self.settings(name)
            self.table(name, k)

    def settings(self, name: str, **policy: str) -> None:
        listen = "" if name == self.silent else f"127.0.0.1:{self.ports[name]}"
        allowed = {"initiators": ("any",), "leaders": ("bank",), "labels_for": ("any",), "predictions_for": ("any",)}
        label = "bad" if name == "bank" else ""
        text = example(name, data="table.csv", label=label, listen=listen, jobs=("credit",), **allowed)
        for key, value in policy.items():
            (line,) = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
            text = text.replace(line, f"{key} = {value}")
        (self.folder / name / "party.toml").write_text(text)

    def table(self, name: str, k: int, rows: int = ROWS) -> None:
        """Columns of its own, its own order of rows, ten rows that others lack."""
        rng, width = np.random.default_rng(0), self.columns
        X = rng.standard_normal((rows + 40, 4 * width))
        y = (X @ rng.standard_normal(4 * width) + rng.standard_normal(rows + 40) > 0).astype(int)
        order = np.random.default_rng(k + 1).permutation([*range(rows), *range(rows + 10 * k, rows + 10 * k + 10)])
        head = ["id", *(f"{name}{j}" for j in range(width)), *(["bad"] if name == "bank" else [])]
        lines = [",".join(head)]
        for i in order:
            label = [str(y[i])] if name == "bank" else []
            lines.append(",".join([f"c{i}", *(repr(float(v)) for v in X[i, width * k : width * (k + 1)]), *label]))
        (self.folder / name / "table.csv").write_text("\n".join(lines) + "\n")

    def open(self, *names: str) -> "Town":
        """Daemons in this process: of these, or of all."""
        for name in names or self.names:
            self.daemons[name] = Daemon(read_home(self.folder / name))
            self.daemons[name].start()
        return self

    def restart(self, name: str) -> None:
        self.daemons[name].stop()
        self.daemons[name] = Daemon(read_home(self.folder / name))
        self.daemons[name].start()

    def close(self) -> None:
        for daemon in self.daemons.values():
            daemon.stop()

    def ask(self, name: str, request: control.Request) -> object:
        return ask(self.folder / name, request, timeout_s=60.0)

    def submit(self, wanted: OrgJob) -> str:
        submitted = self.ask("bank", control.Submit(wanted.text))
        assert isinstance(submitted, control.Submitted)
        return submitted.run

    def ended(self, name: str, run: str) -> control.RunStatus:
        """Wait for the run's end at this party."""
        thread = self.daemons[name]._threads.get(run)
        if thread is not None:
            thread.join(WITHIN_S)
        status = self.ask(name, control.Status(run))
        assert isinstance(status, control.RunStatus)
        assert status.ended, status
        return status


def labels_at(town: Town, name: str = "bank") -> dict[str, float]:
    """By id: the label of every row that all parties have, from the label holder's own table."""
    lines = (town.folder / name / "table.csv").read_text().splitlines()[1:]
    own = {line.split(",")[0]: float(line.split(",")[-1]) for line in lines}
    return {f"c{i}": own[f"c{i}"] for i in range(ROWS)}


def pooled_scores(town: Town, run: str, wanted: OrgJob) -> dict[str, Any]:
    """By id: the score of the centralised model on the pooled tables, as only a test can compute it."""
    train, whole, labels, ids, loss = [], [], None, [], wanted.loss
    orders: list[Order] = []
    for name in wanted.parties:
        home = read_home(town.folder / name)
        table, kept = load_table(home), read_checkpoint(home.private / run, "alignment")
        assert kept is not None
        own = own_rows(home, table, wanted, kept["rows"], kept["tokens"], kept["coin"])
        before = sum(block.shape[1] for block in train)
        orders += [(before + start, before + stop, sign) for start, stop, sign in own.fitted.orders]
        train.append(own.train)
        whole.append(np.vstack([own.train, own.test]))
        if own.y_train is not None:
            labels, loss = own.y_train, weighted(loss, own.weights)
            row_of = dict(zip(kept["tokens"], kept["rows"].tolist(), strict=True))
            ids = [str(table.ids[row_of[token]]) for token in (*own.tokens_train, *own.tokens_test)]
    assert labels is not None
    train.append(np.ones((len(labels), 1)))
    whole.append(np.ones((len(ids), 1)))
    X, penalty, strength = np.hstack(train), penalty_of(vertical_of(wanted)), wanted.model.strength
    if penalty.l1 > 0.0 or orders:
        weights = descend(X, labels, np.zeros(X.shape[1]), loss, penalty, strength, free=1, orders=orders)
    else:
        weights, _ = optimum(X, labels, loss, strength, free=1, tolerance=1e-12)
    return dict(zip(ids, products(np.hstack(whole), weights, loss).T, strict=True))


def serve(town: Town, name: str) -> "subprocess.Popen[bytes]":
    code = "from offbeat.cli.orgs import party_serve; import sys, pathlib; party_serve(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    (town.folder / name / "private" / "control").unlink(missing_ok=True)
    with (town.folder / name / "daemon.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(town.folder / name)], stdout=log, stderr=log, env=environment
        )
    wait_until(lambda: (town.folder / name / "private" / "control").is_file() or child.poll() is not None)
    assert child.poll() is None, (town.folder / name / "daemon.log").read_text()
    return child


def wait_until(ready, look_s: float = 0.02) -> None:  # type: ignore[no-untyped-def]
    never = threading.Event()
    for _ in range(int(WITHIN_S / look_s)):
        if ready():
            return
        never.wait(look_s)
    raise AssertionError("waited in vain")
