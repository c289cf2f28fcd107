"""`offbeat party serve`: one party's daemon. It answers its owner and its peers, and takes part in runs.

The initiator proposes; every party accepts or refuses by its policy, before any data is read; then each says how many
ids it brings, and all begin. Each works through the run by itself, and reports to the initiator. A daemon that was
killed finds its runs again when it starts, and goes on with them; a run whose folder is damaged is set aside.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadInput, NotYet, OffbeatError, Refused
from offbeat.jobs.organisations import OrgJob, check_method, job_from_text
from offbeat.metrics.prometheus import metrics_text
from offbeat.orgs import control
from offbeat.orgs.budget import PrivacyLedger
from offbeat.orgs.call_limits import CallLimits
from offbeat.orgs.control import QUEUED, Answer, Failure, Request, RunStatus
from offbeat.orgs.daemon_log import about
from offbeat.orgs.discreet import for_peers, printable
from offbeat.orgs.durable import SECRET_BYTES, locked, refuse_without_room
from offbeat.orgs.gauges import Gauges
from offbeat.orgs.health import Health
from offbeat.orgs.kept_runs import DAMAGED, RunNames, check_run_name, prune, read_left, set_aside
from offbeat.orgs.leading import Leading, note_awaited
from offbeat.orgs.lines import Lines, PeerCalls
from offbeat.orgs.party_config import CONTROL_FILE, Home
from offbeat.orgs.policy import refuse_job
from offbeat.orgs.post import POLL_WITHIN_S, LetterFetching, Post
from offbeat.orgs.reloading import Reloading
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.run_queue import UNBEGUN, WAITING, Approvals, InQueue, RunQueue, refuse_ended
from offbeat.orgs.runs import Run
from offbeat.orgs.sessions import begins_with
from offbeat.orgs.standing import Answering, Asking, KeptModels
from offbeat.orgs.tables import OwnTables
from offbeat.orgs.train_embedding import check_shape
from offbeat.runtime.grpc.identity import Member, PinnedRoster, out_of_time
from offbeat.runtime.grpc.server import StreamServer
from offbeat.runtime.grpc.wire import PROTOCOL_VERSION, offbeat_version

log = logging.getLogger("offbeat.party")

CALLS_AT_ONCE: dict[type, int] = {control.Poll: 1, control.ScoreAsked: 16}
DRAIN_LOOK_S = 0.2
ENDED_KEPT = 200
"""Ended runs in memory. Older ones are read from their folders again when somebody asks for them."""
RUNS_NAMED = 5
SCORED_WITHIN_S = 60.0
PEER_REQUEST_BYTES = 2**20


class Daemon:
    """One party's presence on the network."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.identity = home.identity()
        self.roster = home.roster()
        self.caller = PeerCalls(self.identity, self.roster)
        self.tables = OwnTables(home)
        self.ledger = RowLedger(home.ledger)
        self.privacy = PrivacyLedger(home.ledger)
        self.names = RunNames(home.ledger)
        self.approvals = Approvals(home.ledger, self.identity)
        self.runs: dict[str, Run] = {}
        self.queue = RunQueue(home, self.runs)
        self.damaged: dict[str, str] = {}  # runs that were set aside, and why
        self.address = ""
        self._ready = self._draining = False
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self.post = Post()
        refusals = home.private / "refusals.json"
        self.limits = CallLimits(home.name, CALLS_AT_ONCE, refusals, self.approvals.note_refusal)
        self._reloading = Reloading(home, self.identity)
        self._held = ExitStack()
        self.gauges = Gauges(self)
        self.health = Health(home.config.metrics, self._unready, lambda: metrics_text(self.gauges.families()))
        self.lines = Lines(self.identity)
        models = KeptModels(home, self.tables, self.ledger)
        self.answering = Answering(home, self.identity, self.roster, models)
        self.asking = Asking(home, models, self._call_standing)
        self._ended = threading.Event()
        self.leading = Leading(home.name, self._call, self.queue, self._own_count, self._begin, self._halt, self._ended)
        self._letters = LetterFetching(lambda: self.caller, self._answer, self._ended)
        self.server = StreamServer(
            self.identity,
            self.roster,
            home.config.listen or "127.0.0.1:0",
            control={control.METHOD: self._answer},
            before=self._read_roster,
        )
        self._peer_requests = self._answers_to_peers()
        self._owner_requests = self._answers_to_its_owner()

    def _answers_to_peers(self) -> dict[type, Callable[[str, Any], Answer]]:
        return {
            control.Ping: lambda peer, request: control.Pong(
                self.home.name,
                offbeat_version(),
                PROTOCOL_VERSION,
                self.roster.hash,
                time.time(),
                self.names.last_with(peer),
            ),
            control.Propose: self._on_propose,
            control.Count: self._on_count,
            control.BeginRun: self._on_begin,
            control.HasBegun: self._on_under_way,
            control.Report: self._on_report,
            control.HaltRun: self._on_halt,
            control.OpenScoring: self._in_run(self.answering.open),
            control.ScoringKeys: self._in_run(self.answering.take_keys),
            control.ScoreAsked: self._in_run(self.answering.answer),
            control.Poll: lambda peer, request: control.Letters(self.post.collect(peer, POLL_WITHIN_S)),
            control.Reply: self._on_reply,
        }

    def _answers_to_its_owner(self) -> dict[type, Callable[[Any], Answer]]:
        return {
            control.Submit: self._on_submit,
            control.Status: lambda request: self._run(request.run, self.home.name).status,
            control.ListRuns: lambda request: self._stands(),
            control.Stop: self._on_stop,
            control.Decide: self._on_decide,
            control.Predict: lambda request: self.asking.ask(self._run(request.run, self.home.name), request.ids),
        }

    def start(self) -> str:
        """Begin to listen, and take up the runs that a crash or a restart left; the address is returned."""
        self._hold_home()
        self._check_certificate()
        self.ledger.fold()
        prune(self.home)
        folders = sorted(self.home.runs.glob("*/"), key=lambda folder: (self.names.place(folder.name), folder.name))
        left = [run for folder in folders if (run := self._left(folder)) is not None]
        if self.home.config.metrics:
            log.info("/healthz, /readyz and /metrics are at http://%s", self.health.start())
        port = self.server.start()  # now: a peer may ask for one of those runs at once
        host = (self.home.config.listen or "127.0.0.1:0").rpartition(":")[0]
        self.address = f"{host}:{port}"
        self.home.private.mkdir(parents=True, exist_ok=True, mode=0o700)
        local = "127.0.0.1" if host in ("0.0.0.0", "[::]") else host
        (self.home.private / CONTROL_FILE).write_text(f"{local}:{port}\n", encoding="utf-8")
        for run in left:
            self._take_up(run)
        self._forget_ended()
        self._ready = True
        self._letters.begin()
        return self.address

    def drain(self, within_s: float, hurry: threading.Event) -> list[str]:
        """Begin nothing new, and give what is under way some time to end; what has not ended is returned. It goes on
        when the daemon is started again."""
        self._draining, end_s = True, time.monotonic() + within_s
        for thread in list(self._threads.values()):
            while thread.is_alive() and time.monotonic() < end_s and not hurry.is_set():
                thread.join(DRAIN_LOOK_S)
        return [run for run, thread in list(self._threads.items()) if thread.is_alive()]

    def stop(self) -> None:
        self._ended.set()
        self.health.stop()
        self.server.stop()
        self.asking.close()
        self.lines.close()
        self._held.close()

    def _unready(self) -> str:
        """Why this daemon cannot work yet or any more; nothing if it can."""
        if self._draining or self._ended.is_set():
            return "the daemon is being stopped"
        if not self._ready:
            return "the daemon is being started"
        try:
            self._check_certificate()
        except BadInput as problem:
            return str(problem)
        return ""

    def _hold_home(self) -> None:
        """Two daemons over one home would take up each other's runs."""
        complaint = f"another daemon serves '{self.home.name}' from {self.home.folder} already; stop it first."
        self._held.enter_context(locked(self.home.private / "daemon.lock", complaint))

    def _check_certificate(self) -> None:
        if trouble := out_of_time(self.identity.certificate_pem):
            raise BadInput(
                f"nobody would accept the certificate of '{self.home.name}'. Set the clock, or make another one "
                f"(docs/how-to/rotating-keys.md): it {trouble}"
            )

    # -- a party that cannot be called ----------------------------------------------------------------------------

    def _on_reply(self, peer: str, request: control.Reply) -> Answer:
        self.post.answer(peer, request.number, request.answer)
        return control.Done()

    def _call(self, peer: str, request: Request, within_s: float = control.CALL_WITHIN_S) -> Answer:
        """Call a peer, or leave a letter for one that cannot be called."""
        if self.roster.member(peer).address:
            return self.caller.call(peer, request, within_s)
        return control.decode_answer(self.post.send(peer, control.encode(request), within_s))

    def _call_standing(self, peer: str, request: Request) -> Answer:
        """The same over a connection that stays open."""
        member = self.roster.member(peer)
        call = partial(self.lines.call, member) if member.address else partial(self._call, peer)
        return call(request, SCORED_WITHIN_S)

    def _left(self, folder: Path, *, keep: bool = True) -> Run | None:
        """A run that an earlier process of this party knew; a damaged one is set aside and named."""
        if folder.name == DAMAGED:
            return None
        try:
            status, reports, job = read_left(folder, self.home.private)
        except Exception as problem:
            self.damaged[folder.name] = set_aside(folder, problem)
            log.error("run %s was set aside: %s", folder.name, self.damaged[folder.name], extra={"run": folder.name})
            return None
        run = self._new_run(status.run, job, status.initiator)
        run.status, run.reports = status, reports
        if keep:
            self.runs[run.run] = run
        return run

    def _forget_ended(self) -> None:
        """A daemon that has done many runs holds no more than one that has done some."""
        ended = [run for run in list(self.runs.values()) if run.status.ended]
        for run in ended[:-ENDED_KEPT]:
            self.gauges.forget(run)
            self.runs.pop(run.run, None)
            self._threads.pop(run.run, None)

    def _stands(self) -> control.Runs:
        self.queue.expire()
        lost = [RunStatus(run, "", "", "failed", "damaged", reason) for run, reason in self.damaged.items()]
        runs = [*(run.status for run in self.runs.values()), *lost]
        return control.Runs(runs, self.limits.last_refusals(), *self.ledger.extent())

    def _take_up(self, run: Run) -> None:
        if run.status.phase in ("aligning", "training"):
            log.info("going on with run %s", run.run, extra={"run": run.run})
            self._begin(run)
        elif run.status.phase in UNBEGUN:
            self.leading.begin_when_it_can(run)
        elif run.status.phase == "done":
            run.say_ended(align="aligned", train=run.status.verdict, test="predicted")

    def _on_under_way(self, peer: str, request: control.HasBegun) -> Answer:
        run = self._run(request.run, peer)
        if run.initiator != self.home.name or run.status.ended:
            raise Refused(f"run '{run.run}' is not under way at '{self.home.name}'.")
        begun = run.own.kept("begun")
        if begun is None:
            return control.Queued(run.status.progress.get(QUEUED) or f"'{self.home.name}' has not begun it yet")
        return control.Begun(begun["ids"], begun.get("aligned", ""))

    def _new_run(self, name: str, job: OrgJob, initiator: str) -> Run:
        party = (self.home, self.identity, self.roster, self.server)
        return Run(*party, name, job, initiator, self.tables, self.ledger, self.privacy)

    def _run(self, name: str, peer: str) -> Run:
        """A peer hears of a run only if it has a part in it; the owner is told which runs there are."""
        run = self.runs.get(name) or self._forgotten(name)
        if peer == self.home.name and run is None:
            newest = ", ".join([*self.runs][-RUNS_NAMED:])
            lost = f": {self.damaged[name]}" if name in self.damaged else f"; its newest are {newest}" if newest else ""
            raise BadInput(f"'{self.home.name}' knows no run '{name}'{lost}.")
        if run is None or peer not in run.job.parties:
            raise Refused(f"'{self.home.name}' knows no run {name!r} of '{peer}'.")
        return run

    def _forgotten(self, name: str) -> Run | None:
        """A run that ended long ago."""
        folder = self.home.runs / name
        known = self.names.place(name) >= 0 and name not in self.damaged and (folder / "state.json").is_file()
        return self._left(folder, keep=False) if known else None

    # -- requests -------------------------------------------------------------------------------------------------

    def _answer(self, member: Member, raw: bytes) -> bytes:
        with ExitStack() as lines:
            lines.enter_context(about(peer="" if member.name == self.home.name else member.name))
            return self._answered(member, raw, lines)

    def _answered(self, member: Member, raw: bytes, lines: ExitStack) -> bytes:
        own, what = member.name == self.home.name, "a request"
        try:
            if len(raw) > PEER_REQUEST_BYTES and not own:
                raise Refused(f"a request of {len(raw)} bytes from '{member.name}' is larger than a peer's may be.")
            request = control.decode_request(raw)
            what = type(request).__name__
            lines.enter_context(about(run=printable(getattr(request, "run", ""))))
            with nullcontext() if own else self.limits.one_more(member.name, type(request)):
                return control.encode(self._dispatch(member.name, request))
        except OffbeatError as problem:
            if not isinstance(problem, NotYet):
                self.limits.note_refusal(member.name, what, problem)
            told, kind = (str(problem), type(problem).__name__) if own else self._told(problem)
            return control.encode(Failure(kind, told))
        except Exception as problem:
            return control.encode(Failure("PeerFailed", self._told(problem)[0]))

    def _told(self, problem: Exception, doing: str = "answering") -> tuple[str, str]:
        return for_peers(problem, self.home.name, doing)

    def _dispatch(self, peer: str, request: Request) -> Answer:
        self._reloading.settings()
        self._read_roster()
        owner = self._owner_requests.get(type(request))
        if owner is None:
            return self._peer_requests[type(request)](peer, request)
        if peer != self.home.name:
            raise Refused(
                f"'{peer}' asked '{self.home.name}' for what only its owner may ask ({type(request).__name__})."
            )
        return owner(request)

    def _read_roster(self) -> None:
        """Who is new on the roster, or has another certificate or address there, is known from now on; runs under way
        keep the certificates that they began with, beside new ones of the same parties."""
        self._reloading.roster(self._use_roster)

    def _use_roster(self, new: PinnedRoster) -> None:
        self.roster = self.answering.roster = self.server.roster = new
        self.caller = PeerCalls(self.identity, new)
        for run in list(self.runs.values()):
            run.trust(new)
        self._letters.begin()

    # -- proposing and beginning ----------------------------------------------------------------------------------

    def _on_submit(self, request: control.Submit) -> Answer:
        job = job_from_text(request.job, "the submitted job")
        for name in job.parties:
            self.roster.member(name)
        self._refuse(job, self.home.name)
        self._refuse_crowd(self.home.name)
        name = f"{job.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        salt = secrets.token_bytes(SECRET_BYTES)
        others = [party for party in job.parties if party != self.home.name]
        log.info("proposing run %s to %s", name, ", ".join(others), extra={"run": name})
        awaited, why = self.leading.agree(others, control.Propose(name, job.text, salt)), ""
        run = self._accept(name, job, self.home.name, salt)
        try:
            self.tables.current().column(salt)  # what is wrong with it is told at once; it may change in the queue
        except OffbeatError as problem:
            self._halt(run, "failed", self._told(problem, "counting its ids")[0])
            raise
        try:
            if not awaited:
                self.leading.lead(run)
                return control.Submitted(name)
            note_awaited(run, awaited)
        except InQueue as full:
            why = str(full)
            run.wait_in_queue(why)
        except OffbeatError as problem:  # a peer's, in words that it chose for us, or a refusal
            self._halt(run, "failed", printable(str(problem)))
            raise
        self.leading.begin_when_it_can(run)
        return control.Submitted(name, awaited, why)

    def _own_count(self, run: Run) -> control.Counted:
        try:
            return self._counted(run)
        except InQueue:
            raise
        except OffbeatError as problem:  # of what is wrong with a table, the others hear that it is
            told, kind = self._told(problem, "counting its ids")
            raise control.error_named(kind, told) from problem

    def _counted(self, run: Run) -> control.Counted:
        if self._draining:
            raise InQueue(f"'{self.home.name}' is being stopped; it goes on when it is back")
        self.queue.take(run)
        return control.Counted(run.count(), run.reusable())

    def _on_count(self, peer: str, request: control.Count) -> Answer:
        run = self._of_initiator(request.run, peer)
        refuse_ended(run)
        if run.status.phase == WAITING:
            return control.Awaited()
        run.accepted_s = time.monotonic()  # it is still led
        try:
            counted = self._counted(run)
        except InQueue as full:
            run.wait_in_queue(str(full))
            return control.Queued(str(full))
        run.wait_in_queue("")
        return counted

    def _refuse(self, job: OrgJob, initiator: str) -> None:
        """What can be known to be impossible before any data is read."""
        refuse_job(self.home.config.policy, job, self.home.name, initiator, self.privacy.after)
        check_method(job, f"the job '{job.name}' at '{self.home.name}'")
        if self.home.name in job.labels_at and self.home.config.data.label is None:
            raise Refused(
                f"the job wants the labels of '{self.home.name}', but its party.toml names no label column; add "
                'label = "..." under [data], or leave this party out of labels_at.'
            )
        check_shape(job, self.home.config.data.shape, self.home.name)
        begins_with(self.home, job)

    def _refuse_crowd(self, initiator: str) -> None:
        if self._draining:
            raise Refused(f"'{self.home.name}' is being stopped; ask again when it is back.")
        refuse_without_room(self.home.runs, self.home.name)
        self.queue.refuse_crowd(initiator)

    def _on_propose(self, peer: str, request: control.Propose) -> Answer:
        job = job_from_text(request.job, f"the job of '{peer}'")
        check_run_name(request.run, job.name, peer)
        known = self.runs.get(request.run)
        if known is not None and known.same_proposal(peer, job, request.salt):  # our answer was lost
            refuse_ended(known)
            known.accepted_s = time.monotonic()  # it is still led
            return control.Awaited() if known.status.phase == WAITING else control.Done()
        self._refuse(job, peer)
        self._refuse_crowd(peer)
        by_hand = self.home.config.policy.approve == "by hand"
        self._accept(request.run, job, peer, request.salt, WAITING if by_hand else "accepted")
        log.info("accepted run %s of %s%s", request.run, peer, ", if its owner does too" if by_hand else "")
        return control.Awaited() if by_hand else control.Done()

    def _on_decide(self, request: control.Decide) -> Answer:
        run = self._run(request.run, self.home.name)
        if request.accept:
            self._refuse(run.job, run.initiator)  # the policy and the budget may have changed meanwhile
        self.approvals.decide(run, request)
        log.info("run %s was %s by %s", run.run, "accepted" if request.accept else "refused", printable(request.by))
        return control.Done()

    def _accept(self, name: str, job: OrgJob, initiator: str, salt: bytes, phase: str = "accepted") -> Run:
        self.names.burn(name, initiator, self.home.name)
        run = self._new_run(name, job, initiator)
        run.accept(salt, phase)
        self.runs[name] = run
        return run

    def _on_begin(self, peer: str, request: control.BeginRun) -> Answer:
        run = self._of_initiator(request.run, peer)
        if run.status.ended and run.run not in self._threads:
            raise Refused(f"run '{run.run}' has ended at '{self.home.name}' ({run.status.verdict}).")
        if run.run not in self._threads:
            self.queue.take(run)
        run.begin_with(request.ids, request.aligned)
        self._begin(run)
        return control.Done()

    def _of_initiator(self, name: str, peer: str) -> Run:
        run = self._run(name, peer)
        if peer != run.initiator:
            raise Refused(f"run '{run.run}' is led by '{run.initiator}', not by '{peer}'.")
        return run

    def _begin(self, run: Run) -> None:
        with self._lock:
            if run.run in self._threads or run.status.ended:
                return
            self.names.begin(run.run, [name for name in run.job.parties if name != self.home.name])
            thread = threading.Thread(target=run.take_part, args=(self._reporter(run),), name=run.run, daemon=True)
            thread.start()  # first: whoever finds it here, without the lock too, may wait for its end
            self._threads[run.run] = thread

    # -- reporting and halting ------------------------------------------------------------------------------------

    def _reporter(self, run: Run) -> Callable[[control.Report], None]:
        def report(packet: control.Report) -> None:
            log.info("run %s: %s (%s)", run.run, packet.verdict, run.status.reason)
            try:
                prune(self.home)
            except OSError as problem:  # nobody waits in vain for the report because of that
                log.error("old logs could not be deleted: %s", problem)
            self._forget_ended()
            if run.initiator == self.home.name:
                self._on_report(self.home.name, packet)
            else:
                self.leading.tell(run.initiator, packet)

        return report

    def _on_report(self, peer: str, request: control.Report) -> Answer:
        run, reason = self._run(request.run, peer), printable(request.reason)
        if run.initiator != self.home.name:
            raise Refused(f"'{peer}' reports about run '{run.run}', which '{self.home.name}' does not lead.")
        packet = msgspec.structs.replace(request, verdict=printable(request.verdict), reason=reason)
        run.note_report(peer, msgspec.structs.replace(packet, kind=printable(request.kind)))
        if request.kind and peer != self.home.name and not (run.status.ended or run.has_failed):
            run.update(kind=printable(request.kind))
            run.stop("failed", f"'{peer}' failed: {reason}")
            run.update(phase="refused" if request.kind == "Refused" else "failed", kind=printable(request.kind))
        if request.kind:
            for other in run.job.parties:
                if other not in (peer, self.home.name):
                    self.leading.tell(other, control.HaltRun(run.run, "failed", f"'{peer}' failed: {reason}"))
        return control.Done()

    def _on_halt(self, peer: str, request: control.HaltRun) -> Answer:
        run = self._of_initiator(request.run, peer)
        run.stop(printable(request.verdict), printable(request.reason), gently=request.verdict == "stopped")
        return control.Done()

    def _on_stop(self, request: control.Stop) -> Answer:
        self._halt(self._run(request.run, self.home.name), "stopped", f"stopped by the owner of '{self.home.name}'")
        return control.Done()

    def _halt(self, run: Run, verdict: str, reason: str) -> None:
        """End a run here and, if it is ours to lead, everywhere."""
        run.stop(verdict, reason, gently=verdict == "stopped" and run.initiator == self.home.name)
        if run.initiator == self.home.name:
            for other in run.job.parties:
                if other != self.home.name:
                    self.leading.tell(other, control.HaltRun(run.run, verdict, reason))

    def _in_run(self, answer: Callable[[Run, str, Any], Answer]) -> Callable[[str, Any], Answer]:
        """A peer's request about a run in which it has a part."""
        return lambda peer, request: answer(self._run(request.run, peer), peer, request)
