"""How a run begins: its initiator proposes it, collects everybody's place and number of ids, and gives the word.

Whoever was restarted meanwhile takes it up from what it has kept: the initiator leads on, the others ask it for the
word. A run begins when all owners have accepted it and every party has a place for it (`run_queue.py`).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from offbeat.errors import OffbeatError, PeerFailed, Refused
from offbeat.orgs import control
from offbeat.orgs.control import QUEUED, Answer, Request
from offbeat.orgs.daemon_log import about
from offbeat.orgs.discreet import printable
from offbeat.orgs.run_queue import UNBEGUN, WAITING_KEPT_S, InQueue, RunQueue, StillWaiting
from offbeat.orgs.runs import Run

log = logging.getLogger("offbeat.party")

COUNT_WITHIN_S = 300.0  # the party reads its table meanwhile
AT_ONCE = 2  # so many runs are taken up at a time: a peer answers few calls of a kind, and refuses more
WORD_PAUSE_S = 5.0
QUEUE_PAUSE_S = 1.0
STILL_LED_S = 60.0  # so often everybody hears that a run which waits is still led
WORD_KEPT_S, QUEUED_KEPT_S = 3_600.0, 86_400.0


class Call(Protocol):
    """Asks a peer, or leaves a letter for one that cannot be called."""

    def __call__(self, peer: str, request: Request, within_s: float = ...) -> Answer: ...


class Leading:
    """One per daemon. `own_count`: a place here and this party's number of ids; `begin` and `halt` are the daemon's."""

    def __init__(
        self,
        me: str,
        call: Call,
        queue: RunQueue,
        own_count: Callable[[Run], control.Counted],
        begin: Callable[[Run], None],
        halt: Callable[[Run, str, str], None],
        ended: threading.Event,
    ) -> None:
        self._me, self._call, self._queue, self._own_count = me, call, queue, own_count
        self._begin, self._halt, self._ended = begin, halt, ended
        self._few = threading.BoundedSemaphore(AT_ONCE)

    def begin_when_it_can(self, run: Run) -> None:
        threading.Thread(target=self._led, args=(self._take_up_accepted, run), daemon=True).start()

    def _led(self, work: Callable[..., None], run: Run, *words: object) -> None:
        """In a thread of its own; what it logs is about this run."""
        with about(run=run.run):
            work(run, *words)

    def agree(self, others: list[str], proposal: control.Propose) -> list[str]:
        """Ask everybody; if one refuses or cannot be asked, tell those who accepted. Returns whose owners decide."""
        accepted: list[str] = []
        awaited: list[str] = []
        for other in others:
            try:
                if isinstance(self._call(other, proposal), control.Awaited):
                    awaited.append(other)
                accepted.append(other)
            except OffbeatError as problem:
                for friend in accepted:
                    self.tell(friend, control.HaltRun(proposal.run, "refused", printable(f"{problem}")))
                raise
        return awaited

    def lead(self, run: Run) -> None:
        """Collect everybody's place and number of ids, if that has not been done, and give the word to begin."""
        begun = run.own.kept("begun")
        if begun is None:
            if undecided := self._undecided(run):
                raise StillWaiting(undecided)
            self._queue.look(run)  # without a place here, nobody need be asked
            told = {name: self.counted(run, name) for name in sorted(run.job.parties)}  # see orgs/run_queue.py
            kept = {one.aligned for one in told.values()}
            run.begin_with({name: one.ids for name, one in told.items()}, kept.pop() if len(kept) == 1 else "")
            begun = run.own.kept("begun")
            assert begun is not None
        self._give_word(run, control.BeginRun(run.run, begun["ids"], begun.get("aligned", "")))

    def _undecided(self, run: Run) -> list[str]:
        """Whose owners have not decided. Now and then all are asked, so that nobody holds the run for forgotten."""
        names: list[str] = run.status.progress.get("awaiting", [])
        if time.monotonic() > run.accepted_s + STILL_LED_S:
            run.accepted_s, names = time.monotonic(), [name for name in run.job.parties if name != self._me]
        proposal = control.Propose(run.run, run.job.text, run.own.salt)
        undecided = [name for name in names if isinstance(self._call(name, proposal), control.Awaited)]
        note_awaited(run, undecided)
        return undecided

    def counted(self, run: Run, name: str) -> control.Counted:
        if name == self._me:
            return self._own_count(run)
        answer = self._call(name, control.Count(run.run), COUNT_WITHIN_S)
        if isinstance(answer, control.Awaited):
            raise StillWaiting([name])
        if isinstance(answer, control.Queued):
            raise InQueue(printable(answer.why))
        assert isinstance(answer, control.Counted)
        return answer

    def _give_word(self, run: Run, word: control.BeginRun) -> None:
        """Tell everybody to begin, and begin; whoever cannot be told now is told while the others wait for it."""
        untold = self._tell_to_begin(run, word, [other for other in run.job.parties if other != self._me])
        self._begin(run)
        if untold:
            threading.Thread(target=self._led, args=(self._tell_late, run, word, untold), daemon=True).start()

    def _tell_late(self, run: Run, word: control.BeginRun, untold: list[str]) -> None:
        for _ in self._tries(run):
            untold = self._tell_to_begin(run, word, untold)
            if not untold:
                return

    def _tell_to_begin(self, run: Run, word: control.BeginRun, others: list[str]) -> list[str]:
        """Those who could not be reached. A party that will not begin ends the run for all."""
        untold = []
        for other in others:
            try:
                self._call(other, word)
            except PeerFailed as problem:
                log.warning("could not tell %s to begin run %s yet: %s", other, run.run, problem, extra={"peer": other})
                untold.append(other)
            except OffbeatError as problem:
                self._halt(run, "failed", f"'{other}' did not begin: {problem}")
        return untold

    def _tries(self, run: Run) -> Iterator[None]:
        """Again and again while the run and this daemon last, for a time: a queue is given longer than a party that is
        away, and people who decide longer still."""
        begin_s, pause_s = time.monotonic(), 0.0
        while not self._ended.wait(pause_s) and not run.status.ended:
            queued, awaited = run.status.phase == QUEUED, run.status.progress.get("awaiting")
            kept_s = WAITING_KEPT_S if awaited else QUEUED_KEPT_S if queued else WORD_KEPT_S
            if time.monotonic() > begin_s + kept_s:
                return
            yield
            pause_s = QUEUE_PAUSE_S if run.status.phase == QUEUED else WORD_PAUSE_S

    def _take_up_accepted(self, run: Run) -> None:
        """All had agreed, or we had; the word to begin was lost with this process. It may still be told to us while we
        ask for it: then the run has begun, and nothing that is answered afterwards ends it."""
        try:
            lead, word = run.initiator == self._me, self._ask_for_word
            missing = f"'{run.initiator}' could not bring everybody together."
            for _ in self._tries(run):
                if self._was_told(run):
                    return
                try:
                    with self._few:
                        self.lead(run) if lead else word(run)
                except InQueue as full:
                    run.wait_in_queue(str(full))
                except StillWaiting as waiting:
                    note_awaited(run, waiting.names)
                except PeerFailed as problem:
                    missing = printable(str(problem))
                    log.warning("run %s cannot begin yet: %s", run.run, missing)
                else:
                    return
            if not self._ended.is_set() and not run.status.ended and not self._was_told(run):
                self._halt(run, "failed", f"it did not begin: {run.status.progress.get(QUEUED) or missing}")
        except OffbeatError as problem:
            if self._was_told(run):
                return
            self._halt(run, "refused" if isinstance(problem, Refused) else "failed", f"it did not begin: {problem}")
        except Exception as problem:
            log.exception("run %s does not begin", run.run)
            run.stop("failed", f"it could not be taken up again: {problem!r}")

    def _was_told(self, run: Run) -> bool:
        return run.initiator != self._me and run.status.phase not in UNBEGUN

    def _ask_for_word(self, run: Run) -> None:
        """The initiator may be away too: ask it until it answers. What it does not know will never begin."""
        answer = self._call(run.initiator, control.HasBegun(run.run))
        if isinstance(answer, control.Queued):
            raise InQueue(printable(answer.why))
        assert isinstance(answer, control.Begun)
        run.begin_with(answer.ids, answer.aligned)
        self._begin(run)

    def tell(self, peer: str, request: Request) -> None:
        """A courtesy: whoever cannot be reached finds out by itself."""
        try:
            self._call(peer, request)
        except OffbeatError as problem:
            log.warning("could not tell %s: %s", peer, problem, extra={"peer": peer})


def note_awaited(run: Run, names: list[str]) -> None:
    """Whose owners have not decided yet."""
    if names != run.status.progress.get("awaiting", []):
        run.update(progress={**run.status.progress, "awaiting": names})
