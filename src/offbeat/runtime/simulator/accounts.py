"""What a simulated run's messages come to, in NumPy, when the loop has gone by.

The loop writes down one number for each thing that travels: its *posting*, which stands for who sent what kind of
thing to whom. Parties send the same few kinds to the same few peers again and again, so there are few postings. Rows
(when a message left, when it arrived, its posting) are brought into the sums now and then, so that they do not pile up.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.message.codec import encode_state, payload_bytes
from offbeat.party.contract import Message, Party, PartyName

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

NOBODY = -1
KIND_BITS = 16


class Posting(msgspec.Struct, frozen=True, gc=False):
    """Something of one kind that reaches `to`: a message, or (sent by nobody) an event that is none. Its payload has
    `fixed` bytes and those that `measure` finds in the body, if anything in it varies."""

    code: int
    sender: int
    to: tuple[int, ...]
    kind: type
    fixed: int = 0
    measure: Callable[[Any], int] | None = None


class Postings:
    """Every posting of a run, numbered as they come up."""

    def __init__(self) -> None:
        self.all: list[Posting] = []

    def message(self, sender: int, to: tuple[int, ...], kind: type[Message]) -> Posting:
        return self._new(sender, to, kind, *shape_of(kind))

    def event(self, to: int, kind: type) -> Posting:
        return self._new(NOBODY, (to,), kind)

    def _new(self, *of: Any) -> Posting:
        self.all.append(Posting(len(self.all), *of))
        return self.all[-1]

    def receivers(self, codes: Codes) -> tuple[Codes, Codes]:
        """(row, receiver) for every receiver of every row, in order."""
        if not len(codes):
            return codes, codes
        counts = np.array([len(posting.to) for posting in self.all], np.int64)
        flat = np.array([to for posting in self.all for to in posting.to], np.int64)
        starts = np.cumsum(counts) - counts
        each = counts[codes]
        rows = np.repeat(np.arange(len(codes)), each)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(each) - each, each)
        return rows, flat[starts[codes][rows] + place]


def shape_of(kind: type[Message]) -> tuple[int, Callable[[Any], int] | None]:
    """How a payload's size is found without looking at every field: numbers have eight bytes each, arrays vary."""
    fields = msgspec.structs.fields(kind)
    arrays = [f.name for f in fields if f.type is np.ndarray]
    numbers = [f.name for f in fields if f.type in (int, float, bool)]
    if len(arrays) > 1 or len(arrays) + len(numbers) < len(fields):
        return 0, payload_bytes
    return 8 * len(numbers), attrgetter(f"{arrays[0]}.nbytes") if arrays else None


class Trace:
    """When which posting was handled, and who did not hear it, having finished or being down."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep  # for a digest
        self.times: list[float] = []
        self.codes: list[int] = []
        self.kept_times, self.kept_codes = array("d"), array("i")
        self.rows = 0  # taken so far
        self.unheard: list[tuple[int, int]] = []  # (row, receiver)

    def take(self) -> tuple[Floats, Codes]:
        """The rows since the last time."""
        times, codes = np.array(self.times, np.float64), np.array(self.codes, np.int32)
        self.times.clear()
        self.codes.clear()
        self.rows += len(times)
        if self.keep:
            self.kept_times.frombytes(times.tobytes())
            self.kept_codes.frombytes(codes.tobytes())
        return times, codes.astype(np.int64)

    def digest(self, postings: Postings, parties: Sequence[Party]) -> str:
        """Over the time, receiver and kind of every event, and the parties' final states."""
        codes = np.array(self.kept_codes, np.int64)
        rows, receivers = postings.receivers(codes)
        if self.unheard:
            gone = np.array(self.unheard, np.int64) @ np.array([1 << KIND_BITS, 1])
            heard = ~np.isin(rows * (1 << KIND_BITS) + receivers, gone)
            rows, receivers = rows[heard], receivers[heard]
        kinds = _by_first_appearance([posting.kind for posting in postings.all], codes[rows])
        digest = hashlib.sha256(np.array(self.kept_times)[rows].tobytes())
        digest.update((receivers << KIND_BITS | kinds).astype(np.uint64).tobytes())
        for party in parties:
            digest.update(encode_state(party.snapshot()))
        return digest.hexdigest()


