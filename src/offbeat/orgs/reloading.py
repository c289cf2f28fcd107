"""A party's files while its daemon runs: what is changed in party.toml and in the roster holds without a new start."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from offbeat.data.places import file_mark
from offbeat.errors import BadInput, OffbeatError
from offbeat.orgs.daemon_log import about
from offbeat.orgs.party_config import Home
from offbeat.runtime.grpc.identity import Identity, PinnedRoster

log = logging.getLogger("offbeat.party")


class Reloading:
    """Looks whether files have changed; one that is wrong changes nothing."""

    def __init__(self, home: Home, identity: Identity) -> None:
        self._home, self._identity = home, identity
        self._seen = {file: file_mark(file) for file in (home.file, home.roster_file)}
        # Who asks while another reads waits: it would go on with what held before.
        self._reading = threading.RLock()

    def settings(self) -> None:
        """Data and policy are taken up from party.toml."""
        with self._reading, about(run="", peer=""):  # whoever asked has brought it up, and has nothing to do with it
            if not self._changed(self._home.file):
                return
            try:
                self._home.read_again()
                log.info("party.toml has changed: its data and policy hold from now on; the rest needs a new start")
            except OffbeatError as problem:
                log.error("party.toml has changed and cannot be used, so the settings of before stay: %s", problem)

    def roster(self, take: Callable[[PinnedRoster], None]) -> None:
        """The roster is handed on, if it has changed."""
        with self._reading:
            if self._changed(self._home.roster_file) and (new := self._new_roster()) is not None:
                take(new)

    def _new_roster(self) -> PinnedRoster | None:
        """None where it cannot be used. An own new key needs a new start."""
        try:
            new = self._home.roster()
            if self._identity.fingerprint not in new.member(self._home.name).fingerprints:
                raise BadInput("it pins a new certificate of our own; start the daemon again to show that one.")
        except OffbeatError as problem:
            log.error("the roster has changed and cannot be used, so the one of before stays: %s", problem)
            return None
        log.info("the roster has changed: it lists %s from now on", ", ".join(new.names))
        return new

    def _changed(self, file: Path) -> bool:
        before, self._seen[file] = self._seen[file], file_mark(file)
        return before != self._seen[file]
