"""One machine, real concurrency: the same party objects, one thread each, worker threads for their jobs.

Every message is encoded and decoded as on a network, so that parties share no memory. A party's events are handled
one at a time, in the order of its inbox, and written to its log first: `events/<party>.log` replays bit for bit.
Delays are real: what a slow link or a slow party would hold back waits in the receiver's inbox for its time.

    slow           a party that is k times slower waits (k - 1) times the cost model's work for each `Compute`
    link           a message is delivered so much later

Every message arrives once and in order. Bounds: a party that falls more than `inbox_max` messages behind ends the run.
"""

import hashlib
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import monotonic

from offbeat.errors import PeerFailed
from offbeat.message.codec import Codec
from offbeat.party.contract import Message, Party, PartyName
from offbeat.runtime.contract import Look, Outcome, joined
from offbeat.runtime.drive import Written
from offbeat.runtime.host import NO_DELAY, HostOptions, Letter, PartyHost
from offbeat.runtime.simulator.costs import CostModel

FLUSH_EVENTS = 256  # the log of a run in one process is for replay, not for recovery


@dataclass(kw_only=True)
class Threads:
    """Runs parties on threads of this process.

    messages      the kinds of messages that the parties send
    costs         what makes parties and links slow; only the slow factors, the work they multiply, the lanes and the
                  link count
    folder        the run folder whose `events/` gets the logs; None: no logs
    run_name      stands in the logs
    inbox_max     a party that is so many messages behind ends the run
    timeline_max  how many messages are kept for the timeline
    until_s       end after so many seconds
    """

    messages: Sequence[type[Message]]
    costs: CostModel = NO_DELAY
    folder: Path | None = None
    run_name: str = "run"
    inbox_max: int = 65536
    timeline_max: int = 3000
    until_s: float = inf
    bytes_sent: int = field(default=0, init=False)  # payload sent by anyone so far, brought up to date before each look
    sent: dict[PartyName, tuple[int, int]] = field(default_factory=dict, init=False)  # by party: (messages, bytes)

    def run(self, parties: Sequence[Party], look: Look | None = None) -> Outcome:
        """Carry messages between `parties` until all have finished, or nothing can happen any more. `look` is called
        with the time, and says after how many seconds it is to be called again, or None to end the run."""
        return ThreadRun(self, parties, look).run()


class ThreadRun:
    """One run: a host and a thread for each party."""

    def __init__(self, setting: Threads, parties: Sequence[Party], look: Look | None) -> None:
        self.setting, self.look = setting, look
        self.hosts = {party.name: self._host(party, len(parties)) for party in parties}
        assert len(self.hosts) == len(parties), "two parties share a name"
        self.threads = [
            threading.Thread(target=self._carry, args=(host,), name=f"offbeat-{name}", daemon=True)
            for name, host in self.hosts.items()
        ]
        self.stalled, self.out_of_time = "", False
        self.problem: BaseException | None = None
        self._over = threading.Event()
        self._began_s = monotonic()

    def _host(self, party: Party, parties: int) -> PartyHost:
        setting = self.setting
        options = HostOptions(
            run_name=setting.run_name,
            folder=setting.folder,
            batch_events=1,
            flush_events=FLUSH_EVENTS,
            costs=setting.costs,
            timeline_most=setting.timeline_max // parties,
        )
        name = party.name
        return PartyHost(
            party, Codec(setting.messages), options, lambda step: self._post(name, step), idle=self._one_is_idle
        )

    # -- the parties' threads ------------------------------------------------------------------------------------

    def _carry(self, host: PartyHost) -> None:
        try:
            host.run()
        except BaseException as problem:  # carried to the caller's thread, whatever it is
            self.problem = self.problem or problem
            self._over.set()
        host.inbox.close()
        if all(other.drive.finished is not None for other in self.hosts.values()):
            self._over.set()

    def _post(self, sender: PartyName, step: Written) -> None:
        now = self.hosts[sender].now()
        transit_s = self.setting.costs.link.transit_s(step.payload_bytes)
        letter = Letter(sender, step.frame, step.kind, sent_s=now)
        for name in step.to:
            receiver = self.hosts[name]
            if len(receiver.inbox) >= self.setting.inbox_max:
                behind = len(receiver.inbox)
                raise PeerFailed(f"'{name}' is {behind} messages behind, which is the bound: it is too slow.")
            receiver.receive(letter, now + transit_s if transit_s > 0 else 0.0)

    def _one_is_idle(self) -> None:
        """Nothing can happen any more when, at one moment, nothing is open anywhere."""
        inboxes = [host.inbox for host in self.hosts.values()]
        if any(inbox.open for inbox in inboxes):
            return
        with ExitStack() as held:
            for inbox in inboxes:
                held.enter_context(inbox.lock)
            if not any(inbox.open for inbox in inboxes):
                self._over.set()

    # -- the caller's thread -------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self._began_s = monotonic()
        for host in self.hosts.values():
            host.began_s = self._began_s
            host.begin()
        for thread in self.threads:
            thread.start()
        try:
            self._watch()
        finally:
            self._close()
        if self.problem is not None:
            raise self.problem
        return self._outcome()

    def _watch(self) -> None:
        """Wait for the end, and look now and then."""
        next_look_s = 0.0 if self.look is not None else inf
        while not self._over.wait(self._patience(next_look_s)):
            if self._now() >= self.setting.until_s:
                self.stalled, self.out_of_time = f"stopped at the limit of {self.setting.until_s:g} seconds", True
                return
            if self.look is not None and self._now() >= next_look_s:
                after_s = self._look(self.look)
                if after_s is None:
                    self.stalled = "ended by the observer"
                    return
                next_look_s = self._now() + after_s

    def _now(self) -> float:
        return monotonic() - self._began_s

    def _patience(self, next_look_s: float) -> float | None:
        until_s = min(next_look_s, self.setting.until_s)
        return None if until_s == inf else max(0.0, until_s - self._now())

    def _look(self, look: Look) -> float | None:
        """Between two events of every party: their states are whole, and stand still meanwhile."""
        with ExitStack() as held:
            for host in self.hosts.values():
                held.enter_context(host.busy)
            rows = {name: host.drive.sent.values() for name, host in self.hosts.items()}
            self.setting.sent = {
                name: (sum(n for n, _ in sent), sum(b for _, b in sent)) for name, sent in rows.items()
            }
            self.setting.bytes_sent = sum(size for _, size in self.setting.sent.values())
            return look(self._now())

    def _close(self) -> None:
        for host in self.hosts.values():
            host.inbox.close()
        for thread in self.threads:
            thread.join()
        for host in self.hosts.values():
            host.close()

    def _outcome(self) -> Outcome:
        waiting = [name for name, host in self.hosts.items() if host.drive.finished is None]
        if waiting and not self.stalled:
            self.stalled = f"nothing is left to happen, and {', '.join(waiting)} had not finished"
        outcome = joined([host.outcome() for host in self.hosts.values()])
        digest = digest_of({name: host.drive.digest for name, host in self.hosts.items()})
        return replace(outcome, digest=digest, stalled=self.stalled, out_of_time=self.out_of_time)


def digest_of(digests: dict[PartyName, bytes]) -> str:
    """One digest for a run: over what every party asked for, in the order it did."""
    joined = hashlib.sha256()
    for name, digest in digests.items():
        joined.update(name.encode() + b"\0" + digest)
    return joined.hexdigest()
