"""The owner's connection to its own daemon, kept open: for the scoring service and the console."""

from typing import Any

from offbeat.errors import PeerFailed
from offbeat.orgs.control import Request
from offbeat.orgs.lines import Lines
from offbeat.orgs.party_config import CONTROL_FILE, Home
from offbeat.runtime.grpc.identity import Member


class OwnDaemon:
    """Asks in the owner's name; finds a daemon that was started anew. Thread-safe."""

    def __init__(self, home: Home) -> None:
        identity = home.identity()
        self._home, self._certificate, self._lines = home, identity.certificate_pem, Lines(identity)

    def ask(self, request: Request, within_s: float = 60.0) -> Any:
        control = self._home.private / CONTROL_FILE
        if not control.is_file():
            raise PeerFailed(
                f"the daemon of '{self._home.name}' has not been started; run `offbeat party serve --home "
                f"{self._home.folder}`."
            )
        address = control.read_text(encoding="utf-8").strip()
        return self._lines.call(Member(self._home.name, self._certificate, address), request, within_s)

    def close(self) -> None:
        self._lines.close()