def _by_first_appearance(kinds: Sequence[type], codes: Codes) -> Codes:
    """The kind of each row; kinds are numbered in the order in which they first occur."""
    first = np.full(len(kinds), len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    numbers: dict[type, int] = {}
    for code in np.argsort(first, kind="stable").tolist():
        numbers.setdefault(kinds[code], len(numbers))
    return np.array([numbers[kind] for kind in kinds], np.int64)[codes]


class MessageRows:
    """Of messages that take their own time: what was sent, and what travelled when."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.departs: list[float] = []
        self.arrivals: list[float] = []
        self.codes: list[int] = []

    def note(self, depart: float, arrival: float, code: int) -> None:
        self.departs.append(depart)
        self.arrivals.append(arrival)
        self.codes.append(code)


class Accounts:
    """Who sent how much of what, and for how long something was on its way."""

    def __init__(self, names: Sequence[PartyName], postings: Postings, timeline_most: int) -> None:
        self.names, self.postings, self.timeline_most = names, postings, timeline_most
        self.timeline: list[tuple[float, float, PartyName, PartyName, str]] = []
        self.counts = np.zeros(0, np.int64)  # messages by posting
        self.varying: list[int] = []  # bytes by posting, besides the fixed ones; the loop adds to it
        self.transit_s = [0.0] * len(names)
        self._until_s = [0.0] * len(names)

    def add(self, departs: Floats, arrivals: Floats, codes: Codes) -> None:
        """Note when messages were on their way, in the order in which they were sent; other events are passed over."""
        self._note_timeline(departs, arrivals, codes)
        touches = np.zeros((len(self.names), len(self.postings.all)), bool)
        for posting in self.postings.all:
            if posting.sender != NOBODY:
                touches[[posting.sender, *posting.to], posting.code] = True
        for party in range(len(self.names)):
            mine = touches[party][codes]
            self._note_transit(party, departs[mine], arrivals[mine])

    def take(self, rows: MessageRows) -> None:
        """Bring these rows into the sums, and empty them."""
        self.count(np.array(rows.sent, np.int64))
        self.add(np.array(rows.departs), np.array(rows.arrivals), np.array(rows.codes, np.int64))
        for column in (rows.sent, rows.departs, rows.arrivals, rows.codes):
            column.clear()

    def count(self, codes: Codes) -> None:
        """So many messages were sent, of these postings; other events are passed over later."""
        self.counts = self._counts_with(codes)

    def _counts_with(self, codes: Codes) -> Codes:
        most = len(self.postings.all)
        return np.bincount(codes, minlength=most) + np.pad(self.counts, (0, most - len(self.counts)))

    def _note_transit(self, party: int, departs: Floats, arrivals: Floats) -> None:
        """Time in which something was under way from or to a party, each moment counted once."""
        if len(arrivals):
            reached = np.maximum.accumulate(np.concatenate(([self._until_s[party]], arrivals)))
            spans = arrivals - np.maximum(departs, reached[:-1])
            self.transit_s[party] += float(np.maximum(0.0, spans).sum())
            self._until_s[party] = float(reached[-1])

    def _note_timeline(self, departs: Floats, arrivals: Floats, codes: Codes) -> None:
        missing = self.timeline_most - len(self.timeline)
        if missing <= 0 or not len(codes):
            return
        is_message = np.array([posting.sender != NOBODY for posting in self.postings.all])
        first = np.flatnonzero(is_message[codes])[:missing]
        for depart, arrival, code in zip(
            *(column[first].tolist() for column in (departs, arrivals, codes)), strict=True
        ):
            sent = self.postings.all[code]
            sender, kind = self.names[sent.sender], sent.kind.__name__
            self.timeline += [(depart, arrival, sender, self.names[to], kind) for to in sent.to]
        del self.timeline[self.timeline_most :]

    def sent(self, still: Iterable[int] = ()) -> list[dict[str, list[int]]]:
        """By party and kind: [messages, payload bytes] sent so far; `still` are postings without a row yet."""
        sent: list[dict[str, list[int]]] = [{} for _ in self.names]
        counts = self._counts_with(np.array([*still], np.int64))
        for posting, count, varying in zip(self.postings.all, counts.tolist(), self.varying, strict=True):
            if posting.sender != NOBODY and count:
                row = sent[posting.sender].setdefault(posting.kind.__name__, [0, 0])
                row[0] += count * len(posting.to)
                row[1] += (count * posting.fixed + varying) * len(posting.to)
        return sent
