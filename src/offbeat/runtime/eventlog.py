"""A party's log: every event in the order it was handled, on disk before what it caused leaves the party.

    events/<party>.log      records, each behind its length and checksum; an unfinished last one is as if never written

A log with its party's constructor arguments is the whole run of that party: `feed` gives it the events again and gets
the same messages, bit for bit. Results of jobs are stored only where a runtime asks for it; jobs are pure, so they are
done again. No key is in a log: it holds what came in, by the codec, and numbers.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import msgspec

from offbeat.errors import BadInput, PeerFailed
from offbeat.message.codec import decode_state, encode_state
from offbeat.party.contract import Computed, Event, Party, PartyName, PeerBack, PeerLost, Received, Started, Woken
from offbeat.runtime.drive import Drive, Written
from offbeat.runtime.transcript import HEADS_BEHIND, Chains

FORMAT = 1
_HEAD = struct.Struct("<II")
_RECORD_BYTES_MAX = 2**31


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of what a log holds."""


class Header(Record, frozen=True, gc=False):
    format: int
    party: str
    run: str
    job: str
    offbeat: str
    base: int = 0  # messages to each peer are numbered from `base` + 1 on


class LogStarted(Record, frozen=True, gc=False):
    resumed: bool


class LogReceived(Record, frozen=True, gc=False):
    sender: str
    number: int
    frame: bytes
    round_trip_s: float = 0.0
    jump: bytes = b""  # where earlier messages were left out: the head behind them (see transcript.py)


class LogComputed(Record, frozen=True, gc=False):
    """`result`: of a job that would give another one if it were done again, such as one that draws secret noise."""

    ticket: int
    result: bytes = b""
    seconds: float = 0.0


class LogWoken(Record, frozen=True, gc=False):
    token: int


class LogLost(Record, frozen=True, gc=False):
    peer: str


class LogBack(Record, frozen=True, gc=False):
    peer: str


class LogAcknowledged(Record, frozen=True, gc=False):
    """Not an event: the peer will not ask for our messages up to this number again."""

    peer: str
    number: int


class LogMark(Record, frozen=True, gc=False):
    """Not an event: so many events were handled and the party's digest was this."""

    events: int
    digest: bytes


AnyRecord = Header | LogStarted | LogReceived | LogComputed | LogWoken | LogLost | LogBack | LogAcknowledged | LogMark

_PLAIN: dict[type, type] = {Woken: LogWoken, PeerLost: LogLost, PeerBack: LogBack, Started: LogStarted}
"""Events that a log holds as they are, with the same fields."""
_EVENTS = {record: event for event, record in _PLAIN.items()}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


def record_of(
    event: Event, number: int = 0, frame: bytes = b"", *, jump: bytes = b"", results: bool = False
) -> AnyRecord:
    """What the log holds of an event. A message is kept as the bytes that came, with its number; a job's result, if
    `results` are to be kept."""
    if type(event) is Received:
        return LogReceived(event.sender, number, frame, event.round_trip_s, jump)
    if type(event) is Computed:
        return LogComputed(event.ticket, encode_state([event.result]) if results else b"", event.seconds)
    record: AnyRecord = _PLAIN[type(event)](*msgspec.structs.astuple(event))
    return record


