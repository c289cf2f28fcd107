"""Going on after a crash: the last checkpoint, then the log's events since.

What is rebuilt is exact: the party's memory, the numbers and bytes of messages its peers may still ask for, the jobs
and timers it had open. So a party that was killed at any instant sends nothing that it did not send before, or would
have sent: no mask, request number or noise is drawn twice.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offbeat.message.codec import Codec
from offbeat.party.contract import Finish, Party
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint
from offbeat.runtime.drive import Drive
from offbeat.runtime.eventlog import Header, Replayed, cut_torn_end, feed, read_log


def log_path(folder: Path, party: str, segment: int = 0) -> Path:
    return folder / "events" / (f"{party}.{segment}.log" if segment else f"{party}.log")


def recover(party: Party, codec: Codec, folder: Path, *, from_start: bool = False) -> Replayed:
    """The party as its log leaves it. `from_start` ignores checkpoints: every event is handled again."""
    into = Replayed(Drive(party, codec))
    state = None if from_start else read_checkpoint(folder / "checkpoints", party.name)
    if state is not None and _without_chains(state):
        state = None
    carried = state is not None and state["events"] == 0
    path = log_path(folder, party.name, state.get("segment", 0) if state is not None else 0)
    if not path.is_file() and not carried:
        return into
    into.header = header_of(path)
    into.base = into.header.base if into.header is not None else 0
    start = resume(into, state) if state is not None else 0
    if not path.is_file():
        return into
    cut_torn_end(path)
    return feed(into, read_log(path, start), str(path))


def _without_chains(state: Mapping[str, Any]) -> bool:
    """A checkpoint of an earlier version, whose log is whole: the chains of its links come from there."""
    return not state.get("segment") and any(len(link) < 4 for link in state.get("links", {}).values())


def header_of(path: Path) -> Header | None:
    """The first record of a log; None where there is no log yet."""
    first = next(iter(read_log(path)), None) if path.is_file() else None
    return first[1] if first is not None and isinstance(first[1], Header) else None


def carry_over(party: Party, codec: Codec, folder: Path, run: str) -> None:
    """Let a party that took part in another run from this folder keep its memory, such as a privacy ledger; of that
    run's messages, timers and jobs nothing is kept."""
    state = read_checkpoint(folder / "checkpoints", party.name)
    segment = state.get("segment", 0) if state is not None else 0
    path = log_path(folder, party.name, segment)
    header = header_of(path)
    if header is not None and header.run != run:
        recover(party, codec, folder)
    elif state is not None and "events" not in state:  # as earlier versions wrote it for edges
        party.restore(state["party"])
    else:
        return
    fresh = checkpoint_state(Drive(party, codec), {}, {}, 0, segment + 1)
    write_checkpoint(folder / "checkpoints", party.name, fresh)
    path.unlink(missing_ok=True)


def checkpoint(
    folder: Path,
    drive: Drive,
    results: Mapping[int, Any],
    links: Mapping[str, Sequence[Any]],
    log_size: int,
    segment: int = 0,
) -> bool:
    """Write one, between two events. A job whose result is not plain values cannot be kept, and then there is no
    checkpoint this time (False)."""
    try:
        state = checkpoint_state(drive, results, links, log_size, segment)
        write_checkpoint(folder / "checkpoints", drive.party.name, state)
    except TypeError:
        return False
    return True


def checkpoint_state(
    drive: Drive, results: Mapping[int, Any], links: Mapping[str, Sequence[Any]], log_size: int, segment: int = 0
) -> dict[str, Any]:
    """Everything that a party needs to go on from here, where the log has this size. `results`: of the open jobs."""
    return {
        "party": drive.party.snapshot(),
        "events": drive.events,
        "digest": drive.digest,
        "timers": drive.timers,
        "sent": {kind: list(row) for kind, row in drive.sent.items()},
        "observed": [
            [at_s, name, msgspec.to_builtins(value, enc_hook=_from_numpy)] for at_s, name, value in drive.observed
        ],
        "clock_s": drive.clock_s,
        "lost": sorted(drive.lost),
        "finished": None if drive.finished is None else [drive.finished.verdict, drive.finished.reason],
        "results": dict(results),
        "links": {peer: list(link) for peer, link in links.items()},
        "log_size": log_size,
        "segment": segment,
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
    drive.finished = Finish(*state["finished"]) if state.get("finished") else None
    drive.timers = [(token, after_s) for token, after_s in state["timers"]]
    drive.jobs = {ticket: _already(result) for ticket, result in state["results"].items()}
    for peer, (sent, accepted, kept, *past) in state["links"].items():
        into.sent[peer], into.accepted[peer], into.kept[peer] = sent, accepted, list(kept)
        if any(past) and (chains := into.chains_with(peer)) is not None:
            chains.resume(past[0])
    into.events, into.segment, into.carried = state["events"], state.get("segment", 0), state["events"] == 0
    return int(state["log_size"])


def _from_numpy(value: Any) -> Any:
    """numpy's numbers and arrays as Python's; what is neither cannot be kept."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"an observation of type {type(value).__name__} cannot be kept in a checkpoint")


def _already(result: Any) -> Any:
    return (lambda: result) if result is not None else None
