"""One machine, real isolation: each party in an operating-system process of its own, over the gRPC runtime.

There is no second protocol here: the processes talk over loopback with mutual TLS, under keys made for this run and
thrown away with it. A process builds its party itself, from a factory's name and a plain specification, so no object
is ever pickled. With `restarts` a process that dies is started again, and goes on from its log.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from offbeat.errors import BadInput, NotInstalled, OffbeatError, PeerFailed
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Finish, Message, Party, PartyName
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint
from offbeat.runtime.contract import Look, Outcome, Tally

Built = tuple[Party, tuple[type[Message], ...]]
Factory = Callable[[Mapping[str, Any], PartyName], Built]
"""Builds one party, and names its message types, from a specification that fits into JSON."""

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Processes:
    """`factory` is written 'package.module:function'. `folder` is the run folder; `session` sets fields of the
    session's options; `addresses` lets something stand between the parties (a proxy that slows or cuts links);
    `within` starts a party by another command, such as `ip netns exec NAME`, and `host` is where all listen then."""

    factory: str
    spec: Mapping[str, Any]
    folder: Path
    session: Mapping[str, Any] | None = None
    run_name: str = "run"
    restarts: int = 0
    timeout_s: float = 3600.0
    addresses: Mapping[tuple[PartyName, PartyName], str] | None = None
    started: Callable[[Mapping[PartyName, "subprocess.Popen[bytes]"]], None] | None = None
    listen: Mapping[PartyName, int] | None = None
    host: str = "127.0.0.1"
    within: Mapping[PartyName, Sequence[str]] | None = None

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        """Run to the end in processes; `parties`, built by the caller, then hold the final states."""
        try:
            import grpc  # noqa: F401
        except ImportError as problem:
            raise NotInstalled("the runtime 'processes' needs gRPC: pip install 'offbeat[grpc]'") from problem
        names = tuple(party.name for party in parties)
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="offbeat-keys-") as keys:
            ends = _Family(self, names, Path(keys)).run()
        for party in parties:
            state = read_checkpoint(self.folder / "final", party.name)
            if state is not None:
                party.restore(state)
        outcome = _joined(ends, time.monotonic() - begin)
        if look is not None:
            look(outcome.time_s)
        return outcome


class _Family:
    """The processes of one run."""

    def __init__(self, setting: Processes, names: tuple[PartyName, ...], keys: Path) -> None:
        self.setting, self.names, self.keys = setting, names, keys
        self.children: dict[PartyName, subprocess.Popen[bytes]] = {}
        self.restarts = dict.fromkeys(names, 0)

    def run(self) -> dict[PartyName, dict[str, Any]]:
        self._prepare()
        try:
            for name in self.names:
                self._start(name)
            if self.setting.started is not None:
                self.setting.started(self.children)
            self._wait()
        finally:
            for child in self.children.values():
                if child.poll() is None:
                    child.kill()
                child.wait()
        return {name: self._end(name) for name in self.names}

    def _prepare(self) -> None:
        from offbeat.runtime.grpc.identity import Member, Roster, new_identity, write_private, write_roster

        for place in ("ends", "final"):
            for old in (self.setting.folder / place).glob("*"):
                old.unlink()
        ports = dict(self.setting.listen or zip(self.names, free_ports(len(self.names)), strict=True))
        identities = {name: new_identity(name) for name in self.names}
        for name, identity in identities.items():
            write_private(self.keys / f"{name}.key", identity.key_pem)
            (self.keys / f"{name}.crt").write_bytes(identity.certificate_pem)
        for name in self.names:
            members = [
                Member(other, identities[other].certificate_pem, self._address(name, other, ports[other]))
                for other in self.names
            ]
            write_roster(self.keys / f"{name}.roster.toml", Roster(tuple(members)))
        for name in self.names:
            self._child_file(name).write_text(
                json.dumps(self._child(name, f"{self.setting.host}:{ports[name]}")), encoding="utf-8"
            )

    def _address(self, caller: PartyName, peer: PartyName, port: int) -> str:
        return (self.setting.addresses or {}).get((caller, peer), f"127.0.0.1:{port}")

    def _child_file(self, name: PartyName) -> Path:
        return self.keys / f"{name}.child.json"

    def _child(self, name: PartyName, listen: str) -> dict[str, Any]:
        setting = self.setting
        return {
            "party": name,
            "peers": list(self.names),
            "run": setting.run_name,
            "factory": setting.factory,
            "spec": dict(setting.spec),
            "folder": str(setting.folder.resolve()),
            "keys": str(self.keys),
            "listen": listen,
            "session": dict(setting.session or {}),
        }

    def _start(self, name: PartyName) -> None:
        errors = self.setting.folder / "processes"
        errors.mkdir(parents=True, exist_ok=True)
        with (errors / f"{name}.log").open("ab") as sink:
            command = [*(self.setting.within or {}).get(name, ()), sys.executable, "-m", "offbeat.runtime.processes"]
            command.append(str(self._child_file(name)))
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            self.children[name] = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)

    def _wait(self) -> None:
        deadline = time.monotonic() + self.setting.timeout_s
        while any(child.poll() is None for child in self.children.values()) or self._again():
            if time.monotonic() > deadline:
                raise PeerFailed(f"the parties' processes did not end within {self.setting.timeout_s:g} s.")
            self._again()
            time.sleep(_POLL_S)

    def _again(self) -> bool:
        """Start again what was killed by a signal, as often as allowed; True if anything was."""
        restarted = False
        for name, child in list(self.children.items()):
            code = child.poll()
            killed = code is not None and code < 0
            if killed and self.restarts[name] < self.setting.restarts:
                self.restarts[name] += 1
                self._start(name)
                restarted = True
        return restarted

    def _end(self, name: PartyName) -> dict[str, Any]:
        path = self.setting.folder / "ends" / f"{name}.msgpack"
        if path.is_file():
            end: dict[str, Any] = decode_state(path.read_bytes())
            return end
        code = self.children[name].returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return {"error": f"the process of '{name}' {how}; see {self.setting.folder / 'processes' / f'{name}.log'}."}


def free_ports(count: int) -> list[int]:
    """Ports of loopback that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _joined(ends: Mapping[PartyName, Mapping[str, Any]], time_s: float) -> Outcome:
    finished, tallies, observations, problems = {}, {}, [], []
    for name, end in ends.items():
        if "error" in end:
            problems.append(f"{name}: {end['error']}")
            continue
        finished[name] = Finish(end["verdict"], end["reason"])
        sent = {kind: list(row) for kind, row in end["sent"].items()}
        tallies[name] = Tally(end["events"], end["compute_s"], end["serve_s"], 0.0, sent)
        observations += [(at_s, name, what, value) for at_s, what, value in end["observations"]]
    if problems:
        raise PeerFailed(" ".join(problems))
    return Outcome(
        clock="wall",
        time_s=max((end["time_s"] for end in ends.values()), default=time_s),
        digest=" ".join(ends[name]["digest"] for name in sorted(ends)),
        finished=finished,
        observations=sorted(observations, key=lambda o: o[0]),
        tallies=tallies,
        timeline=[],
        events=sum(end["events"] for end in ends.values()),
        lost=tuple(sorted({lost for end in ends.values() for lost in end["lost"]})),
    )


