"""One organisation with a cluster: one Ray actor per party, on whatever nodes the cluster has.

Each actor builds its party itself, from a factory's name and a plain specification, as a process of `processes` does.
A host carries it, as on threads: real time, delays, lanes, a log that replays bit for bit. Here is the driver. It
starts the actors, asks each of them now and then how it is, and notices the end, a limit of time, Ctrl-C, and an actor
that died: the others are told that it is lost, and do as `on_loss` says; it is not started again.

    RAY_ADDRESS    names the cluster to use. Without it one is started on this machine, for this run and on loopback.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec

from offbeat.errors import BadInput, NotInstalled, PeerFailed
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Finish, Party, PartyName
from offbeat.runtime.contract import Look, Outcome
from offbeat.runtime.host import NO_DELAY
from offbeat.runtime.processes import STOPPED, End, end_in, interruptions, joined, restore_parties, usable_cores
from offbeat.runtime.ray_actor import PartyActor
from offbeat.runtime.simulator.costs import CostModel

log = logging.getLogger("offbeat.ray")

STORE_BYTES = 100 * 2**20
TIMELINE_MOST = 3000
_POLL_S, _POLL_EACH_S = 0.1, 0.005
_GRACE_S = {"wait": 0.5, "stop": 10.0, "continue": inf}
"""How long the others may take to end by themselves once a party is lost; nobody who only waits will."""
_SILENCE_S = {"wait": 600.0, "stop": 15.0, "continue": 15.0}
_END_S = 120.0
_KNOCK_S = 10.0
_OWN_CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its name aside: so Ray listens on loopback alone, on any system
}


@contextmanager
def cluster() -> Iterator[Any]:
    """Ray, connected: as this process is already, to the cluster that RAY_ADDRESS names, or to one of its own."""
    address = os.environ.get("RAY_ADDRESS", "local") or "local"
    ray = _imported(own=address == "local")
    if ray.is_initialized():
        yield ray
        return
    _join(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _imported(own: bool) -> Any:
    """Ray reads its variables when it is first imported. A cluster of our own admits who knows a token of its own."""
    if own and find_spec("ray") is not None:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
        fresh = "ray" not in sys.modules and not any(name in os.environ for name in token)
        for name, value in {**_OWN_CLUSTER, **(token if fresh else {})}.items():
            os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as problem:
        raise NotInstalled("the runtime 'ray' needs Ray: pip install 'offbeat[ray]'") from problem
    return ray


def _join(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    small = {
        "num_cpus": 1,  # workers made in advance; actors ask for none
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
    }
    try:
        _knock(address)
        ray.init(address=address, **quiet, **(small if address == "local" else {}))
    except (OSError, RuntimeError, ValueError) as problem:
        raise BadInput(_not_joined(address, problem)) from problem


def _knock(address: str) -> None:
    """Ray itself would go on calling for many minutes, without a word, where nobody listens."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _not_joined(address: str, problem: Exception) -> str:
    said = next(iter(str(problem).splitlines()), repr(problem))
    if address == "local":
        return f"Ray could not start a cluster on this machine: {said}"
    return (
        f"expected a Ray cluster at RAY_ADDRESS = {address!r}, and it could not be joined ({said}). Unset RAY_ADDRESS "
        "to have one started on this machine."
    )


@dataclass(slots=True)
class Ray:
    """`factory` is written 'package.module:function'; `folder`, the run folder, is seen by every node under one path.
    Of `costs` only the slow factors, the work they multiply, the lanes and the link count."""

    factory: str
    spec: Mapping[str, Any]
    folder: Path
    costs: CostModel = NO_DELAY
    on_loss: str = "wait"
    run_name: str = "run"
    until_s: float = inf
    bytes_sent: int = 0  # payload sent by anyone, known at the end

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        """Run to the end in actors; `parties`, built by the caller, then hold the final states."""
        names = tuple(party.name for party in parties)
        # Ray prints what it hears of dead workers; standard output is for the run's own document.
        with redirect_stdout(sys.stderr), interruptions() as interrupted, cluster() as ray:
            carried = _ActorRun(self, ray, names, interrupted)
            ends = carried.run()
        restore_parties(parties, ends, self.factory, self.spec, self.folder)
        outcome = carried.outcome(ends)
        self.bytes_sent = sum(tally.bytes_sent for tally in outcome.tallies.values())
        if look is not None:
            look(outcome.time_s)
        return outcome


