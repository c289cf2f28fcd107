"""Many rows in one order: kept in a folder, scored part by part, and taken up again after a restart.

    private/batches/<name>/ids.txt      one id a line, as the caller sent them
    private/batches/<name>/rows.csv     id, score, probability: as far as it has come
    private/batches/<name>/state.json   whose it is, and how much of rows.csv counts

A part that was asked for when the service was killed is asked for again: its rows are then counted twice in the
ledgers, never too few times.
"""

import csv
import io
import logging
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

import msgspec

from offbeat.errors import BadInput, DiskFull, OffbeatError, PeerFailed
from offbeat.orgs.control import Predicted, cell_text
from offbeat.orgs.durable import locked, write_durably
from offbeat.runtime.grpc.session import DISK_FULL

log = logging.getLogger("offbeat.service")

HEAD = b"id,score,probability\n"
PARTS_OPEN = 3
ROWS_IN_PART = 20_000
AT_ONCE = 2
KEPT_MOST, KEPT_OF_ONE = 100, 25  # in all, and of one caller
KEPT_S = 86_400.0
TRIES, PAUSE_S = 60, 5.0
NAME = re.compile(r"batch-[0-9a-f]{16}")


class State(msgspec.Struct, frozen=True):
    """What a batch has come to. `standing`: "arriving" (its ids are), "waiting", "working", "done" or "failed"."""

    name: str
    caller: str
    run: str
    rows: int
    at_s: float
    done: int = 0
    size: int = 0  # how many bytes of rows.csv count
    standing: str = "waiting"
    reason: str = ""

    @property
    def over(self) -> bool:
        return self.standing in ("done", "failed")


