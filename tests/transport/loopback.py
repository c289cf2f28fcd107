"""A small organisation on loopback: identities, a roster, and sessions as threads of this process."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat.errors import OffbeatError
from offbeat.party.contract import Message, Party
from offbeat.runtime.contract import Look, Outcome
from offbeat.runtime.grpc.identity import Identity, Member, PinnedRoster, new_identity
from offbeat.runtime.grpc.options import SessionOptions
from offbeat.runtime.grpc.server import StreamServer
from offbeat.runtime.grpc.session import Session
from offbeat.runtime.processes import free_ports

QUICK = SessionOptions(beat_s=0.05, silence_s=0.5, loss_s=1.0, wait_s=30.0, greet_s=1.0, grace_s=0.5, linger_s=10.0)


class Loopback:
    """Named parties with keys, listening on ports of this machine."""

    def __init__(self, names: Sequence[str], *, silent: Sequence[str] = ()) -> None:
        self.identities: dict[str, Identity] = {name: new_identity(name) for name in names}
        ports = free_ports(len(names))
        self.listen = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
        self.roster = PinnedRoster(
            tuple(
                Member(name, self.identities[name].certificate_pem, "" if name in silent else self.listen[name])
                for name in names
            )
        )
        self.servers: dict[str, StreamServer] = {}

    def server(self, name: str, **options: Any) -> StreamServer:
        server = StreamServer(self.identities[name], self.roster, self.listen[name], **options)
        server.start()
        self.servers[name] = server
        return server

    def session(
        self,
        party: Party,
        messages: Sequence[type[Message]],
        *,
        roster: PinnedRoster | None = None,
        options: SessionOptions = QUICK,
        folder: Path | None = None,
        **more: Any,
    ) -> Session:
        server = self.servers.get(party.name) or self.server(party.name)
        return Session(
            self.identities[party.name],
            roster or self.roster,
            party,
            messages,
            run="run",
            server=server,
            options=options,
            folder=folder,
            **more,
        )

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop(0)


class LoopbackRuntime:
    """The gRPC runtime as one object: every party a session of this process. For `check_runtime`."""

    def __init__(self, messages: Sequence[type[Message]]) -> None:
        self.messages = messages

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        world = Loopback([party.name for party in parties])
        ends = run_all([world.session(party, self.messages) for party in parties])
        world.stop()
        for end in ends.values():
            if isinstance(end, OffbeatError):
                raise end
        done = [end for end in ends.values() if isinstance(end, Outcome)]
        return Outcome(
            clock="wall",
            time_s=max(end.time_s for end in done),
            digest=" ".join(end.digest for end in done),
            finished={name: finish for end in done for name, finish in end.finished.items()},
            observations=sorted((o for end in done for o in end.observations), key=lambda o: o[0]),
            tallies={name: tally for end in done for name, tally in end.tallies.items()},
            timeline=[],
            events=sum(end.events for end in done),
        )


def run_all(sessions: Sequence[Session], timeout_s: float = 60.0) -> Mapping[str, Outcome | OffbeatError]:
    """Run sessions side by side; what each ended with."""
    ends: dict[str, Outcome | OffbeatError] = {}
    threads = [own_thread(s, lambda end, s=s: ends.__setitem__(s.party.name, end)) for s in sessions]
    for thread in threads:
        thread.join(timeout_s)
    running = {session.party.name for session in sessions} - set(ends)
    assert not running, f"still running after {timeout_s} s: {running}"
    return ends


def own_thread(session, done):
    """Run a session beside others; `done` gets its outcome or its error."""

    def body():
        try:
            done(session.run())
        except OffbeatError as problem:
            done(problem)

    thread = threading.Thread(target=body, name=f"session {session.run_name}", daemon=True)
    thread.start()
    return thread
