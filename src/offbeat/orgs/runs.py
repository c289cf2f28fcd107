"""One run at one party: proposed, aligned, trained, tested; every step can be taken up again after a crash.

runs/<run>/state.json        phase and verdict
runs/<run>/job.toml          the job as all parties agreed to it
runs/<run>/align/, events/, checkpoints/ (with this party's weights), record.json, report.html
private/<run>/               salt, nonce, mark of the key, digest of the table, aligned rows, this party's block
"""

import hashlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offbeat.data.table import Table
from offbeat.errors import DiskFull, OffbeatError, PeerFailed, Refused
from offbeat.families.contract import Counters
from offbeat.families.linear import certificate_from, certified_row
from offbeat.jobs.organisations import OrgJob
from offbeat.learning.scores import answered_metrics, metrics_of
from offbeat.metrics import held_out
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.held_out import HeldOut
from offbeat.metrics.lag import Lags
from offbeat.metrics.live import LiveRun, Now, PartyNow, live_run
from offbeat.metrics.plain import json_text
from offbeat.metrics.record import Certificate
from offbeat.orgs import align_psi, predict
from offbeat.orgs.budget import PrivacyLedger, charges_of
from offbeat.orgs.control import ENDED_PHASES, PAUSED, QUEUED, Facts, Report, RunStatus, error_named
from offbeat.orgs.daemon_log import about
from offbeat.orgs.discreet import OWNER_TEXT_MOST, Discreet, Withheld, for_kind, for_peers, printable
from offbeat.orgs.durable import SECRET_BYTES, wait_for_room, write_durably, write_secret
from offbeat.orgs.kept_alignments import KeptAlignments
from offbeat.orgs.org_record import OwnRun, write_record
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import refuse_rows, refuse_sizes, refuse_test_rows
from offbeat.orgs.row_ledger import Reservation, RowLedger
from offbeat.orgs.rows import OwnRows, digest_of_labels, own_rows, write_model
from offbeat.orgs.sessions import OwnSessions, OwnTraining, ids_of
from offbeat.orgs.tables import KeptTable, OwnTables
from offbeat.party.contract import Finish, Message, Party
from offbeat.party.verdicts import ended_well
from offbeat.runtime.checkpoint import write_checkpoint
from offbeat.runtime.contract import Outcome
from offbeat.runtime.grpc.identity import Identity, PinnedRoster, write_private
from offbeat.runtime.grpc.options import SessionOptions
from offbeat.runtime.grpc.server import StreamServer
from offbeat.runtime.grpc.session import DISK_FULL, Session

log = logging.getLogger("offbeat.party")

END_WITHIN_S = 20.0
PROGRESS_EVERY_S = 2.0
WRITES_MOST = 5
THEN = {"align": "train", "train": "test"}