class Batches:
    """`ask` scores ids and blocks. One per service; thread-safe."""

    def __init__(
        self, private: Path, run: str, ask: Callable[[list[str]], Predicted], rows_in_part: int = ROWS_IN_PART
    ) -> None:
        self.folder, self.run, self._ask, self._rows_in_part = private / "batches", run, ask, rows_in_part
        self._states: dict[str, State] = {}
        self._lock = threading.Lock()
        self._ended, self._held = threading.Event(), ExitStack()
        self._workers = ThreadPoolExecutor(AT_ONCE, "batch")
        self._parts = ThreadPoolExecutor(AT_ONCE * PARTS_OPEN, "part")

    def hold(self) -> None:
        """Be the one service of this run: another one would go on with the same batches."""
        self._held.enter_context(locked(
            self.folder / f"{self.run}.lock",
            f"a scoring service for run '{self.run}' works over this home already; stop it first, or ask that one.",
        ))  # fmt: skip

    def start(self) -> None:
        """Take up what an earlier process left. What another run's service works on is left alone."""
        for path in sorted(self.folder.glob("*/")):
            state = _state_in(path)
            if state is None or state.run != self.run:
                at_s = path.stat().st_mtime if state is None else state.at_s
                if (state is None or state.over) and at_s < time.time() - KEPT_S:
                    shutil.rmtree(path)
            elif state.standing == "arriving":
                log.warning("%s had not arrived whole, and is deleted", path)
                shutil.rmtree(path)
            else:
                self._states[state.name] = state
                if not state.over:
                    log.info("going on with %s after %d of %d rows", state.name, state.done, state.rows)
                    self._workers.submit(self._work, state.name)

    def stop(self) -> None:
        self._ended.set()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._parts.shutdown(wait=True, cancel_futures=True)
        self._held.close()

    def room(self, caller: str) -> Path:
        """A folder for a new batch of this caller."""
        self._forget_old()
        with self._lock:
            own = [state for state in self._states.values() if state.caller == caller]
            unfinished = sum(not state.over for state in own)
            if unfinished >= AT_ONCE:
                raise BadInput(f"'{caller}' has {unfinished} batches under way, the most at once.")
            if len(own) >= KEPT_OF_ONE or len(self._states) >= KEPT_MOST:
                raise BadInput(
                    f"{len(own)} batches of '{caller}' are kept already, and {len(self._states)} in all; at most "
                    f"{KEPT_OF_ONE} of one caller are, and {KEPT_MOST} in all. Delete some that have been read."
                )
            folder = self.folder / f"batch-{secrets.token_hex(8)}"
            state = State(folder.name, caller, self.run, 0, time.time(), standing="arriving")  # an upload counts, too
            self._states[state.name] = state
        try:
            folder.mkdir(parents=True, mode=0o700)
            self._note(state)
        except OSError:
            self.drop(state.name)
            raise
        return folder

    def begin(self, folder: Path, caller: str, rows: int) -> State:
        """The ids are all there: score them."""
        state = State(folder.name, caller, self.run, rows, time.time())
        (folder / "rows.csv").write_bytes(HEAD)
        self._note(msgspec.structs.replace(state, size=len(HEAD)))
        self._workers.submit(self._work, state.name)
        return self._states[state.name]

    def state(self, name: str, caller: str) -> State:
        """A caller hears of its own batches alone."""
        state = self._states.get(name)
        if state is None or state.caller != caller:
            raise BadInput(f"there is no batch {name[:40]!r} of '{caller}'; it may have been deleted after a day.")
        return state

    def all(self) -> list[State]:
        return list(self._states.values())

    def remove(self, name: str, caller: str) -> None:
        if not self.state(name, caller).over:
            raise BadInput(f"{name} is under way; it can be deleted once it has ended.")
        self.drop(name)

    def rows_file(self, name: str) -> Path:
        assert NAME.fullmatch(name)
        return self.folder / name / "rows.csv"

    # -- working --------------------------------------------------------------------------------------------------

    def _work(self, name: str) -> None:
        """To the end, past full disks; whatever happens, the batch gets an end."""
        begun_s = time.monotonic()
        try:
            for _ in range(TRIES):
                if self._written(name):
                    break
                self._ended.wait(PAUSE_S)
            else:
                raise DiskFull("the disk of the service is full.")
        except Exception as problem:
            foreseen = isinstance(problem, OffbeatError | OSError)
            state, reason = self._states[name], str(problem) if foreseen else "the service's log has the cause."
            log.warning("%s of %s failed after %d rows: %s", name, state.caller, state.done, problem,
                        exc_info=None if foreseen else problem)  # fmt: skip
            with suppress(OSError):  # a full disk: memory has it
                self._note(msgspec.structs.replace(state, standing="failed", reason=reason))
        else:
            if not self._ended.is_set():
                state = self._states[name]
                log.info("%s of %s: %d rows in %.1f s", name, state.caller, state.rows, time.monotonic() - begun_s)

    def _written(self, name: str) -> bool:
        """Go on where it stands; False where the disk was too full to come to the end."""
        state = self._states[name]
        try:
            with self.rows_file(name).open("r+b") as out:
                out.truncate(state.size)
                out.seek(state.size)
                for text, rows in self._parts_from(name, state.done):
                    out.write(text)
                    out.flush()
                    state = msgspec.structs.replace(
                        state, done=state.done + rows, size=state.size + len(text), standing="working"
                    )
                    self._note(state)
            if not self._ended.is_set():
                self._note(msgspec.structs.replace(state, standing="done"))
        except OSError as problem:
            if problem.errno not in DISK_FULL:
                raise
            log.error("%s waits after %d rows: the disk is full", name, state.done)
            return False
        return True

    def _parts_from(self, name: str, done: int) -> Iterator[tuple[bytes, int]]:
        """The text of one part after the other, with the next few asked for already."""
        open_parts: list[Future[tuple[bytes, int]]] = []
        with (self.folder / name / "ids.txt").open(encoding="utf-8", newline="\n") as file:
            ids = (line.rstrip("\r\n") for line in file)
            for _ in islice(ids, done):
                pass
            while not self._ended.is_set():
                while len(open_parts) < PARTS_OPEN and (part := list(islice(ids, self._rows_in_part))):
                    open_parts.append(self._parts.submit(self._scored, part))
                if not open_parts:
                    return
                yield open_parts.pop(0).result()
        for future in open_parts:
            future.cancel()

    def _scored(self, ids: list[str]) -> tuple[bytes, int]:
        """A peer that is away for a while delays a batch; it does not end it."""
        for attempt in range(TRIES):
            try:
                return csv_of(ids, self._ask(ids)), len(ids)
            except PeerFailed as problem:
                if attempt == TRIES - 1 or self._ended.is_set():
                    raise
                log.info("a part of a batch waits: %s", problem)
                self._ended.wait(PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def _note(self, state: State) -> None:
        with self._lock:
            write_durably(self.folder / state.name / "state.json", msgspec.json.encode(state))
            self._states[state.name] = state

    def _forget_old(self) -> None:
        before_s = time.time() - KEPT_S
        for state in self.all():
            if state.over and state.at_s < before_s:
                self.drop(state.name)

    def drop(self, name: str) -> None:
        with self._lock:
            self._states.pop(name, None)
        shutil.rmtree(self.folder / name, ignore_errors=True)


def _state_in(folder: Path) -> State | None:
    """Nothing where it cannot be read: it may be about to be written."""
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=State)
    except (OSError, msgspec.MsgspecError):
        return None


def csv_of(ids: list[str], answer: Predicted) -> bytes:
    """One line for each id; a row that not all parties know has no score."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell_text(cell) for cell in row] for row in answer.rows(ids))
    return text.getvalue().encode()
