"""`offbeat party serve`: one party's daemon. It answers its owner and its peers, and takes part in runs.

The initiator proposes; every party accepts or refuses by its policy, before any data is read; then all begin. Each
works through the run by itself, and reports to the initiator. A daemon that was killed finds its runs again when it
starts, and goes on with them.
"""

import json
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from offbeat.errors import BadData, BadInput, BadJob, OffbeatError, PeerFailed, Refused
from offbeat.jobs.organisations import Job, job_from_text
from offbeat.orgs import control
from offbeat.orgs.budget import PrivacyLedger
from offbeat.orgs.control import Answer, Caller, Failure, Request, RunStatus
from offbeat.orgs.party_config import CONTROL_FILE, Home
from offbeat.orgs.policy import refuse_job
from offbeat.orgs.post import Post
from offbeat.orgs.predicting import Predictions
from offbeat.orgs.row_ledger import RowLedger
from offbeat.orgs.runs import Run
from offbeat.orgs.train_embedding import check_shape
from offbeat.runtime.grpc.identity import Member
from offbeat.runtime.grpc.server import Server

log = logging.getLogger("offbeat.party")

RUNS_AT_ONCE = 8
PEER_REQUEST_BYTES = 2**20
POLL_WITHIN_S = 10.0
REFUSALS_LOGGED = 50
POLL_PAUSE_S = 1.0
WORD_PAUSE_S = 5.0
WORD_TRIES = 720  # an hour and more: a call to a party that is away takes its time too


