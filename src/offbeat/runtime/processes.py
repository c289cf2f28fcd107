"""One machine, real isolation: each party in an operating-system process of its own, over the gRPC runtime.

There is no second protocol here: the processes talk over loopback with mutual TLS, under keys made for this run and
thrown away with it. A process builds its party itself, from a factory's name and a plain specification, so no object
is ever pickled. With `restarts` a process that dies is started again, and goes on from its log; without, the others are
told at once that it is lost, and do as `on_loss` says. Ctrl-C reaches the parent alone: it tells the children, who stop
where they are and hand over what they have.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from offbeat.errors import BadInput, NotInstalled, OffbeatError, PeerFailed
from offbeat.message.codec import Codec, decode_state, encode_state
from offbeat.party.contract import Message, Party, PartyName
from offbeat.runtime import contract
from offbeat.runtime.checkpoint import read_checkpoint, replace_durably, write_checkpoint
from offbeat.runtime.contract import Look, Outcome, Tally
from offbeat.runtime.recovery import recover

if TYPE_CHECKING:
    from offbeat.runtime.grpc.session import Session

log = logging.getLogger("offbeat.processes")

Built = tuple[Party, tuple[type[Message], ...]]
Factory = Callable[[Mapping[str, Any], PartyName], Built]
"""Builds one party, and names its message types, from a specification that fits into JSON."""

_POLL_S = 0.02
STOPPED = "stopped on request"
OBSERVED = "observed"
"""In the run folder, while the run goes on: what each process has certified, as nobody can look into it."""


@dataclass(frozen=True, slots=True)
class End:
    """How a party's process or actor ended: what it came to, unless it broke off with an `error` or was `killed`, which
    is said in a sentence. What a killed one came to, its log tells."""

    outcome: Outcome | None = None
    error: str = ""
    killed: str = ""


def end_in(content: bytes) -> End:
    """As `encode_state` has written it."""
    return msgspec.convert(decode_state(content), End)


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
        with tempfile.TemporaryDirectory(prefix="offbeat-keys-") as keys, interruptions() as interrupted:
            ends = _Children(self, names, Path(keys), interrupted).run()
        restore_parties(parties, ends, self.factory, self.spec, self.folder)
        outcome = joined(ends)
        if look is not None:
            look(outcome.time_s)
        return outcome


def restore_parties(
    parties: Sequence[Party], ends: dict[PartyName, End], factory: str, spec: Mapping[str, Any], folder: Path
) -> None:
    """Put the parties into the states that their processes left; whoever was killed is told of by its log."""
    for party in parties:
        if killed := ends[party.name].killed:
            _, messages = load_factory(factory)(spec, party.name)
            drive = recover(party, Codec(messages), folder).drive
            done = drive.outcome(drive.clock_s, Tally(drive.events), [])
            ends[party.name] = End(done, killed="" if done.finished else killed)
        elif (state := read_checkpoint(folder / "final", party.name)) is not None:
            party.restore(state)


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, and whoever handles it lets the run end in order: a handler that raises breaks it
    off as ever."""
    pressed = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield pressed.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        before(number, frame)
        pressed.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


class _Children:
    """The processes of one run."""

    def __init__(
        self, setting: Processes, names: tuple[PartyName, ...], keys: Path, interrupted: Callable[[], bool]
    ) -> None:
        self.setting, self.names, self.keys, self.interrupted = setting, names, keys, interrupted
        self.gone: dict[PartyName, str] = {}  # how the processes ended that will not come back
        self.stopping = False
        self.children: dict[PartyName, subprocess.Popen[bytes]] = {}
        self.restarts = dict.fromkeys(names, 0)

    def run(self) -> dict[PartyName, End]:
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
                if child.stdin is not None:
                    with suppress(OSError):
                        child.stdin.close()
        return {name: self._end(name) for name in self.names}

    def _prepare(self) -> None:
        from offbeat.runtime.grpc.identity import Member, PinnedRoster, new_identity, write_private, write_roster

        for place in ("ends", "final", "transcripts"):
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
            write_roster(self.keys / f"{name}.roster.toml", PinnedRoster(tuple(members)))
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
            # In a process group of its own: a terminal sends Ctrl-C to the whole group of whoever runs in it.
            self.children[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=sink, stderr=sink, env=environment, process_group=0
            )
        for peer, how in self.gone.items():
            self._tell(name, {"lost": peer, "how": how})

    def _tell(self, name: PartyName, news: Mapping[str, str]) -> None:
        pipe = self.children[name].stdin
        assert pipe is not None
        with suppress(OSError):  # it has ended meanwhile
            pipe.write(json.dumps(news).encode() + b"\n")
            pipe.flush()

    def _wait(self) -> None:
        deadline = time.monotonic() + self.setting.timeout_s
        while self._attend():
            if time.monotonic() > deadline:
                raise PeerFailed(f"the parties' processes did not end within {self.setting.timeout_s:g} s.")
            if self.interrupted() and not self.stopping:
                self.stopping = True
                for name in self.names:
                    self._tell(name, {"stop": STOPPED})
            time.sleep(_POLL_S)

    def _attend(self) -> bool:
        """Start again who was killed, as often as allowed; tell of who will not come back; whether anybody is there."""
        codes = {name: child.poll() for name, child in self.children.items()}
        there = any(code is None for code in codes.values())
        for name, code in codes.items():
            if code in (None, 0) or name in self.gone or self._end_file(name).is_file():
                continue
            if code is not None and code < 0 and self.restarts[name] < self.setting.restarts and not self.stopping:
                self._start_again(name)
                there = True
            else:
                self._note_gone(name)
        return there

    def _start_again(self, name: PartyName) -> None:
        self.restarts[name] += 1
        count = f"{self.restarts[name]} of at most {self.setting.restarts} times"
        how = self._how_ended(name)
        log.warning("The process of '%s' %s; started again (%s), it goes on from its log.", name, how, count)
        self._start(name)

    def _note_gone(self, name: PartyName) -> None:
        """Tell the others of a process that died without a word; its peers alone would take long to believe it."""
        self.gone[name] = how = self._how_ended(name)
        policy = (self.setting.session or {}).get("on_loss", "wait")
        log.warning("The process of '%s' %s; the others are told that it is lost (on_loss: %s).", name, how, policy)
        for other in self.names:
            if other not in self.gone:
                self._tell(other, {"lost": name, "how": how})

    def _end_file(self, name: PartyName) -> Path:
        return self.setting.folder / "ends" / f"{name}.msgpack"

    def _how_ended(self, name: PartyName) -> str:
        code = self.children[name].returncode
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _end(self, name: PartyName) -> End:
        if self._end_file(name).is_file():
            return end_in(self._end_file(name).read_bytes())
        how = f"the process of '{name}' {self._how_ended(name)}"
        if self.children[name].returncode < 0:
            return End(killed=f"{how}.")
        return End(error=f"{how}; see {self.setting.folder / 'processes' / f'{name}.log'}.")


