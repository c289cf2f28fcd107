"""A party's files while its daemon runs: what is changed in party.toml and in the roster holds without a new start."""

import logging
from pathlib import Path

from offbeat.errors import BadInput, OffbeatError
from offbeat.orgs.daemon_log import about
from offbeat.orgs.party_config import Home
from offbeat.runtime.grpc.identity import Identity, PinnedRoster

log = logging.getLogger("offbeat.party")


class Reloading:
    """Looks whether files have changed; one that is wrong changes nothing."""

    def __init__(self, home: Home, identity: Identity) -> None:
        self._home, self._identity = home, identity
        self._seen = {file: _changed_at(file) for file in (home.file, home.roster_file)}

    def settings(self) -> None:
        """Data and policy are taken up from party.toml."""
        if not self._changed(self._home.file):
            return
        with about(run="", peer=""):  # whoever asked has brought it up, and has nothing to do with it
            try:
                self._home.read_again()
                log.info("party.toml has changed: its data and policy hold from now on; the rest needs a new start")
            except OffbeatError as problem:
                log.error("party.toml has changed and cannot be used, so the settings of before stay: %s", problem)

    def roster(self) -> PinnedRoster | None:
        """The roster, if it has changed. An own new key needs a new start."""
        if not self._changed(self._home.roster_file):
            return None
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
        before, self._seen[file] = self._seen[file], _changed_at(file)
        return before != self._seen[file]


def _changed_at(file: Path) -> int:
    return file.stat().st_mtime_ns if file.is_file() else 0