class Run:
    """A run's state and its steps. `report` tells the initiator how this party's part ended."""

    def __init__(
        self,
        home: Home,
        identity: Identity,
        roster: PinnedRoster,
        server: StreamServer,
        run: str,
        job: OrgJob,
        initiator: str,
        tables: OwnTables,
        ledger: RowLedger,
        privacy: PrivacyLedger,
    ) -> None:
        self.home, self.identity, self.roster, self.server = home, identity, roster, server
        self.run, self.job, self.initiator = run, job, initiator
        self.tables, self.ledger, self.privacy = tables, ledger, privacy
        self.own = OwnSessions(home, identity, run, job)
        self.alignments = KeptAlignments(home.private)
        self.folder, self.private = self.own.folder, self.own.private
        self.status = RunStatus(run, job.name, initiator, "proposed")
        self.reports: dict[str, dict[str, Any]] = {}
        self.accepted_s = self.asked_s = time.monotonic()  # asked for a place, and given one: see orgs/run_queue.py
        self.place_s = -inf
        self._session: Session | None = None
        self._training: OwnTraining | None = None
        self._live: LiveRun | None = None
        self._stopped = ""
        self._sent: dict[str, dict[str, list[int]]] = {}  # by session: kind -> [messages, payload bytes]
        self._lock = threading.RLock()

    # -- state ----------------------------------------------------------------------------------------------------

    def update(self, **changes: Any) -> None:
        """Change the status and write it down. A run that has ended does not begin again."""
        with self._lock:
            if self.status.ended and changes.get("phase") not in (None, *ENDED_PHASES):
                del changes["phase"]
            self.status = msgspec.structs.replace(self.status, **changes)
            self._write_state()

    def _write_state(self) -> None:
        """A folder that somebody has removed is not made again: half a run folder would be worse than none."""
        text = json_text({**msgspec.structs.asdict(self.status), "reports": self.reports}).encode()
        for _ in range(WRITES_MOST):
            if not self._has_its_folder:
                break
            try:
                write_durably(self.folder / "state.json", text, new_folder=False)
                return
            except FileNotFoundError:  # the folder is gone, or the daemon before this one was writing, too
                continue
            except OSError as problem:
                if problem.errno not in DISK_FULL:
                    raise
                log.error("run %s: its state could not be written: the disk is full", self.run, extra={"run": self.run})
                return
        if not self.status.ended and not self._has_its_folder:
            log.error("%s", self._removed, extra={"run": self.run})
            self.status = msgspec.structs.replace(self.status, phase="failed", verdict="failed", reason=self._removed)
            self._stopped = self._removed
            if self._session is not None:
                self._session.stop(self._removed)

    @property
    def _has_its_folder(self) -> bool:
        return (self.folder / "job.toml").is_file()

    @property
    def _removed(self) -> str:
        return f"the folder of run '{self.run}' was removed at '{self.home.name}' while it was under way"

    def note_report(self, peer: str, report: Report) -> None:
        """What a party says about its end; two may say it at once."""
        with self._lock:
            end = {"verdict": report.verdict, "reason": report.reason, "kind": report.kind}
            self.reports[peer] = {**end, **msgspec.to_builtins(report.facts)}
            told = report.facts.metrics if peer == self.job.labels_at[0] else {}  # the others know no scores
            metrics = {printable(name): value for name, value in told.items() if isfinite(value)}
            parties = {**self.status.parties, peer: report.verdict}
            self.update(parties=parties, metrics={**self.status.metrics, **metrics})

    def accept(self, salt: bytes, phase: str = "accepted") -> None:
        """Write the run down, under secrets of its own that nothing had before."""
        if self.folder.exists() or self.private.exists():
            raise Refused(f"'{self.home.name}' has a folder of a run '{self.run}' already; propose another name.")
        self.home.runs.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(self.private / "salt", salt)
        write_secret(self.private / "nonce", os.urandom(SECRET_BYTES))
        write_private(self.private / "key-mark", self.identity.mark.encode())
        write_durably(self.folder / "job.toml", self.job.text.encode())
        self.update(phase=phase)

    def same_proposal(self, initiator: str, job: OrgJob, salt: bytes) -> bool:
        return (initiator, job.digest, salt) == (self.initiator, self.job.digest, self.own.salt)

    def trust(self, roster: PinnedRoster) -> None:
        """Take a newer roster. What is under way keeps the certificates that it began with, beside new ones."""
        session = self._session
        self.roster = self.roster.also(roster) if session is not None else roster
        if session is not None:
            session.trust(self.roster)

    def wait_in_queue(self, why: str) -> None:
        """Say that there is no place for this run yet; an empty reason: there is one now."""
        if self.status.progress.get(QUEUED, "") != why:
            progress = {**self.status.progress, QUEUED: why}
            self.update(phase=QUEUED if why else "accepted", progress=progress)

    def count(self) -> int:
        """Commit this party to the table as it is now: its digest, and its number of ids, which the others are told."""
        with self._lock:
            kept = self.own.kept("table")
            if kept is None:
                table = self.tables.current()
                kept = {"digest": table.digest, "ids": len(table.column(self.own.salt).tokens)}
                write_checkpoint(self.private, "table", kept)
            return int(kept["ids"])

    def reusable(self) -> str:
        """The run from which this party has an alignment that still holds; nothing if it has none. What is offered is
        kept for this run: another one may find a newer alignment meanwhile."""
        with self._lock:
            accepted, offered = self.own.kept("table"), self.own.kept("offered")
            if offered is None and accepted is not None:
                none = {"run": "", "rows": np.empty(0, np.int64), "coin": b""}
                offered = self.alignments.found(self.job, accepted["digest"]) or none
                write_checkpoint(self.private, "offered", {key: offered[key] for key in none})
            return "" if offered is None else str(offered["run"])

    def begin_with(self, sizes: Mapping[str, int], aligned: str = "") -> None:
        """Take the numbers of ids that all parties brought; what this party brought must be among them. `aligned`: the
        run whose alignment is taken over. The word may come twice at once: told, and asked for after a restart."""
        with self._lock:
            self._begin_with(sizes, aligned)

    def _begin_with(self, sizes: Mapping[str, int], aligned: str) -> None:
        kept, begun = self.own.kept("table"), self.own.kept("begun")
        if begun is not None:
            return
        if kept is None or set(sizes) != set(self.job.parties) or sizes[self.home.name] != kept["ids"]:
            raise Refused(f"run '{self.run}' was to begin with other numbers of ids than '{self.home.name}' gave.")
        refuse_sizes(self.home.config.policy, self.home.name, sizes)
        if aligned and aligned != self.reusable():
            raise Refused(f"'{self.home.name}' has kept no alignment of run '{aligned}' that still holds.")
        least = self.home.config.policy.rows_least
        write_checkpoint(self.private, "begun", {"ids": dict(sizes), "least": least, "aligned": aligned})

    def stop(self, verdict: str, reason: str, *, gently: bool = False) -> None:
        """End this run here, from any thread. Gently: a training of certified models is given time to end with the best
        one, the same at every party; the initiator's party brings that about."""
        if self.status.ended:
            return
        self._stopped = reason
        session = self._session
        if session is not None and gently and self._certifies:
            if self.initiator == self.home.name:
                session.ask_to_end()
            impatient = threading.Timer(END_WITHIN_S, session.stop, (reason,))
            impatient.daemon = True
            impatient.start()
            return
        if session is not None:
            session.stop(reason)
        if not self.status.ended:
            self.update(phase="stopped" if verdict == "stopped" else "failed", verdict=verdict, reason=reason)

    @property
    def has_failed(self) -> bool:
        """Whether the present session has ended here, other than well, by what this party saw itself."""
        session = self._session
        finish = session.host.drive.finished if session is not None else None
        return finish is not None and not ended_well(finish.verdict)

    @property
    def _certifies(self) -> bool:
        return self.status.phase == "training" and not self.job.embeds and not self.job.private_products

    # -- the steps ------------------------------------------------------------------------------------------------

    def take_part(self, report: Callable[[Report], None]) -> None:
        """Align, train, test; what is done already is not done again."""
        with about(run=self.run):
            self._take_part(report)

    def _take_part(self, report: Callable[[Report], None]) -> None:
        facts = Facts()
        try:
            verdict, reason, facts = self._steps_with_room()
            told, kind, phase = reason, "", "done" if ended_well(verdict) else "failed"
            phase = "stopped" if verdict == "stopped" else phase  # the others had heard of it before we did
        except Exception as problem:
            verdict, told, kind = "failed", *self._for_peers(problem)
            reason = self._for_owner(problem)
            phase = "refused" if kind == "Refused" else "failed"
        if self._stopped and phase != "done":
            verdict, reason, kind, phase = "stopped", self._stopped, "", "stopped"
            told = reason
        reason = printable(reason, OWNER_TEXT_MOST)
        if not self.status.ended:
            self.update(phase=phase, verdict=verdict, reason=reason, kind=kind)
        self._stopped = ""  # what a stopped run has kept may predict
        report(Report(self.run, verdict, printable(told), kind, facts))

    def _for_peers(self, problem: Exception) -> tuple[str, str]:
        """Why a run failed, without data. A run whose thread died unheard would keep everybody waiting."""
        if isinstance(problem, Withheld):
            return str(problem), for_kind(problem.cause)
        told, kind = for_peers(problem, self.home.name, f"{self.status.phase} in run '{self.run}'")
        named = told if f"'{self.home.name}'" in told else f"'{self.home.name}', while {self.status.phase}: {told}"
        return named, kind

    def _for_owner(self, problem: Exception) -> str:
        """The same with everything that helps its owner; it stays in this party's folder."""
        cause = problem.cause if isinstance(problem, Withheld) else problem
        foreseen = isinstance(cause, OffbeatError)
        what = f"{cause}" if foreseen else f"an unexpected {type(cause).__name__}: {cause}. The log has the traceback."
        return f"'{self.home.name}', while {self.status.phase}: {what}"

    def _steps_with_room(self) -> tuple[str, str, Facts]:
        """A full disk is a pause: the steps are taken up again as after a crash, once there is room."""
        while True:
            try:
                return self._steps()
            except DiskFull:
                self.update(progress={**self.status.progress, PAUSED: "paused: the disk is full"})
                wait_for_room(self.home.runs, self.run, self.job.network.wait_s, lambda: self._stopped)

    def _steps(self) -> tuple[str, str, Facts]:
        accepted = self.own.kept("table")
        assert accepted is not None, "a run begins with this party's number of ids"
        self._enter("aligning")
        kept = self.tables.as_accepted(accepted["digest"], self.run)
        table, aligned = kept.table, self._aligned(kept)
        own = own_rows(self.home, table, self.job, aligned["rows"], aligned["tokens"], aligned["coin"])
        refuse_rows(self.home.config.policy, self.home.name, len(own.tokens_train))
        refuse_test_rows(self.home.config.policy, self.home.name, len(own.tokens_test))
        self._spend(table)
        self._enter("training", rows=len(aligned["rows"]))
        training, outcome = self._trained(own, ids_of(own.tokens_train, table, aligned))
        finish = outcome.finished[self.home.name]
        metrics: dict[str, float] = {}
        seen: HeldOut | None = None
        if ended_well(finish.verdict):
            metrics, seen = self._tested(own, ids_of(own.tokens_test, table, aligned))
            self.update(metrics=metrics)
        notes = (*self._alignment_notes(table, aligned), *own.notes)
        ended = OwnRun(self.job, self.run, training, outcome, own, notes, self.status.metrics, self._sent, seen)
        if not self._has_its_folder:
            raise PeerFailed(self._removed)
        told = write_record(self.folder, ended)
        return finish.verdict, finish.reason, Facts(outcome.events, outcome.time_s, **told, metrics=metrics)

    def _enter(self, phase: str, **progress: Any) -> None:
        log.info("run %s: %s", self.run, phase)
        before = {name: told for name, told in self.status.progress.items() if name not in (QUEUED, PAUSED)}
        self.update(phase=phase, progress={**before, **progress})

    def _spend(self, table: Table) -> None:
        """Write down what leaves of this party under an account, before it can."""
        policy, label = self.home.config.policy, self.home.config.data.label
        private = self.home.name in self.job.labels_at and self.job.method.label_dp_epsilon is not None
        digest = digest_of_labels(self.home, table) if private else ""
        charges = charges_of(self.job, self.home.name, self.run, str(label), digest)
        self.privacy.spend(charges, self.run, policy.epsilon, policy.delta, self.home.name)

    def _aligned(self, table: KeptTable) -> dict[str, Any]:
        """Which rows of the table are aligned, in which order, by which tokens."""
        kept = self.own.kept("alignment")
        if kept is not None:
            self.say_ended(align="aligned")
            self._sent["align"] = kept["sent"]
            return {"coin": b"", **kept}  # a run of a version that tossed none
        column = table.column(self.own.salt)
        party = self.own.aligner(column)
        digest = self._bound(f"{sorted(party.sizes.items())}".encode())
        outcome = self.session("align", party, align_psi.MESSAGES, self.folder / "align", digest)
        finish = outcome.finished[self.home.name]
        if finish.verdict != "aligned":
            raise error_named("Refused" if finish.verdict == align_psi.TOO_FEW else "PeerFailed", f"{finish.reason}.")
        assert party.joined is not None
        notes, sent = column.notes(self.home.name), self._sent["align"]
        aligned = {"rows": party.rows(), "tokens": party.joined, "coin": party.coin, "notes": notes, "sent": sent}
        write_checkpoint(self.private, "alignment", aligned)
        if not self.own.taken_over:
            self.alignments.note(self.run, self.job, table.digest, party.rows(), party.coin)
        return aligned

    def _alignment_notes(self, table: Table, aligned: dict[str, Any]) -> tuple[str, ...]:
        """How the rows were found, and what finding them told."""
        who, leader = self.home.name, self.job.labels_at[0]
        shared, all_have = len(aligned["rows"]), f"ids that all {len(self.job.parties)} parties have"
        told = f"{shared} of the {len(table)} rows of '{who}' belong to {all_have}."
        if self.job.rows.align == "import":
            return (*aligned["notes"], f"{told} The order was imported; no ids were compared.")
        if self.own.taken_over:
            taken = (
                f"The order is that of run '{self.own.taken_over}': no table has changed since, no ids were compared."
            )
            return (*aligned["notes"], f"{told} {taken}")
        learned = (
            f"Private set intersection told everybody how many ids each party has and which of its own ids all have, "
            f"and '{leader}' which of its own the parties asked before the last one share."
        )
        if held := (self.own.kept("offered") or {}).get("run"):
            why = "because another party said that its own no longer holds"
            learned += f" '{who}' had kept the order of run '{held}': the test rows are drawn anew, {why}."
        return (*aligned["notes"], told, learned)

    def _trained(self, own: OwnRows, ids: list[Any]) -> tuple[OwnTraining, Outcome]:
        reservation = self._reserved(ids)
        training = self._training = self.own.training(own, reservation)
        digest, watched = self._training_digest(own), self.folder if self._has_its_folder else None
        try:
            with live_run(watched, self._now()) as self._live, self._progress_of(training):
                outcome = self.session("train", training.party, training.messages, self.folder, digest)
        except DiskFull:  # a pause: what is reserved stays so
            raise
        except BaseException:
            reservation.settle(training.watched.asked)  # a run that fails has used its rows too
            raise
        finally:
            self._training = self._live = None
        reservation.settle(training.watched.asked)
        write_model(self.private, "model", training.model())
        self.update(kept=training.certified())
        return training, outcome

    def _now(self) -> Now:
        """The training before anything has happened, for whoever watches the folder."""
        method = self.job.method
        goal = float(self.job.products.rounds) if self.job.private_products else method.passes
        algorithm, seed = method.algorithm, method.seed
        return Now(algorithm=algorithm, runtime="grpc", clock="wall", seed=seed, goal=goal, target=method.target)

    def _show(self, row: CurveRow, certificate: Certificate | None = None) -> None:
        """One look, for whoever watches the folder; two threads may have one."""
        with self._lock:
            training, live = self._training, self._live
            if training is not None and live is not None and self._has_its_folder:
                live.look(row, certificate, lambda: {self.home.name: self._party_now(training.counters())})

    def _party_now(self, counters: Counters) -> PartyNow:
        sent, lags = self.sent_so_far().values(), counters.lags or Lags()
        messages, size = (sum(part) for part in zip(*sent, strict=True)) if sent else (0, 0)
        return PartyNow(counters.updates, lags.mean, lags.most, messages, size)

    @contextmanager
    def _progress_of(self, training: OwnTraining) -> Iterator[None]:
        """Note now and then how far a training is: a party that does not lead it is told nothing by it."""
        over, begun_s = threading.Event(), time.monotonic()

        def note() -> None:
            while not over.wait(PROGRESS_EVERY_S):
                sent = sum(size for _, size in self.sent_so_far().values())
                self._show(CurveRow(time.monotonic() - begun_s, training.passes(), sent))
                if "objective" not in self.status.progress:  # the chair's certificates say it better
                    self.update(progress={**self.status.progress, "passes": training.passes()})
                else:
                    self.update()

        noting = threading.Thread(target=note, name=f"progress of {self.run}", daemon=True)
        noting.start()
        try:
            yield
        finally:
            over.set()
            noting.join()

    def _reserved(self, ids: list[Any]) -> Reservation:
        cap = self.home.config.policy.row_cap
        reservation = Reservation(self.ledger, ids, what=self.run, asker=self.initiator, cap=cap)
        if not reservation(1):
            raise Refused(
                f"'{self.home.name}' lets a row enter at most {cap} sums (row_cap); a row of this run has none left."
            )
        return reservation

    def _training_digest(self, own: OwnRows) -> str:
        """Every stream of the training compares it: the same job over the same rows in the same order."""
        return self._bound(b"".join(own.tokens_train))

    def _bound(self, to: bytes) -> str:
        """What the streams of a session compare and its transcript is bound to: this, and the job."""
        return f"{hashlib.sha256(to).hexdigest()} {self.job.digest}"

    def _tested(self, own: OwnRows, ids: list[Any]) -> tuple[dict[str, float], HeldOut | None]:
        """Score the held-out rows together; the first label holder alone learns the scores and computes metrics."""
        if not len(own.tokens_test):
            return {}, None
        cap, learner = self.home.config.policy.row_cap, self.job.labels_at[0]
        once = np.full(len(ids), self.job.loss.outputs, np.int64)
        self.ledger.use(ids, once, what=f"{self.run}/test", asker=learner, who=self.home.name, cap=cap)
        party = self.own.tester(own)
        outcome = self.session("test", party, predict.MESSAGES, self.folder / "test", self._training_digest(own))
        finish = outcome.finished[self.home.name]
        if finish.verdict != "predicted":
            raise PeerFailed(f"the test rows could not be scored: {finish.reason}.")
        if party.result is None:
            return {}, None
        assert own.y_test is not None
        scores, truth, loss = party.result, own.y_test, self.job.loss
        if self.job.method.label_dp_epsilon is not None:  # curves of answers at random would be none of the labels
            return _finite(answered_metrics(scores, truth)), None
        classifies = self.job.model.task == "classification"
        told = held_out.of_scores(scores, truth, loss, classifies)
        return _finite(metrics_of(scores, truth, loss, classifies)), told

    # -- what is told of it while it goes on ----------------------------------------------------------------------

    def sent_so_far(self) -> dict[str, tuple[int, int]]:
        """By kind of message: how many were sent and how many bytes, since this process began."""
        session, total = self._session, Counter[tuple[str, int]]()
        going = [] if session is None else [session.host.tally.sent]
        for sent in [*self._sent.values(), *going]:
            for kind, counts in list(sent.items()):
                for place, count in enumerate(counts):
                    total[kind, place] += count
        return {kind: (total[kind, 0], total[kind, 1]) for kind, _ in total}

    def mean_lag(self) -> float | None:
        """Of what this party acted on in its training, as far as that is known."""
        lags = self._training.counters().lags if self._training is not None else None
        return None if lags is None or not lags.number else lags.mean

    # -- sessions -------------------------------------------------------------------------------------------------

    def session(
        self,
        what: str,
        party: Party,
        messages: Sequence[type[Message]],
        folder: Path,
        digest: str,
    ) -> Outcome:
        """Take one party through one of the run's sessions; streams are told apart by the run's name and `what`."""
        session = Session(
            self.identity,
            self.roster,
            Discreet(party, f"{self.status.phase} in run '{self.run}'"),
            messages,
            run=f"{self.run}/{what}",
            server=self.server,
            peers=self.job.parties,
            options=self._session_options(),
            folder=folder,
            job_digest=digest,
            watch=self._watch,
            then=f"{self.run}/{THEN[what]}" if what in THEN else "",
        )
        self._session = session
        if self._stopped:
            raise PeerFailed(self._stopped)
        try:
            outcome = _quotable(session.run())
        finally:
            self._session = None
        self._sent[what] = outcome.tallies[self.home.name].sent
        return outcome

    def say_ended(self, **verdicts: str) -> None:
        """An earlier process of this party has left these sessions: who still calls for them is told so."""
        for what, verdict in verdicts.items():
            self.server.forget(f"{self.run}/{what}", f"{verdict}: it had ended before '{self.home.name}' was restarted")

    def _session_options(self) -> SessionOptions:
        network = self.job.network
        silence_s = min(5.0, network.loss_s)
        options = SessionOptions(
            on_loss=network.on_loss,
            beat_s=silence_s / 5,
            silence_s=silence_s,
            loss_s=network.loss_s,
            wait_s=max(network.wait_s, network.loss_s),
            fsync=network.fsync,
        )
        # VAFL's parties go on from their whole log: a snapshot of theirs forgets the work that is under way.
        return replace(options, checkpoint_s=inf) if self.job.embeds else options

    def _watch(self, at_s: float, name: str, value: Any) -> None:
        if name == "certificate":
            self.update(progress={**self.status.progress, **value})
            sent = sum(size for _, size in self.sent_so_far().values())
            self._show(certified_row(at_s, value, sent), certificate_from(value))
        elif name in ("lost", "back", "passes", "batch_loss"):
            if name in ("lost", "back"):
                log.warning("run %s: '%s' is %s", self.run, value, name, extra={"run": self.run, "peer": value})
            self.update(progress={**self.status.progress, name: value})


def _quotable(outcome: Outcome) -> Outcome:
    """How a session ended may be in a peer's words, which an owner reads on a screen."""
    ends = {
        name: Finish(printable(finish.verdict), printable(finish.reason, OWNER_TEXT_MOST))
        for name, finish in outcome.finished.items()
    }
    return replace(outcome, finished=ends)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if np.isfinite(value)}