class EventLog:
    """The writing side. Records gather in memory until `flush`, which is one write to the file."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self.fsync = fsync
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = os.fstat(self._descriptor).st_size
        self._pending: list[bytes] = []

    def append(self, record: AnyRecord) -> None:
        payload = _ENCODER.encode(record)
        self._pending += (_HEAD.pack(len(payload), crc32(payload)), payload)

    def flush(self) -> None:
        if not self._pending:
            return
        content = b"".join(self._pending)
        self._pending.clear()
        written = os.write(self._descriptor, content)
        while written < len(content):
            written += os.write(self._descriptor, content[written:])
        self.size += len(content)
        if self.fsync:
            os.fsync(self._descriptor)

    def sync(self) -> None:
        self.flush()
        os.fsync(self._descriptor)

    def close(self) -> None:
        self.flush()
        os.close(self._descriptor)


def read_log(path: Path, start: int = 0) -> Iterator[tuple[int, AnyRecord]]:
    """(offset after the record, record) from `start` on, ending before a record that was cut off or damaged."""
    with path.open("rb") as file:
        file.seek(start)
        offset = start
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            if length > _RECORD_BYTES_MAX:
                return
            payload = file.read(length)
            if len(payload) < length or crc32(payload) != checksum:
                return
            offset += _HEAD.size + length
            yield offset, _DECODER.decode(payload)


def cut_torn_end(path: Path) -> int:
    """Remove an unfinished last record left by a crash; the number of bytes removed."""
    end = 0
    for offset, _ in read_log(path):
        end = offset
    torn = path.stat().st_size - end
    if torn:
        os.truncate(path, end)
    return torn


@dataclass(slots=True)
class Replayed:
    """Where a log leaves its party."""

    drive: Drive
    sent: dict[PartyName, int] = field(default_factory=dict)
    kept: dict[PartyName, list[bytes]] = field(default_factory=dict)  # sent and not acknowledged
    accepted: dict[PartyName, int] = field(default_factory=dict)
    acknowledged: dict[PartyName, int] = field(default_factory=dict)
    events: int = 0
    marks: int = 0
    base: int = 0
    segment: int = 0  # of the log, the newest one
    carried: bool = False  # the party's memory comes from an earlier run
    header: Header | None = None
    chains: dict[PartyName, Chains] = field(default_factory=dict)

    def chains_with(self, peer: PartyName) -> Chains | None:
        header = self.header
        if header is not None and peer not in self.chains:
            self.chains[peer] = Chains(header.run, header.job, header.party, peer)
        return self.chains.get(peer)

    def wrote(self, written: Written) -> None:
        for peer in written.to:
            self.sent[peer] = self.sent.get(peer, self.base) + 1
            self.kept.setdefault(peer, []).append(written.frame)
            if (chains := self.chains_with(peer)) is not None:
                chains.sent.add(self.sent[peer], written.frame)

    def came(self, record: LogReceived) -> None:
        self.accepted[record.sender] = record.number
        if (chains := self.chains_with(record.sender)) is not None:
            if record.jump:
                chains.received.jump(record.number - 1, record.jump)
            chains.received.add(record.number, record.frame)
            chains.received.keep_from(record.number - HEADS_BEHIND)

    def trim(self, peer: PartyName, number: int) -> None:
        self.acknowledged[peer] = number
        if (chains := self.chains_with(peer)) is not None:
            chains.sent.keep_from(number)
        kept = self.kept.get(peer, [])
        first = self.sent.get(peer, self.base) - len(kept) + 1
        del kept[: max(0, number - first + 1)]


def feed(into: Replayed, records: Iterable[tuple[int, AnyRecord]], where: str) -> Replayed:
    """Feed a log to a party and rebuild what it had open; a digest that does not match is an error with its place."""
    for offset, record in records:
        if type(record) is Header:
            _check_header(record, into.drive.party, where)
        elif type(record) is LogAcknowledged:
            into.trim(record.peer, record.number)
        elif type(record) is LogMark:
            _check_mark(record, into, where, offset)
        else:
            if type(record) is LogReceived:
                into.came(record)
            event = _event(record, into.drive)
            into.events += 1
            for step in into.drive.handle(event):
                if type(step) is Written:
                    into.wrote(step)
    return into


def _event(record: AnyRecord, drive: Drive) -> Event:
    if type(record) is LogReceived:
        return Received(record.sender, drive.codec.decode(record.frame), record.round_trip_s)
    if type(record) is LogComputed:
        if record.result:
            return Computed(record.ticket, decode_state(record.result)[0], record.seconds)
        return drive.compute(record.ticket, record.seconds)
    event: Event = _EVENTS[type(record)](*msgspec.structs.astuple(record))
    return event


def _check_header(header: Header, party: Party, where: str) -> None:
    if header.format != FORMAT:
        raise BadInput(f"{where} has log format {header.format}; this version of offbeat ({FORMAT}) cannot read it.")
    if header.party != party.name:
        raise BadInput(f"{where} is the log of '{header.party}', expected that of '{party.name}'.")


def _check_mark(mark: LogMark, into: Replayed, where: str, offset: int) -> None:
    into.marks += 1
    if (mark.events, mark.digest) != (into.drive.events, into.drive.digest):
        raise PeerFailed(
            f"replaying {where} gave other effects than the run: after {into.drive.events} events (byte {offset}) the "
            f"digest is {into.drive.digest.hex()}, the run had {mark.digest.hex()} after {mark.events}. The party was "
            "built from other data or options, its code is not the code that ran, or another kind of processor runs it."
        )