# -- inside a party's process -----------------------------------------------------------------------------------------


def load_factory(name: str) -> Factory:
    module, _, function = name.partition(":")
    try:
        factory: Factory = getattr(import_module(module), function)
    except (ImportError, AttributeError) as problem:
        raise BadInput(f"no factory '{name}': expected 'package.module:function' ({problem}).") from problem
    return factory


def take_part(child: Mapping[str, Any]) -> Outcome:
    """Build the party of this process and take it through the run."""
    from offbeat.runtime.grpc.identity import load_identity, read_roster
    from offbeat.runtime.grpc.options import SessionOptions
    from offbeat.runtime.grpc.server import Server
    from offbeat.runtime.grpc.session import Session

    name, keys = child["party"], Path(child["keys"])
    identity = load_identity(name, keys / f"{name}.key", keys / f"{name}.crt")
    roster = read_roster(keys / f"{name}.roster.toml")
    party, messages = load_factory(child["factory"])(child["spec"], name)
    server = Server(identity, roster, child["listen"])
    server.start()
    session = Session(
        identity,
        roster,
        party,
        messages,
        run=child["run"],
        server=server,
        peers=child["peers"],
        options=SessionOptions(**child["session"]),
        folder=Path(child["folder"]),
    )
    outcome = session.run()
    server.stop()
    write_checkpoint(Path(child["folder"]) / "final", name, party.snapshot())
    return outcome


def _report(outcome: Outcome, name: PartyName) -> dict[str, Any]:
    finish, tally = outcome.finished[name], outcome.tallies[name]
    return {
        "verdict": finish.verdict,
        "reason": finish.reason,
        "digest": outcome.digest,
        "events": outcome.events,
        "time_s": outcome.time_s,
        "lost": list(outcome.lost),
        "observations": [(at_s, what, value) for at_s, _, what, value in outcome.observations],
        **{key: value for key, value in asdict(tally).items() if key in ("compute_s", "serve_s", "sent")},
    }


def main(path: str) -> int:
    child = json.loads(Path(path).read_text(encoding="utf-8"))
    sys.setswitchinterval(0.0005)  # the party's thread must not keep the streams' threads waiting for 5 ms
    try:
        end, code = _report(take_part(child), child["party"]), 0
    except OffbeatError as problem:
        end, code = {"error": str(problem)}, problem.exit_code
    ends = Path(child["folder"]) / "ends"
    ends.mkdir(parents=True, exist_ok=True)
    unfinished = ends / f"{child['party']}.new"
    unfinished.write_bytes(encode_state(end))
    unfinished.replace(ends / f"{child['party']}.msgpack")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
