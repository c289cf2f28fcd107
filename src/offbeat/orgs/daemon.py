"""`offbeat party serve`: one party's daemon. It answers its owner and its peers, and takes part in runs.

The initiator proposes; every party accepts or refuses by its policy, before any data is read; then each says how many
ids it brings, and all begin. Each works through the run by itself, and reports to the initiator. A daemon that was
killed finds its runs again when it starts, and goes on with them; a run whose folder is damaged is set aside.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from offbeat.errors import BadInput, OffbeatError, PeerFailed, Refused
from offbeat.jobs.organisations import OrgJob, check_method, job_from_text
from offbeat.metrics.prometheus import metrics_text
from offbeat.orgs import control
from offbeat.orgs.approvals import WAITING, WAITING_KEPT_S, Approvals, StillWaiting, refuse_ended
from offbeat.orgs.budget import PrivacyLedger
from offbeat.orgs.call_limits import CallLimits
from offbeat.orgs.control import Answer, Failure, PeerCalls, Request, RunStatus
from offbeat.orgs.discreet import for_peers, printable
from offbeat.orgs.durable import locked
from offbeat.orgs.gauges import Gauges
from offbeat.orgs.health import Health
from offbeat.orgs.joint_scores import Answering, Asking
from offbeat.orgs.left_runs import DAMAGED, read_left, set_aside
from offbeat.orgs.lines import Lines
from offbeat.orgs.party_config import CONTROL_FILE, Home
from offbeat.orgs.policy import refuse_job
from offbeat.orgs.post import POLL_WITHIN_S, LetterFetching, Post
from offbeat.orgs.predicting import Predictions
from offbeat.orgs.pruning import prune
from offbeat.orgs.reloading import Reloading
from offbeat.orgs.room import refuse_without_room
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.run_names import RunNames, check_run_name
from offbeat.orgs.runs import Run
from offbeat.orgs.sessions import begins_with
from offbeat.orgs.tables import OwnTables
from offbeat.orgs.train_embedding import check_shape
from offbeat.runtime.grpc.identity import Member, validity
from offbeat.runtime.grpc.server import StreamServer

log = logging.getLogger("offbeat.party")

RUNS_AT_ONCE, RUNS_OF_ONE = 8, 6  # in all, and of one initiator that is not the owner
PROPOSALS_OF_ONE = 3
PROPOSAL_KEPT_S = 600.0
CALLS_AT_ONCE: dict[type, int] = {control.Poll: 1, control.ScoreAsked: 16}
COUNT_WITHIN_S = 300.0  # the party reads its table meanwhile
DRAIN_LOOK_S = 0.2
PEER_REQUEST_BYTES = 2**20
WORD_PAUSE_S = 5.0
AWAITED_TRIES = int(WAITING_KEPT_S / WORD_PAUSE_S)
WORD_TRIES = 720  # an hour and more: a call to a party that is away takes its time too


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
        self.approvals = Approvals(home.ledger)
        self.runs: dict[str, Run] = {}
        self.damaged: dict[str, str] = {}  # runs that were set aside, and why
        self.address = ""
        self._ready = self._draining = False
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self.post = Post()
        self.limits = CallLimits(home.name, CALLS_AT_ONCE)
        self._reloading = Reloading(home, self.identity)
        self._held = ExitStack()
        self.gauges = Gauges(self)
        self.health = Health(home.config.metrics, self._unready, lambda: metrics_text(self.gauges.families()))
        self.lines = Lines(self.identity)
        self._predictions = Predictions(home, self.tables, self.ledger, self._call)
        self.answering = Answering(home, self.identity, self.roster, self._predictions)
        self.asking = Asking(home, self._predictions, self._call_standing)
        self._ended = threading.Event()
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
            control.Ping: lambda peer, request: control.pong(self.home.name, self.roster),
            control.Propose: self._on_propose,
            control.Count: self._on_count,
            control.BeginRun: self._on_begin,
            control.HasBegun: self._on_under_way,
            control.Report: self._on_report,
            control.HaltRun: self._on_halt,
            control.OpenPrediction: self._on_open_prediction,
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
            control.ListRuns: lambda request: control.Runs(self._statuses()),
            control.Stop: self._on_stop,
            control.Decide: self._on_decide,
            control.RowsUsed: lambda request: control.RowUses(*self.ledger.extent()),
            control.Predict: self._on_predict,
            control.ScoreRows: lambda request: self.asking.ask(self._run(request.run, self.home.name), request.ids),
        }

    def start(self) -> str:
        """Begin to listen, and take up the runs that a crash or a restart left; the address is returned."""
        self._hold_home()
        self._check_certificate()
        self.ledger.fold()
        prune(self.home)
        left = [run for folder in sorted(self.home.runs.glob("*/")) if (run := self._left(folder)) is not None]
        port = self.server.start()  # now: a peer may ask for one of those runs at once
        host = (self.home.config.listen or "127.0.0.1:0").rpartition(":")[0]
        self.address = f"{host}:{port}"
        self.home.private.mkdir(parents=True, exist_ok=True, mode=0o700)
        local = "127.0.0.1" if host in ("0.0.0.0", "[::]") else host
        (self.home.private / CONTROL_FILE).write_text(f"{local}:{port}\n", encoding="utf-8")
        for run in left:
            self._take_up(run)
        if self.home.config.metrics:
            log.info("/healthz, /readyz and /metrics are at http://%s", self.health.start())
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
        return [run for run, thread in self._threads.items() if thread.is_alive()]

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
        begin, end = validity(self.identity.certificate_pem)
        if not begin <= datetime.now(UTC) <= end:
            raise BadInput(
                f"the certificate of '{self.home.name}' is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, so nobody "
                "would accept it now. Set the clock, or make a new one (docs/how-to/rotating-keys.md)."
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
        return self.lines.call(member, request) if member.address else self._call(peer, request)

    def _left(self, folder: Path) -> Run | None:
        """A run that an earlier process of this party knew; a damaged one is set aside and named."""
        if folder.name == DAMAGED:
            return None
        try:
            status, reports, job = read_left(folder, self.home.private)
        except Exception as problem:
            self.damaged[folder.name] = set_aside(folder, problem)
            log.error("run %s was set aside: %s", folder.name, self.damaged[folder.name])
            return None
        run = self._new_run(status.run, job, status.initiator)
        run.status, run.reports = status, reports
        self.runs[run.run] = run
        return run

    def _statuses(self) -> list[RunStatus]:
        lost = [RunStatus(run, "", "", "failed", "damaged", reason) for run, reason in self.damaged.items()]
        return [*(run.status for run in self.runs.values()), *lost]

    def _take_up(self, run: Run) -> None:
        if run.status.phase in ("aligning", "training"):
            log.info("going on with run %s", run.run)
            self._begin(run)
        elif run.status.phase == "accepted":
            threading.Thread(target=self._take_up_accepted, args=(run,), daemon=True).start()

    def _take_up_accepted(self, run: Run) -> None:
        """All had agreed, or we had; the word to begin was lost with this process."""
        try:
            lead, word = run.initiator == self.home.name, self._ask_for_word
            for _ in self._tries(run):
                try:
                    self._lead(run) if lead else word(run)
                except StillWaiting as waiting:
                    run.update(progress={**run.status.progress, "awaiting": waiting.names})
                except PeerFailed as problem:
                    log.warning("run %s cannot begin yet: %s", run.run, problem)
                else:
                    return
            if not self._ended.is_set() and not run.status.ended:
                run.stop("failed", f"it did not begin: '{run.initiator}' could not bring everybody together.")
        except OffbeatError as problem:
            self._halt(run, "refused" if isinstance(problem, Refused) else "failed", f"it did not begin: {problem}")
        except Exception as problem:
            log.exception("run %s does not begin", run.run)
            run.stop("failed", f"it could not be taken up again: {problem!r}")

    def _ask_for_word(self, run: Run) -> None:
        """The initiator may be away too: ask it until it answers. What it does not know will never begin."""
        answer = self._call(run.initiator, control.HasBegun(run.run))
        assert isinstance(answer, control.Begun)
        run.begin_with(answer.ids, answer.aligned)
        self._begin(run)

    def _on_under_way(self, peer: str, request: control.HasBegun) -> Answer:
        run = self._run(request.run, peer)
        if run.initiator != self.home.name or run.status.ended:
            raise Refused(f"run '{run.run}' is not under way at '{self.home.name}'.")
        begun = run.own.kept("begun")
        if begun is None:
            raise PeerFailed(f"run '{run.run}' has not begun yet.")
        return control.Begun(begun["ids"], begun.get("aligned", ""))

    def _new_run(self, name: str, job: OrgJob, initiator: str) -> Run:
        party = (self.home, self.identity, self.roster, self.server)
        return Run(*party, name, job, initiator, self.tables, self.ledger, self.privacy)

    def _run(self, name: str, peer: str) -> Run:
        """A peer hears of a run only if it has a part in it; the owner is told which runs there are."""
        run = self.runs.get(name)
        if peer == self.home.name and run is None:
            lost = f": {self.damaged[name]}" if name in self.damaged else f"; it has {', '.join(self.runs) or 'none'}"
            raise BadInput(f"'{self.home.name}' knows no run '{name}'{lost}.")
        if run is None or peer not in run.job.parties:
            raise Refused(f"'{self.home.name}' knows no run {name!r} of '{peer}'.")
        return run

    # -- requests -------------------------------------------------------------------------------------------------

    def _answer(self, member: Member, raw: bytes) -> bytes:
        own = member.name == self.home.name
        try:
            if len(raw) > PEER_REQUEST_BYTES and not own:
                raise Refused(f"a request of {len(raw)} bytes from '{member.name}' is larger than a peer's may be.")
            request = control.decode_request(raw)
            with nullcontext() if own else self.limits.one_more(member.name, type(request)):
                return control.encode(self._dispatch(member.name, request))
        except OffbeatError as problem:
            self.limits.note_refusal(member.name, problem)
            told, kind = (str(problem), type(problem).__name__) if own else self._told(problem)
            return control.encode(Failure(kind, told))
        except Exception as problem:
            return control.encode(Failure("PeerFailed", self._told(problem)[0]))

    def _told(self, problem: Exception) -> tuple[str, str]:
        return for_peers(problem, self.home.name, "answering")

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
        keep the certificates that they began with."""
        if (new := self._reloading.roster()) is not None:
            self.roster = self.answering.roster = self.server.roster = new
            self.caller = PeerCalls(self.identity, new)
            self._letters.begin()

    # -- proposing and beginning ----------------------------------------------------------------------------------

    def _on_submit(self, request: control.Submit) -> Answer:
        job = job_from_text(request.job, "the submitted job")
        for name in job.parties:
            self.roster.member(name)
        self._refuse(job, self.home.name)
        self._refuse_crowd(self.home.name)
        name = f"{job.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        salt = secrets.token_bytes(32)
        log.info("proposing run %s to %s", name, ", ".join(party for party in job.parties if party != self.home.name))
        others = [party for party in job.parties if party != self.home.name]
        awaited = self._agree(others, control.Propose(name, job.text, salt))
        run = self._accept(name, job, self.home.name, salt)
        try:
            run.count()
        except OffbeatError as problem:
            self._halt(run, "failed", for_peers(problem, self.home.name, "counting its ids")[0])
            raise
        if awaited:
            run.update(progress={"awaiting": awaited})
            threading.Thread(target=self._take_up_accepted, args=(run,), daemon=True).start()
            return control.Submitted(name, awaited)
        try:
            self._lead(run)
        except OffbeatError as problem:  # a peer's, in words that it chose for us, or a refusal
            self._halt(run, "failed", printable(str(problem)))
            raise
        return control.Submitted(name)

    def _agree(self, others: list[str], proposal: control.Propose) -> list[str]:
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
                    self._tell(friend, control.HaltRun(proposal.run, "refused", printable(f"{problem}")))
                raise
        return awaited

    def _lead(self, run: Run) -> None:
        """Collect everybody's number of ids, if that has not been done, and give the word to begin."""
        begun = run.own.kept("begun")
        if begun is None:
            counted = {name: self._counted(run, name) for name in run.job.parties}
            if waiting := [name for name, one in counted.items() if one is None]:
                raise StillWaiting(waiting)
            told = {name: one for name, one in counted.items() if one is not None}
            kept = {one.aligned for one in told.values()}
            run.begin_with({name: one.ids for name, one in told.items()}, kept.pop() if len(kept) == 1 else "")
            begun = run.own.kept("begun")
            assert begun is not None
        self._give_word(run, control.BeginRun(run.run, begun["ids"], begun.get("aligned", "")))

    def _counted(self, run: Run, name: str) -> control.Counted | None:
        """None: its owner has not decided yet."""
        if name == self.home.name:
            return control.Counted(run.count(), run.reusable())
        answer = self._call(name, control.Count(run.run), COUNT_WITHIN_S)
        if isinstance(answer, control.Awaited):
            return None
        assert isinstance(answer, control.Counted)
        return answer

    def _on_count(self, peer: str, request: control.Count) -> Answer:
        run = self._of_initiator(request.run, peer)
        refuse_ended(run)
        if run.status.phase == WAITING:
            return control.Awaited()
        run.accepted_s = time.monotonic()  # it is still led
        return control.Counted(run.count(), run.reusable())

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
        """Proposals that never begin expire, and one initiator's cannot take all the room."""
        if self._draining:
            raise Refused(f"'{self.home.name}' is being stopped; ask again when it is back.")
        refuse_without_room(self.home.runs, self.home.name)
        active = [run for run in self.runs.values() if not run.status.ended]
        for run in active:
            kept_s = {"accepted": PROPOSAL_KEPT_S, WAITING: WAITING_KEPT_S}.get(run.status.phase, inf)
            if run.initiator != self.home.name and time.monotonic() > run.accepted_s + kept_s:
                late = (
                    "its owner did not decide" if run.status.phase == WAITING else f"'{run.initiator}' did not begin it"
                )
                run.stop("failed", f"{late} within {kept_s:.0f} s")
        active = [run for run in active if not run.status.ended]
        waiting = [run for run in active if run.status.phase in ("accepted", WAITING) and run.initiator == initiator]
        active = [run for run in active if run.status.phase != WAITING]
        if len(active) >= RUNS_AT_ONCE:
            raise Refused(f"'{self.home.name}' has {len(active)} runs under way, which is the most it takes at once.")
        if initiator != self.home.name and sum(run.initiator == initiator for run in active) >= RUNS_OF_ONE:
            raise Refused(f"'{initiator}' has {RUNS_OF_ONE} runs under way at '{self.home.name}', the most of one.")
        if len(waiting) >= PROPOSALS_OF_ONE:
            raise Refused(f"'{initiator}' has {len(waiting)} proposals at '{self.home.name}' that it has not begun.")

    def _on_propose(self, peer: str, request: control.Propose) -> Answer:
        job = job_from_text(request.job, f"the job of '{peer}'")
        check_run_name(request.run, job.name, peer)
        known = self.runs.get(request.run)
        if known is not None and known.same_proposal(peer, job, request.salt):  # our answer was lost
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

    def _give_word(self, run: Run, word: control.BeginRun) -> None:
        """Tell everybody to begin, and begin; whoever cannot be told now is told while the others wait for it."""
        untold = self._tell_to_begin(run, word, [other for other in run.job.parties if other != self.home.name])
        self._begin(run)
        if untold:
            threading.Thread(target=self._tell_late, args=(run, word, untold), daemon=True).start()

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
                log.warning("could not tell %s to begin run %s yet: %s", other, run.run, problem)
                untold.append(other)
            except OffbeatError as problem:
                self._halt(run, "failed", f"'{other}' did not begin: {problem}")
        return untold

    def _tries(self, run: Run) -> Iterator[int]:
        """Once every `WORD_PAUSE_S` while the run and this daemon last, a bounded number of times; people who decide
        are given longer than machines."""
        for number in range(AWAITED_TRIES if run.status.progress.get("awaiting") else WORD_TRIES):
            if self._ended.wait(WORD_PAUSE_S if number else 0.0) or run.status.ended:
                return
            yield number

    def _on_begin(self, peer: str, request: control.BeginRun) -> Answer:
        run = self._of_initiator(request.run, peer)
        if run.status.ended and run.run not in self._threads:
            raise Refused(f"run '{run.run}' has ended at '{self.home.name}' ({run.status.verdict}).")
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
            thread = threading.Thread(target=run.take_part, args=(self._reporter(run),), name=run.run, daemon=True)
            thread.start()  # first: whoever finds it here, without the lock too, may wait for its end
            self._threads[run.run] = thread

    # -- reporting and halting ------------------------------------------------------------------------------------

    def _reporter(self, run: Run) -> Callable[[control.Report], None]:
        def report(packet: control.Report) -> None:
            log.info("run %s: %s (%s)", run.run, packet.verdict, run.status.reason)
            prune(self.home)
            if run.initiator == self.home.name:
                self._on_report(self.home.name, packet)
            else:
                self._tell(run.initiator, packet)

        return report

    def _on_report(self, peer: str, request: control.Report) -> Answer:
        run, reason = self._run(request.run, peer), printable(request.reason)
        if run.initiator != self.home.name:
            raise Refused(f"'{peer}' reports about run '{run.run}', which '{self.home.name}' does not lead.")
        packet = msgspec.structs.replace(request, verdict=printable(request.verdict), reason=reason)
        run.note_report(peer, msgspec.structs.replace(packet, kind=printable(request.kind)))
        if request.kind and peer != self.home.name and not run.status.ended:
            run.update(kind=printable(request.kind))
            run.stop("failed", f"'{peer}' failed: {reason}")
            run.update(phase="refused" if request.kind == "Refused" else "failed", kind=printable(request.kind))
        if request.kind:
            for other in run.job.parties:
                if other not in (peer, self.home.name):
                    self._tell(other, control.HaltRun(run.run, "failed", f"'{peer}' failed: {reason}"))
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
                    self._tell(other, control.HaltRun(run.run, verdict, reason))

    def _tell(self, peer: str, request: Request) -> None:
        """A courtesy: whoever cannot be reached finds out by itself."""
        try:
            self._call(peer, request)
        except OffbeatError as problem:
            log.warning("could not tell %s: %s", peer, problem)

    def _in_run(self, answer: Callable[[Run, str, Any], Answer]) -> Callable[[str, Any], Answer]:
        """A peer's request about a run in which it has a part."""
        return lambda peer, request: answer(self._run(request.run, peer), peer, request)

    # -- predicting -----------------------------------------------------------------------------------------------

    def _on_predict(self, request: control.Predict) -> Answer:
        return self._predictions.ask(self._run(request.run, self.home.name), request.ids)

    def _on_open_prediction(self, peer: str, request: control.OpenPrediction) -> Answer:
        self._predictions.answer(self._run(request.run, peer), peer, request)
        return control.Done()