def usable_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def joined(ends: Mapping[PartyName, End]) -> Outcome:
    """One outcome of all. Whoever was killed has not finished; the run has ended if the others have."""
    outcomes = {name: end.outcome for name, end in ends.items() if end.outcome is not None}
    problems = [f"{name}: {end.error}" for name, end in ends.items() if name not in outcomes]
    killed = [name for name, end in ends.items() if end.killed]
    if len(killed) == len(ends):
        problems += [f"{name}: {ends[name].killed}" for name in killed]
    if problems:
        raise PeerFailed(" ".join(problems))
    there = [outcome for name, outcome in outcomes.items() if name not in killed]
    found = contract.joined(list(outcomes.values()))
    return replace(
        found,
        time_s=max(outcome.time_s for outcome in there),
        digest=" ".join(outcomes[name].digest for name in sorted(outcomes)),
        lost=tuple(sorted({*killed, *(lost for outcome in there for lost in outcome.lost)})),
        stalled=STOPPED if any(finish.verdict == "stopped" for finish in found.finished.values()) else "",
    )


# -- inside a party's process -----------------------------------------------------------------------------------------


def load_factory(name: str) -> Factory:
    module, _, function = name.partition(":")
    try:
        factory: Factory = getattr(import_module(module), function)
    except (ImportError, AttributeError) as problem:
        raise BadInput(f"no factory '{name}': expected 'package.module:function' ({problem}).") from problem
    return factory


def _hear_parent(lines: Iterable[bytes], session: "Session") -> None:
    """Who is lost, and that the run is to stop, which the parent's own death means too. What it said while the party
    was built waits in the pipe."""
    for news in map(json.loads, lines):
        if "lost" in news:
            session.lose(news["lost"], news["how"])
        else:
            session.stop(news["stop"])
    session.stop("the process that started the run is gone")


class _Certified:
    """Writes down every certificate that this process's party computes, for whoever watches the run."""

    def __init__(self, path: Path) -> None:
        self.path, self.broken = path, False

    def __call__(self, at_s: float, name: str, value: Any) -> None:
        if name != "certificate" or self.broken:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as sink:
                sink.write(msgspec.json.encode([at_s, value]) + b"\n")
        except OSError as problem:
            self.broken = True
            log.warning("%s cannot be written to (%s): the run cannot be watched.", self.path, problem)


def take_part(child: Mapping[str, Any], parent: Iterable[bytes]) -> Outcome:
    """Build the party of this process and take it through the run; `parent`: what that has to say, line by line."""
    from offbeat.runtime.grpc.identity import load_identity, read_roster
    from offbeat.runtime.grpc.options import SessionOptions
    from offbeat.runtime.grpc.server import StreamServer
    from offbeat.runtime.grpc.session import Session

    name, keys = child["party"], Path(child["keys"])
    identity = load_identity(name, keys / f"{name}.key", keys / f"{name}.crt")
    roster = read_roster(keys / f"{name}.roster.toml")
    party, messages = load_factory(child["factory"])(child["spec"], name)
    server = StreamServer(identity, roster, child["listen"])
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
        watch=_Certified(Path(child["folder"]) / OBSERVED / f"{name}.jsonl"),
    )
    threading.Thread(target=_hear_parent, args=(parent, session), name="parent", daemon=True).start()
    outcome = session.run()
    server.stop()
    write_checkpoint(Path(child["folder"]) / "final", name, party.snapshot())
    return outcome


def main(path: str) -> int:
    child = json.loads(Path(path).read_text(encoding="utf-8"))
    sys.setswitchinterval(0.0005)  # the party's thread must not keep the streams' threads waiting for 5 ms
    # Unbuffered: an interpreter that ends cannot take a buffer's lock from the thread that is reading.
    lines = FileIO(sys.stdin.fileno(), "rb", closefd=False)
    try:
        end, code = End(take_part(child, lines)), 0
    except OffbeatError as problem:
        end, code = End(error=str(problem)), problem.exit_code
    ends = Path(child["folder"]) / "ends"
    ends.mkdir(parents=True, exist_ok=True)
    replace_durably(ends / f"{child['party']}.msgpack", encode_state(end))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
