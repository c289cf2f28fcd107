"""The owner's connection to its own daemon, kept open: for the scoring service and the console."""

from typing import Any

from offbeat.orgs.control import Request
from offbeat.orgs.lines import Lines
from offbeat.orgs.party_config import Home
from offbeat.runtime.grpc.identity import Member


class OwnDaemon:
    """Asks in the owner's name; finds a daemon that was started anew. Thread-safe."""

    def __init__(self, home: Home) -> None:
        identity = home.identity()
        self._home, self._certificate, self._lines = home, identity.certificate_pem, Lines(identity)

    def ask(self, request: Request, within_s: float = 60.0) -> Any:
        member = Member(self._home.name, self._certificate, self._home.daemon_address())
        return self._lines.call(member, request, within_s)

    def close(self) -> None:
        self._lines.close()
