"""Going on after a crash: the last checkpoint, then the log's events since.

What is rebuilt is exact: the party's memory, the numbers and bytes of messages its peers may still ask for, the jobs
and timers it had open. So a party that was killed at any instant sends nothing that it did not send before, or would
have sent: no mask, request number or noise is drawn twice.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from offbeat.message.codec import Codec
from offbeat.party.contract import Party
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint
from offbeat.runtime.drive import Drive
from offbeat.runtime.eventlog import Replayed, cut_torn_end, feed, read_log


def log_path(folder: Path, party: str) -> Path:
    return folder / "events" / f"{party}.log"


def recover(party: Party, codec: Codec, folder: Path, *, from_start: bool = False) -> Replayed:
    """The party as its log leaves it. `from_start` ignores checkpoints: every event is handled again."""
    into = Replayed(Drive(party, codec))
    path = log_path(folder, party.name)
    if not path.is_file():
        return into
    cut_torn_end(path)
    state = None if from_start else read_checkpoint(folder / "checkpoints", party.name)
    start = resume(into, state) if state is not None else 0
    return feed(into, read_log(path, start), str(path))


def checkpoint(
    folder: Path,
    drive: Drive,
    results: Mapping[int, Any],
    links: Mapping[str, tuple[int, int, list[bytes]]],
    log_size: int,
) -> bool:
    """Write one, between two events. A job whose result is not plain values cannot be kept, and then there is no
    checkpoint this time (False)."""
    try:
        state = checkpoint_state(drive, results, links, log_size)
        write_checkpoint(folder / "checkpoints", drive.party.name, state)
    except TypeError:
        return False
    return True


def checkpoint_state(
    drive: Drive, results: Mapping[int, Any], links: Mapping[str, tuple[int, int, list[bytes]]], log_size: int
) -> dict[str, Any]:
    """Everything that a party needs to go on from here. `results` are those of the open jobs."""
    return {
        "party": drive.party.snapshot(),
        "events": drive.events,
        "digest": drive.digest,
        "timers": drive.timers,
        "sent": {kind: list(row) for kind, row in drive.sent.items()},
        "observed": [
            [at_s, name, msgspec.to_builtins(value, enc_hook=_as_it_is)] for at_s, name, value in drive.observed
        ],
        "clock_s": drive.clock_s,
        "lost": sorted(drive.lost),
        "results": dict(results),
        "links": {peer: list(link) for peer, link in links.items()},
        "log_size": log_size,
    }


def resume(into: Replayed, state: Mapping[str, Any]) -> int:
    """Put the party and what was open where a checkpoint was taken; where the log goes on from there."""
    drive = into.drive
    drive.party.restore(state["party"])
    drive.events, drive.digest = state["events"], state["digest"]
    drive.sent = {kind: list(row) for kind, row in state["sent"].items()}
    drive.observed = [(at_s, name, value) for at_s, name, value in state["observed"]]
    drive.clock_s = state["clock_s"]
    drive.lost = set(state["lost"])
    drive.timers = [(token, after_s) for token, after_s in state["timers"]]
    drive.jobs = {ticket: _already(result) for ticket, result in state["results"].items()}
    for peer, (sent, accepted, kept) in state["links"].items():
        into.sent[peer], into.accepted[peer], into.kept[peer] = sent, accepted, list(kept)
    into.events = state["events"]
    return int(state["log_size"])


def _as_it_is(value: Any) -> Any:
    return value


def _already(result: Any) -> Any:
    return (lambda: result) if result is not None else None
