"""Killed, cut off and stalled: every run ends with its certificate or with a stated verdict, in bounded time.

Real processes, real algorithm (VFB2-SVRG under pairwise masks). A failure prints the seed of its round.
"""

import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from linear_toy import build, check_logs, pooled_scores, scores

from offbeat.audit.transcripts import verify_runs
from offbeat.runtime.contract import Outcome
from offbeat.runtime.processes import Processes, free_ports
from offbeat.testing.link_proxy import LinkProxy

NAMES = ("bank", "shop", "telecom")
SPEC: dict[str, Any] = {"names": NAMES, "rows": 3000, "widths": [6, 7, 5], "method": {"target": 1e-300, "passes": 60}}
"""No gap is that small: the run makes all its passes, however its rounding errors fall."""
LOG_BYTES_SEEN = 250_000  # about a third of the smallest log of a whole run
WATCH_S = 0.005

Children = Mapping[str, "subprocess.Popen[bytes]"]


class Watcher:
    """Does something to the processes when their logs have grown so far: chaos by progress, not by the clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.over = threading.Event()
        self.done: list[str] = []

    def log_bytes(self, name: str) -> int:
        path = self.folder / "events" / f"{name}.log"
        return path.stat().st_size if path.is_file() else 0

    def wait_for(self, name: str, size: int) -> bool:
        """False if the run ended first."""
        while not self.over.wait(WATCH_S):
            if self.log_bytes(name) >= size:
                return True
        return False

    def start(self, act: Callable[[Children], None]) -> Callable[[Children], None]:
        def begin(children: Children) -> None:
            threading.Thread(target=act, args=(children,), daemon=True).start()

        return begin


def run(folder: Path, spec: dict[str, Any], **setting: Any) -> tuple[Outcome, list[Any]]:
    parties = [build(spec, name)[0] for name in spec["names"]]
    session = {"checkpoint_s": 0.3, "beat_s": 0.1, "silence_s": 1.0, "loss_s": 30.0, **setting.pop("session", {})}
    outcome = Processes("linear_toy:build", spec, folder, session=session, timeout_s=120, **setting).run(parties)
    return outcome, parties


def assert_certified(outcome: Outcome, parties: list[Any], spec: dict[str, Any]) -> None:
    assert {finish.verdict for finish in outcome.finished.values()} == {"passes"}, outcome.finished
    gaps = [value["gap"] for _, _, what, value in outcome.observations if what == "certificate"]
    assert gaps and min(gaps) <= 1e-6
    assert np.abs(scores(parties, spec) - pooled_scores(spec)).max() < 1e-5


def kill_at_random(watcher: Watcher, rng: random.Random, kills: int) -> Callable[[Children], None]:
    def act(children: Children) -> None:
        for _ in range(kills):
            victim = rng.choice(NAMES)
            size = watcher.log_bytes(victim) + rng.randint(1, LOG_BYTES_SEEN // kills)
            if not watcher.wait_for(victim, size):
                return
            children[victim].kill()
            watcher.done.append(victim)

    return act


def kill_round(folder: Path, seed: int, kills: int) -> int:
    """One run in which parties are killed by kill -9 at random moments, and start again; how many kills it took."""
    print(f"chaos seed {seed}")
    watcher = Watcher(folder)
    act = kill_at_random(watcher, random.Random(seed), kills)
    outcome, parties = run(folder, SPEC, restarts=100, started=watcher.start(act))
    watcher.over.set()
    assert_certified(outcome, parties, SPEC)
    check_logs(SPEC, folder, outcome.digest)
    assert not verify_runs([folder])["parties"], "whoever was killed has changed nothing"
    return len(watcher.done)


def test_killed_parties_come_back_and_the_run_ends_with_its_certificate(tmp_path: Path) -> None:
    killed = kill_round(tmp_path, 0, kills=7)
    assert killed >= 5, f"only {killed} kills hit a running party"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_more_rounds_of_kills(tmp_path: Path, seed: int) -> None:
    assert kill_round(tmp_path, seed, kills=6) > 0


def proxied(listen: dict[str, int], caller: str, peer: str) -> tuple[LinkProxy, dict[tuple[str, str], str]]:
    proxy = LinkProxy(f"127.0.0.1:{listen[peer]}")
    return proxy, {(caller, peer): proxy.start()}


def cut_link_round(folder: Path, cut_s: float) -> None:
    """The link between shop and bank carries nothing for a while, and nobody is told; then it heals."""
    listen = dict(zip(NAMES, free_ports(3), strict=True))
    proxy, addresses = proxied(listen, "shop", "bank")  # the later name calls the earlier
    watcher = Watcher(folder)

    def act(children: Children) -> None:
        if watcher.wait_for("bank", 100_000):
            proxy.cut()
            watcher.done.append("cut")
            watcher.over.wait(cut_s)
            proxy.heal()

    outcome, parties = run(folder, SPEC, listen=listen, addresses=addresses, started=watcher.start(act))
    watcher.over.set()
    proxy.stop()
    assert watcher.done == ["cut"]
    assert_certified(outcome, parties, SPEC)
    check_logs(SPEC, folder, outcome.digest)


def test_a_link_that_is_cut_for_a_while_costs_nothing_but_time(tmp_path: Path) -> None:
    cut_link_round(tmp_path, cut_s=3.0)


@pytest.mark.slow
def test_a_link_that_is_cut_for_ten_seconds_costs_nothing_but_time(tmp_path: Path) -> None:
    cut_link_round(tmp_path, cut_s=10.0)


class Namespace:
    """A network namespace of its own for one party, joined to this machine by a cable that can be pulled."""

    def __init__(self, name: str) -> None:
        self.name, self.cable = f"offbeat-{name}-{os.getpid()}", f"ob{os.getpid() % 10**7}"
        self.here, self.there = "10.211.77.1", "10.211.77.2"

    def __enter__(self) -> "Namespace":
        inner = f"{self.cable}i"
        ip("netns", "add", self.name)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", inner, "netns", self.name)
        ip("addr", "add", f"{self.here}/30", "dev", self.cable)
        ip("link", "set", self.cable, "up")
        ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", inner)
        ip("-n", self.name, "link", "set", inner, "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *problem: object) -> None:
        ip("netns", "del", self.name)  # the cable goes with it

    def pull(self) -> None:
        ip("link", "set", self.cable, "down")

    def plug(self) -> None:
        ip("link", "set", self.cable, "up")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the command ip; the cut through a proxy is tested all the same")
    try:
        with Namespace("shop") as made:
            yield made
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"no network namespace can be made here: {problem.stderr.decode().strip()}")


def pulled_cable_round(folder: Path, namespace: Namespace, cut_s: float) -> None:
    """The shop is alone on the other end of a cable; it is pulled for a while, and plugged in again."""
    listen = dict(zip(NAMES, free_ports(3), strict=True))
    here = {("shop", name): f"{namespace.here}:{listen[name]}" for name in ("bank", "telecom")}
    there = {(name, "shop"): f"{namespace.there}:{listen['shop']}" for name in ("bank", "telecom")}
    watcher = Watcher(folder)

    def act(children: Children) -> None:
        if watcher.wait_for("bank", 100_000):
            namespace.pull()
            watcher.done.append("cut")
            watcher.over.wait(cut_s)
            namespace.plug()

    setting = {"listen": listen, "addresses": here | there, "host": "0.0.0.0"}
    within = {"shop": ("ip", "netns", "exec", namespace.name)}
    outcome, parties = run(folder, SPEC, started=watcher.start(act), within=within, **setting)
    watcher.over.set()
    assert watcher.done == ["cut"]
    assert_certified(outcome, parties, SPEC)
    check_logs(SPEC, folder, outcome.digest)


@pytest.mark.slow
def test_a_cable_that_is_pulled_for_ten_seconds_costs_nothing_but_time(tmp_path: Path, namespace: Namespace) -> None:
    pulled_cable_round(tmp_path, namespace, cut_s=10.0)


def test_connections_that_break_again_and_again_lose_nothing(tmp_path: Path) -> None:
    listen = dict(zip(NAMES, free_ports(3), strict=True))
    proxy, addresses = proxied(listen, "shop", "bank")
    watcher = Watcher(tmp_path)

    def act(children: Children) -> None:
        for step in range(1, 9):
            if not watcher.wait_for("bank", 40_000 * step):
                return
            proxy.drop()
            watcher.done.append("drop")

    outcome, parties = run(tmp_path, SPEC, listen=listen, addresses=addresses, started=watcher.start(act))
    watcher.over.set()
    proxy.stop()
    assert len(watcher.done) >= 5
    assert_certified(outcome, parties, SPEC)
    check_logs(SPEC, tmp_path, outcome.digest)


def test_a_stalled_peer_that_wakes_up_is_waited_for(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)

    def act(children: Children) -> None:
        if watcher.wait_for("telecom", 60_000):
            children["telecom"].send_signal(signal.SIGSTOP)
            watcher.done.append("stalled")
            watcher.over.wait(3.0)
            children["telecom"].send_signal(signal.SIGCONT)

    outcome, parties = run(tmp_path, SPEC, started=watcher.start(act))
    watcher.over.set()
    assert watcher.done == ["stalled"]
    assert_certified(outcome, parties, SPEC)


def test_a_peer_that_stalls_for_good_ends_the_run_with_a_verdict(tmp_path: Path) -> None:
    spec = SPEC | {"on_loss": "stop"}
    watcher = Watcher(tmp_path)

    def act(children: Children) -> None:
        if watcher.wait_for("telecom", 60_000):
            children["telecom"].send_signal(signal.SIGSTOP)
            watcher.done.append("stalled")
            for name in ("bank", "shop"):
                children[name].wait(60)
            children["telecom"].kill()

    session = {"on_loss": "stop", "loss_s": 2.0, "grace_s": 2.0, "linger_s": 3.0, "greet_s": 60.0}
    outcome, _ = run(tmp_path, spec, session=session, started=watcher.start(act))
    assert set(outcome.finished) == {"bank", "shop"} and outcome.lost == ("telecom",)
    assert all(end.verdict == "peer-lost" and "telecom" in end.reason for end in outcome.finished.values()), outcome


FOUR = SPEC | {"names": (*NAMES, "utility"), "widths": [6, 7, 5, 4], "on_loss": "continue"}


@pytest.mark.parametrize("returns", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_others_go_on_without_a_lost_party_and_take_it_back(tmp_path: Path, returns: bool) -> None:
    """Four parties, `continue`: the utility is killed; three go on under a new roster epoch, and end certified."""
    watcher = Watcher(tmp_path)

    def act(children: Children) -> None:
        if watcher.wait_for("utility", 40_000):
            children["utility"].kill()
            watcher.done.append("killed")

    session = {"on_loss": "continue", "loss_s": 1.5, "greet_s": 60.0, "linger_s": 5.0}
    setting = {"session": session, "started": watcher.start(act), "restarts": int(returns)}
    if returns:  # a longer wire keeps the run going until the utility is back, however long its process takes to start
        listen = dict(zip(FOUR["names"], free_ports(4), strict=True))
        proxy = LinkProxy(f"127.0.0.1:{listen['bank']}", round_trip_s=0.1)
        outcome, parties = run(tmp_path, FOUR, listen=listen, addresses={("shop", "bank"): proxy.start()}, **setting)
        proxy.stop()
        assert_certified(outcome, parties, FOUR)
    else:
        outcome, _ = run(tmp_path, FOUR, **setting)
        assert {name: end.verdict for name, end in outcome.finished.items()} == dict.fromkeys(NAMES, "passes"), outcome
        assert outcome.lost == ("utility",)
    watcher.over.set()
    assert watcher.done == ["killed"]
