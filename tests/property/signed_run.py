"""A run of a few messages as its parties' folders keep it: logs, signed transcripts, records. No network."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from offbeat.metrics.record import Certificate, RunRecord
from offbeat.runtime.delivery import Bounds, Delivery
from offbeat.runtime.eventlog import FORMAT as LOG_FORMAT
from offbeat.runtime.eventlog import AnyRecord, EventLog, Header, LogReceived, read_log
from offbeat.runtime.grpc.identity import Identity, Member, PinnedRoster, new_identity
from offbeat.runtime.recovery import log_path
from offbeat.runtime.transcript import FORMAT, Chains, Notary, Transcript, TranscriptFile, read_transcript

RUN, JOB = "run/train", "digest"
NAMES = ("bank", "shop", "telecom")
Pair = tuple[str, str]


@cache
def identity(name: str) -> Identity:
    return new_identity(name)


def roster(names: Sequence[str] = NAMES) -> PinnedRoster:
    return PinnedRoster(tuple(Member(name, identity(name).certificate_pem) for name in names))


def notary(name: str) -> Notary:
    return Notary(identity(name).sign, lambda who, what, by: roster().member(who).signed(what, by))


def transcript(me: str, peer: str) -> Transcript:
    return Transcript(Chains(RUN, JOB, me, peer), notary(me))


def delivery(me: str, peer: str, bounds: Bounds | None = None) -> Delivery[bytes]:
    return Delivery(peer, bounds or Bounds(), transcript=transcript(me, peer))


def sealed(one: Delivery[bytes], other: Delivery[bytes], *, last: bool = True) -> None:
    """Both say that they have all, sign it, and sign each other's receipts."""
    for _ in range(2):
        for here, there in ((one, other), (other, one)):
            assert here.transcript is not None
            seal = here.transcript.seal(here.durable, now=True, last=last)
            there.acknowledge(here.durable, seal, done=last)


def signed_run(folder: Path, sent: Mapping[Pair, Sequence[bytes]], *, last: bool = True) -> dict[str, Path]:
    """The run folder of each party. `sent`: the messages of each sender to each receiver."""
    ends = {(me, peer): delivery(me, peer) for me in NAMES for peer in NAMES if me != peer}
    logs = {name: [header(name)] for name in NAMES}
    for (sender, receiver), frames in sent.items():
        for frame in frames:
            ends[sender, receiver].offer(frame)
            taken = ends[sender, receiver].take()
            assert taken is not None
            for number, came in ends[receiver, sender].arrived(*taken):
                logs[receiver].append(LogReceived(sender, number, came))
                ends[receiver, sender].logged(number)
    for one, other in ((a, b) for a in NAMES for b in NAMES if a < b):
        sealed(ends[one, other], ends[other, one], last=last)
    for name in NAMES:
        write_log(folder / name, name, logs[name])
        links = [link for (me, _), link in ends.items() if me == name]
        write_transcript(folder / name, name, links)
    return {name: folder / name for name in NAMES}


def header(name: str) -> AnyRecord:
    return Header(LOG_FORMAT, name, RUN, JOB, "0")


def write_log(folder: Path, name: str, records: Sequence[AnyRecord]) -> None:
    log_path(folder, name).unlink(missing_ok=True)
    log = EventLog(log_path(folder, name))
    for record in records:
        log.append(record)
    log.close()


def log_of(folder: Path) -> list[AnyRecord]:
    return [record for _, record in read_log(log_path(folder, folder.name))]


def write_transcript(folder: Path, name: str, links: Sequence[Delivery[bytes]]) -> None:
    accounts = [a for link in links if link.transcript for a in link.transcript.chains.accounts(link.durable)]
    certificates = {member.name: member.certificate_pem.decode() for member in roster().members}
    TranscriptFile(FORMAT, RUN, JOB, name, certificates, (), tuple(accounts)).write(folder)
    record(name).write(folder)


def rewrite(folder: Path, change: Callable[[TranscriptFile], TranscriptFile]) -> None:
    """The transcript of this folder's party as somebody would have it, and a record that fits."""
    path = folder / "transcripts" / f"{folder.name}.json"
    changed = change(read_transcript(path))
    path.unlink()
    changed.write(folder)
    record(folder.name).write(folder)


def with_link(file: TranscriptFile, pair: Pair, **changes: object) -> TranscriptFile:
    links = [
        msgspec.structs.replace(link, **changes) if (link.sender, link.receiver) == pair else link
        for link in file.links
    ]
    return msgspec.structs.replace(file, links=tuple(links))


def record(party: str) -> RunRecord:
    return RunRecord(
        offbeat="0", algorithm="vfb2-svrg", runtime="grpc", clock="wall", seed=0, digest="", verdict="target",
        reason="", objective=None, certificate=Certificate(), passes=1.0, seconds=1.0, metrics={}, parties={},
        options={"party": party},
    )  # fmt: skip