class Daemon:
    """One party's presence on the network."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.identity = home.identity()
        self.roster = home.roster()
        self.caller = Caller(self.identity, self.roster)
        self.ledger = RowLedger(home.ledger)
        self.privacy = PrivacyLedger(home.ledger)
        self.runs: dict[str, Run] = {}
        self.address = ""
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._post = Post()
        self._refused: Counter[str] = Counter()
        self._predictions = Predictions(home, self.ledger, self._call)
        self._ended = threading.Event()
        self.server = Server(
            self.identity, self.roster, home.config.listen or "127.0.0.1:0", control={control.METHOD: self._answer}
        )
        self._peer_requests: dict[type, Callable[[str, Any], Answer]] = {
            control.Ping: lambda peer, request: control.pong(home.name, self.roster),
            control.Propose: self._on_propose,
            control.Begin: self._on_begin,
            control.UnderWay: self._on_under_way,
            control.Report: self._on_report,
            control.Halt: self._on_halt,
            control.OpenPrediction: self._on_open_prediction,
            control.Poll: lambda peer, request: control.Letters(self._post.collect(peer, POLL_WITHIN_S)),
            control.Reply: self._on_reply,
        }
        self._owner_requests: dict[type, Callable[[Any], Answer]] = {
            control.Submit: self._on_submit,
            control.Status: lambda request: self._run(request.run).status,
            control.ListRuns: lambda request: control.Runs([run.status for run in self.runs.values()]),
            control.Stop: self._on_stop,
            control.Predict: self._on_predict,
        }

    def start(self) -> str:
        """Begin to listen, and take up the runs that a crash or a restart left; the address is returned."""
        left = [self._left(state) for state in sorted(self.home.runs.glob("*/state.json"))]
        port = self.server.start()  # now: a peer may ask for one of those runs at once
        host = (self.home.config.listen or "127.0.0.1:0").rpartition(":")[0]
        self.address = f"{host}:{port}"
        self.home.private.mkdir(parents=True, exist_ok=True, mode=0o700)
        local = "127.0.0.1" if host in ("0.0.0.0", "[::]") else host
        (self.home.private / CONTROL_FILE).write_text(f"{local}:{port}\n", encoding="utf-8")
        for run in left:
            self._take_up(run)
        if not self.roster.member(self.home.name).address:
            self._fetch_letters()
        return self.address

    def stop(self) -> None:
        self._ended.set()
        self.server.stop()

    # -- a party that cannot be called ----------------------------------------------------------------------------

    def _fetch_letters(self) -> None:
        """Nobody can call us: ask everybody who can be called for letters, again and again."""
        for member in self.roster.members:
            if member.address:
                threading.Thread(
                    target=self._poll, args=(member,), name=f"letters of {member.name}", daemon=True
                ).start()

    def _poll(self, member: Member) -> None:
        while not self._ended.is_set():
            try:
                letters = self.caller.call(member.name, control.Poll(), POLL_WITHIN_S + control.CALL_WITHIN_S)
                assert isinstance(letters, control.Letters)
                for number, request in letters.letters:
                    self.caller.call(member.name, control.Reply(number, self._answer(member, request)))
            except OffbeatError:
                self._ended.wait(POLL_PAUSE_S)
            except Exception:  # without this thread nobody could reach us any more
                log.exception("fetching letters of %s failed", member.name)
                self._ended.wait(POLL_PAUSE_S)

    def _on_reply(self, peer: str, request: control.Reply) -> Answer:
        self._post.answer(request.number, request.answer)
        return control.Done()

    def _call(self, peer: str, request: Request) -> Answer:
        """Call a peer, or leave a letter for one that cannot be called."""
        if self.roster.member(peer).address:
            return self.caller.call(peer, request)
        return control.decode_answer(self._post.send(peer, control.encode(request), control.CALL_WITHIN_S))

    def _left(self, path: Path) -> Run:
        """A run that an earlier process of this party knew."""
        state = json.loads(path.read_text(encoding="utf-8"))
        reports = state.pop("reports")
        job = job_from_text((path.parent / "job.toml").read_text(encoding="utf-8"), path.parent / "job.toml")
        run = self._new_run(state["run"], job, state["initiator"])
        run.status, run.reports = RunStatus(**state), reports
        self.runs[run.run] = run
        return run

    def _take_up(self, run: Run) -> None:
        if run.status.phase in ("aligning", "training"):
            log.info("going on with run %s", run.run)
            self._begin(run)
        elif run.status.phase == "accepted":
            threading.Thread(target=self._take_up_accepted, args=(run,), daemon=True).start()

    def _take_up_accepted(self, run: Run) -> None:
        """All had agreed, or we had; the word to begin was lost with this process."""
        try:
            if run.initiator == self.home.name:
                self._give_word(run)
            else:
                self._ask_for_word(run)
        except Exception as problem:
            log.exception("run %s does not begin", run.run)
            run.stop("failed", f"it could not be taken up again: {problem!r}")

    def _ask_for_word(self, run: Run) -> None:
        """The initiator may be away too: ask it until it answers. What it does not know will never begin."""
        for _ in self._tries(run):
            try:
                self._call(run.initiator, control.UnderWay(run.run))
            except PeerFailed as problem:
                log.warning("cannot ask %s whether run %s has begun: %s", run.initiator, run.run, problem)
            except OffbeatError as problem:
                run.stop("failed", f"it did not begin: {problem}")
            else:
                self._begin(run)
                return
        if not self._ended.is_set() and not run.status.ended:
            run.stop("failed", f"it did not begin: '{run.initiator}' could not be asked about it.")

    def _on_under_way(self, peer: str, request: control.UnderWay) -> Answer:
        run = self._run(request.run)
        if run.initiator != self.home.name or run.status.ended:
            raise Refused(f"run '{request.run}' is not under way at '{self.home.name}'.")
        return control.Done()

    def _new_run(self, name: str, job: Job, initiator: str) -> Run:
        return Run(self.home, self.identity, self.roster, self.server, name, job, initiator, self.ledger, self.privacy)

    def _run(self, name: str) -> Run:
        run = self.runs.get(name)
        if run is None:
            known = ", ".join(self.runs) or "none"
            raise BadInput(f"'{self.home.name}' knows no run '{name}'; it has {known}.")
        return run

    # -- requests -------------------------------------------------------------------------------------------------

    def _answer(self, member: Member, raw: bytes) -> bytes:
        try:
            if len(raw) > PEER_REQUEST_BYTES and member.name != self.home.name:
                raise Refused(f"a request of {len(raw)} bytes from '{member.name}' is larger than a peer's may be.")
            return control.encode(self._dispatch(member.name, control.decode_request(raw)))
        except OffbeatError as problem:
            self._note_refusal(member.name, problem)
            return control.encode(Failure(type(problem).__name__, str(problem)))
        except Exception as problem:
            log.exception("a request of %s failed", member.name)
            return control.encode(Failure("PeerFailed", f"'{self.home.name}' failed to answer: {problem!r}"))

    def _note_refusal(self, peer: str, problem: OffbeatError) -> None:
        """The first ones in full, then one each time their number doubles: a log must not be a way to fill a disk."""
        self._refused[peer] += 1
        count = self._refused[peer]
        if count <= REFUSALS_LOGGED or count & (count - 1) == 0:
            log.warning("%s was refused: %s (%d so far)", peer, problem, count)

    def _dispatch(self, peer: str, request: Request) -> Answer:
        owner = self._owner_requests.get(type(request))
        if owner is None:
            return self._peer_requests[type(request)](peer, request)
        if peer != self.home.name:
            raise Refused(
                f"'{peer}' asked '{self.home.name}' for what only its owner may ask ({type(request).__name__})."
            )
        return owner(request)

    # -- proposing and beginning ----------------------------------------------------------------------------------

    def _on_submit(self, request: control.Submit) -> Answer:
        job = job_from_text(request.job, "the submitted job")
        for name in job.parties:
            self.roster.member(name)
        self._refuse(job, self.home.name)
        self._refuse_crowd()
        name = f"{job.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        salt = secrets.token_bytes(32)
        others = [party for party in job.parties if party != self.home.name]
        self._agree(others, control.Propose(name, job.text, salt))
        run = self._new_run(name, job, self.home.name)
        self.runs[name] = run
        run.accept(salt)
        self._give_word(run)
        return control.Submitted(name)

    def _agree(self, others: list[str], proposal: control.Propose) -> None:
        """Ask everybody; if one refuses or cannot be asked, tell those who accepted."""
        accepted: list[str] = []
        for other in others:
            try:
                self._call(other, proposal)
                accepted.append(other)
            except OffbeatError as problem:
                for friend in accepted:
                    self._tell(friend, control.Halt(proposal.run, "refused", f"{problem}"))
                raise

    def _refuse(self, job: Job, initiator: str) -> None:
        """What can be known to be impossible before any data is read."""
        refuse_job(self.home.config.policy, job, self.home.name, initiator, self.privacy.after)
        if self.home.name in job.labels_at and self.home.config.data.label is None:
            raise BadData(
                f"the job wants the labels of '{self.home.name}', but its party.toml names no label column; add "
                'label = "..." under [data], or leave this party out of labels_at.'
            )
        check_shape(job, self.home.config.data.shape, self.home.name)

    def _refuse_crowd(self) -> None:
        active = [name for name, run in self.runs.items() if not run.status.ended]
        if len(active) >= RUNS_AT_ONCE:
            raise Refused(f"'{self.home.name}' has {len(active)} runs under way, which is the most it takes at once.")

    def _on_propose(self, peer: str, request: control.Propose) -> Answer:
        job = job_from_text(request.job, f"the job of '{peer}'")
        if request.run in self.runs:
            return control.Done()
        if not request.run.startswith(f"{job.name}-") or "/" in request.run or len(request.run) > 120:
            raise BadJob(f"'{peer}' named a run '{request.run[:120]}', which is not a name for job '{job.name}'.")
        self._refuse(job, peer)
        self._refuse_crowd()
        run = self._new_run(request.run, job, peer)
        self.runs[request.run] = run
        run.accept(request.salt)
        log.info("accepted run %s of %s", request.run, peer)
        return control.Done()

    def _give_word(self, run: Run) -> None:
        """Tell everybody to begin, and begin; whoever cannot be told now is told while the others wait for it."""
        untold = self._tell_to_begin(run, [other for other in run.job.parties if other != self.home.name])
        self._begin(run)
        if untold:
            threading.Thread(target=self._tell_late, args=(run, untold), daemon=True).start()

    def _tell_late(self, run: Run, untold: list[str]) -> None:
        for _ in self._tries(run):
            untold = self._tell_to_begin(run, untold)
            if not untold:
                return

    def _tell_to_begin(self, run: Run, others: list[str]) -> list[str]:
        """Those who could not be reached. A party that will not begin ends the run for all."""
        untold = []
        for other in others:
            try:
                self._call(other, control.Begin(run.run))
            except PeerFailed as problem:
                log.warning("could not tell %s to begin run %s yet: %s", other, run.run, problem)
                untold.append(other)
            except OffbeatError as problem:
                self._halt(run, "failed", f"'{other}' did not begin: {problem}")
        return untold

    def _tries(self, run: Run) -> Iterator[int]:
        """Once every `WORD_PAUSE_S` while the run and this daemon last, a bounded number of times."""
        for number in range(WORD_TRIES):
            if self._ended.wait(WORD_PAUSE_S if number else 0.0) or run.status.ended:
                return
            yield number

    def _on_begin(self, peer: str, request: control.Begin) -> Answer:
        run = self._of_initiator(request.run, peer)
        if run.status.ended and run.run not in self._threads:
            raise Refused(f"run '{run.run}' has ended at '{self.home.name}' ({run.status.reason}).")
        self._begin(run)
        return control.Done()

    def _of_initiator(self, name: str, peer: str) -> Run:
        run = self._run(name)
        if peer != run.initiator:
            raise Refused(f"run '{name}' is led by '{run.initiator}', not by '{peer}'.")
        return run

    def _begin(self, run: Run) -> None:
        with self._lock:
            if run.run in self._threads or run.status.ended:
                return
            thread = threading.Thread(target=run.take_part, args=(self._reporter(run),), name=run.run, daemon=True)
            thread.start()  # first: whoever finds it here, without the lock too, may wait for its end
            self._threads[run.run] = thread

    # -- reporting and halting ------------------------------------------------------------------------------------

    def _reporter(self, run: Run) -> Callable[[str, str, str, dict[str, Any]], None]:
        def report(verdict: str, reason: str, kind: str, facts: dict[str, Any]) -> None:
            log.info("run %s: %s (%s)", run.run, verdict, reason)
            packet = control.Report(run.run, verdict, reason, kind, facts)
            if run.initiator == self.home.name:
                self._on_report(self.home.name, packet)
            else:
                self._tell(run.initiator, packet)

        return report

    def _on_report(self, peer: str, request: control.Report) -> Answer:
        run = self._run(request.run)
        if run.initiator != self.home.name or peer not in run.job.parties:
            raise Refused(f"'{peer}' reports about run '{request.run}', which '{self.home.name}' does not lead.")
        run.note_report(peer, request.verdict, request.reason, request.kind, request.facts)
        if request.kind and peer != self.home.name and not run.status.ended:
            run.update(kind=request.kind)
            run.stop("failed", f"'{peer}' failed: {request.reason}")
            run.update(phase="refused" if request.kind == "Refused" else "failed", kind=request.kind)
        if request.kind:
            for other in run.job.parties:
                if other not in (peer, self.home.name):
                    self._tell(other, control.Halt(request.run, "failed", f"'{peer}' failed: {request.reason}"))
        return control.Done()

    def _on_halt(self, peer: str, request: control.Halt) -> Answer:
        run = self._of_initiator(request.run, peer)
        run.stop(request.verdict, request.reason, gently=request.verdict == "stopped")
        return control.Done()

    def _on_stop(self, request: control.Stop) -> Answer:
        self._halt(self._run(request.run), "stopped", f"stopped by the owner of '{self.home.name}'")
        return control.Done()

    def _halt(self, run: Run, verdict: str, reason: str) -> None:
        """End a run here and, if it is ours to lead, everywhere."""
        run.stop(verdict, reason, gently=verdict == "stopped" and run.initiator == self.home.name)
        if run.initiator == self.home.name:
            for other in run.job.parties:
                if other != self.home.name:
                    self._tell(other, control.Halt(run.run, verdict, reason))

    def _tell(self, peer: str, request: Request) -> None:
        """A courtesy: whoever cannot be reached finds out by itself."""
        try:
            self._call(peer, request)
        except OffbeatError as problem:
            log.warning("could not tell %s: %s", peer, problem)

    # -- predicting -----------------------------------------------------------------------------------------------

    def _on_predict(self, request: control.Predict) -> Answer:
        return self._predictions.ask(self._run(request.run), request.ids)

    def _on_open_prediction(self, peer: str, request: control.OpenPrediction) -> Answer:
        self._predictions.answer(self._run(request.run), peer, request)
        return control.Done()