class _ActorRun:
    """The actors of one run."""

    def __init__(self, setting: Ray, ray: Any, names: tuple[PartyName, ...], interrupted: Any) -> None:
        self.setting, self.ray, self.names, self.interrupted = setting, ray, names, interrupted
        self.actors: dict[PartyName, Any] = {}
        self.where: dict[PartyName, str] = {}
        self.gone: dict[PartyName, str] = {}  # who was lost, and how
        self.asked: dict[PartyName, tuple[Any, float]] = {}
        self.known: dict[PartyName, dict[str, Any]] = {}
        self.quiet: list[tuple[int, int]] = []
        self.give_up_s, self.began_s = inf, 0.0
        self.finish: Finish | None = None  # of the parties that have not ended by themselves
        self.stalled, self.out_of_time = "", False

    def run(self) -> dict[PartyName, End]:
        try:
            self._engage()
            while not self._over():
                time.sleep(max(_POLL_S, _POLL_EACH_S * len(self.names)))
                self._ask()
            return self._ends()
        finally:
            for actor in self.actors.values():
                self.ray.kill(actor)

    # -- beginning -----------------------------------------------------------------------------------------------

    def _engage(self) -> None:
        folder = self.setting.folder
        folder.mkdir(parents=True, exist_ok=True)
        for old in (folder / "final").glob("*"):
            old.unlink()
        # No processor is reserved: parties wait for each other most of the time, and more of them than processors must
        # be able to start. BLAS gets the threads that it has here, or a replay would differ in the last bits.
        kind = self.ray.remote(PartyActor).options(
            num_cpus=0,
            max_restarts=0,
            enable_task_events=False,  # a row in Ray's own tables for every call
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(usable_cores()))}},
        )
        self.actors = {name: kind.remote() for name in self.names}
        calls = {name: actor.build.remote(self._child(name), self._peers(name)) for name, actor in self.actors.items()}
        problems = []
        for name, call in calls.items():
            try:
                reply = decode_state(self.ray.get(call))
            except self.ray.exceptions.RayError as problem:
                reply = {"error": f"its actor could not be started: {str(problem).strip()}"}
            problems += [f"{name}: {reply['error']}"] if "error" in reply else []
            self.where[name] = f"process {reply.get('pid')} on {reply.get('node')}"
        if problems:
            raise PeerFailed(" ".join(problems))
        self.began_s = time.time()
        for actor in self.actors.values():
            actor.go.remote(self.began_s)

    def _peers(self, name: PartyName) -> dict[PartyName, Any]:
        return {other: actor for other, actor in self.actors.items() if other != name}

    def _child(self, name: PartyName) -> bytes:
        setting, torch = self.setting, sys.modules.get("torch")
        return encode_state(
            {
                "party": name,
                "factory": setting.factory,
                "path": [place for place in sys.path if place],
                "spec": dict(setting.spec),
                "folder": str(setting.folder.resolve()),
                "run": setting.run_name,
                "costs": msgspec.msgpack.encode(setting.costs),
                "timeline_max": TIMELINE_MOST // len(self.names),
                "torch_threads": int(torch.get_num_threads()) if torch is not None else 0,
            }
        )

    # -- watching ------------------------------------------------------------------------------------------------

    @property
    def _there(self) -> list[PartyName]:
        return [name for name in self.names if name not in self.gone]

    def _ask(self) -> None:
        """How are you? One question to each at a time."""
        now = time.monotonic()
        for name in self._there:
            if name not in self.asked:
                self.asked[name] = (self.actors[name].news.remote(), now)
        calls = [call for call, _ in self.asked.values()]
        ready, _ = self.ray.wait(calls, num_returns=len(calls), timeout=_POLL_S) if calls else ([], [])
        for name, (call, since_s) in list(self.asked.items()):
            if call in ready:
                del self.asked[name]
                self._hear(name, call)
            elif time.monotonic() - since_s > _SILENCE_S[self.setting.on_loss]:
                del self.asked[name]
                self._lose(name, f"did not answer for {_SILENCE_S[self.setting.on_loss]:g} s ({self.where[name]})")

    def _hear(self, name: PartyName, call: Any) -> None:
        try:
            self.known[name] = decode_state(self.ray.get(call))
        except self.ray.exceptions.RayError:
            self._lose(name, f"lost its actor ({self.where[name]})")
            return
        if self.known[name]["error"]:
            raise PeerFailed(f"{name}: {self.known[name]['error']}")

    def _lose(self, name: PartyName, how: str) -> None:
        self.gone[name] = how
        self.quiet.clear()  # the others have news
        self.ray.kill(self.actors[name])  # one that was only silent must not come back
        policy = self.setting.on_loss
        log.warning("'%s' %s; the others are told that it is lost (on_loss: %s).", name, how, policy)
        for other in self._there:
            self.actors[other].lose.remote(name)
        if _GRACE_S[policy] < inf and self.give_up_s == inf:
            self.give_up_s = time.monotonic() + _GRACE_S[policy]

    def _over(self) -> bool:
        known = [self.known.get(name, {}) for name in self._there]
        if all(news.get("finished") for news in known):
            return True
        at_rest = self._nothing_moves(known)
        if self.interrupted():
            self.finish = Finish("stopped", STOPPED)
        elif time.monotonic() >= self.give_up_s or (at_rest and self.give_up_s < inf):
            self.finish = Finish("peer-lost", "; ".join(f"'{name}' {how}" for name, how in self.gone.items()))
        elif self.began_s + self.setting.until_s <= time.time():
            self.stalled, self.out_of_time = f"stopped at the limit of {self.setting.until_s:g} seconds", True
        elif at_rest:
            waiting = [name for name in self._there if not self.known[name]["finished"]]
            self.stalled = f"nothing is left to happen, and {', '.join(waiting)} had not finished"
        return bool(self.stalled or self.finish)

    def _nothing_moves(self, known: Sequence[Mapping[str, Any]]) -> bool:
        """Twice in a row nobody has anything to do, and as much was taken as was sent: then nothing is on its way."""
        if self.asked or not all(news and news["open"] == 0 for news in known):
            self.quiet.clear()
            return False
        self.quiet.append((sum(news["sent"] for news in known), sum(news["taken"] for news in known)))
        self.quiet = self.quiet[-2:]
        return len(self.quiet) == 2 and self.quiet[0] == self.quiet[1] and self.quiet[0][0] == self.quiet[0][1]

    # -- the end -------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[PartyName, End]:
        calls = {name: self.actors[name].end.remote() for name in self._there}
        ends = {name: End(killed=f"'{name}' {how}.") for name, how in self.gone.items()}
        for name, call in calls.items():
            try:
                ends[name] = end_in(self.ray.get(call, timeout=_END_S))
            except self.ray.exceptions.RayError:  # a timeout is one of them
                ends[name] = End(killed=f"'{name}' lost its actor ({self.where[name]}) when the run ended.")
            outcome = ends[name].outcome
            if outcome is not None and not outcome.finished and self.finish is not None:
                ends[name] = End(replace(outcome, finished={name: self.finish}))
        return {name: ends[name] for name in self.names}

    def outcome(self, ends: Mapping[PartyName, End]) -> Outcome:
        """As of processes, with what only the driver of actors knows: why a run ended early."""
        found = joined(ends)
        return replace(found, stalled=self.stalled or found.stalled, out_of_time=self.out_of_time)
