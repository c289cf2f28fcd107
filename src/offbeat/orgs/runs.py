"""One run at one party: proposed, aligned, trained, tested; every step can be taken up again after a crash.

runs/<run>/state.json        phase and verdict; nothing secret
runs/<run>/job.toml          the job as all parties agreed to it
runs/<run>/align/, events/, checkpoints/, record.json, report.html
private/<run>/               salt, aligned rows, this party's block: never leaves the owner
"""

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.data.table import Table
from offbeat.errors import OffbeatError, PeerFailed, Refused
from offbeat.jobs.organisations import Job, wanted_of
from offbeat.learning.scores import root_mean_square, two_class_metrics
from offbeat.metrics.plain import json_text, replace_file
from offbeat.orgs import align_psi, predict
from offbeat.orgs.budget import PrivacyLedger
from offbeat.orgs.control import ENDED_PHASES, RunStatus, error_named
from offbeat.orgs.org_record import OwnRun, write_record
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import refuse_rows
from offbeat.orgs.row_ledger import Counts, RowLedger, refuse_rows_over_cap
from offbeat.orgs.rows import OwnRows, load_table, own_rows, write_model
from offbeat.orgs.sessions import OwnSessions, ids_of
from offbeat.orgs.tokens import id_column
from offbeat.orgs.train import OwnTraining
from offbeat.party.contract import Message, Party
from offbeat.party.verdicts import ended_well
from offbeat.runtime.checkpoint import write_checkpoint
from offbeat.runtime.contract import Outcome
from offbeat.runtime.grpc.identity import Identity, Roster, write_private
from offbeat.runtime.grpc.options import SessionOptions
from offbeat.runtime.grpc.server import Server
from offbeat.runtime.grpc.session import Session

log = logging.getLogger("offbeat.party")

END_WITHIN_S = 20.0


class Run:
    """A run's state and its steps. `report` tells the initiator how this party's part ended."""

    def __init__(
        self,
        home: Home,
        identity: Identity,
        roster: Roster,
        server: Server,
        run: str,
        job: Job,
        initiator: str,
        ledger: RowLedger,
        privacy: PrivacyLedger,
    ) -> None:
        self.home, self.identity, self.roster, self.server = home, identity, roster, server
        self.run, self.job, self.initiator = run, job, initiator
        self.ledger, self.privacy = ledger, privacy
        self.own = OwnSessions(home, identity, run, job)
        self.folder, self.private = self.own.folder, self.own.private
        self.status = RunStatus(run, job.name, initiator, "proposed")
        self.reports: dict[str, dict[str, Any]] = {}
        self._session: Session | None = None
        self._stopped = ""
        self._sent: dict[str, dict[str, list[int]]] = {}  # by session: kind -> [messages, payload bytes]
        self._lock = threading.RLock()

    # -- state ----------------------------------------------------------------------------------------------------

    def update(self, **changes: Any) -> None:
        """Change the status and write it down. A run that has ended does not begin again."""
        with self._lock:
            if self.status.ended and changes.get("phase") not in (None, *ENDED_PHASES):
                del changes["phase"]
            self.status = RunStatus(
                **{**{f: getattr(self.status, f) for f in self.status.__struct_fields__}, **changes}
            )
            content = {f: getattr(self.status, f) for f in self.status.__struct_fields__}
            replace_file(self.folder / "state.json", json_text({**content, "reports": self.reports}).encode())

    def note_report(self, peer: str, verdict: str, reason: str, kind: str, facts: dict[str, Any]) -> None:
        """What a party says about its end; two may say it at once."""
        with self._lock:
            self.reports[peer] = {"verdict": verdict, "reason": reason, "kind": kind, **facts}
            metrics = {**self.status.metrics, **facts.get("metrics", {})}
            self.update(parties={**self.status.parties, peer: verdict}, metrics=metrics)

    def accept(self, salt: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "job.toml").write_text(self.job.text, encoding="utf-8")
        if not (self.private / "salt").exists():
            write_private(self.private / "salt", salt)
            write_private(self.private / "nonce", os.urandom(32))
        self.update(phase="accepted")

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
    def _certifies(self) -> bool:
        return self.status.phase == "training" and not self.job.embeds

    # -- the steps ------------------------------------------------------------------------------------------------

    def take_part(self, report: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        """Align, train, test; what is done already is not done again."""
        try:
            verdict, reason, facts = self._steps()
            kind, phase = "", "done" if ended_well(verdict) else "failed"
            phase = "stopped" if verdict == "stopped" else phase  # the others had heard of it before we did
        except Exception as problem:
            verdict, facts = "failed", {}
            reason, kind = self._explained(problem)
            phase = "refused" if isinstance(problem, Refused) else "failed"
        if self._stopped and phase != "done":
            verdict, reason, kind, phase = "stopped", self._stopped, "", "stopped"
        if not self.status.ended:
            self.update(phase=phase, verdict=verdict, reason=reason, kind=kind)
        self._stopped = ""  # what a stopped run has kept may predict
        report(verdict, reason, kind, facts)

    def _explained(self, problem: Exception) -> tuple[str, str]:
        """Why a run failed, and the kind of error that its peers are told. What nobody foresaw is logged in full here:
        its cause is in this daemon, and a run whose thread died unheard would keep everybody waiting."""
        if type(problem) is OffbeatError or not isinstance(problem, OffbeatError):  # the former is a session's wrapping
            log.error("run %s failed", self.run, exc_info=problem)
        if isinstance(problem, OffbeatError):
            return f"{self._where()}: {problem}", type(problem).__name__
        advice = f"The log of the daemon of '{self.home.name}' has the traceback."
        return f"{self._where()}: an unexpected {type(problem).__name__}: {problem}. {advice}", "OffbeatError"

    def _where(self) -> str:
        return f"'{self.home.name}', while {self.status.phase}"

    def _steps(self) -> tuple[str, str, dict[str, Any]]:
        self.update(phase="aligning")
        table = load_table(self.home)
        aligned = self._aligned(table)
        count = len(aligned["rows"])
        refuse_rows(self.home.config.policy, self.home.name, count)
        self._spend()
        own = own_rows(self.home, table, self.job, aligned["rows"], aligned["tokens"])
        self.update(phase="training", progress={**self.status.progress, "rows": count})
        training, outcome = self._trained(own, ids_of(own.tokens_train, table, aligned))
        finish = outcome.finished[self.home.name]
        facts: dict[str, Any] = {"events": outcome.events, "seconds": outcome.time_s}
        if ended_well(finish.verdict):
            metrics = self._tested(own, ids_of(own.tokens_test, table, aligned))
            self.update(metrics=metrics)
            facts["metrics"] = metrics
        notes = (*self._alignment_notes(table, aligned), *own.notes)
        ended = OwnRun(self.job, self.run, training, outcome, own, notes, self.status.metrics, self._sent)
        facts |= write_record(self.folder, ended)
        return finish.verdict, finish.reason, facts

    def _spend(self) -> None:
        """Write down what leaves of this party under an account, before it can."""
        what, epsilon = wanted_of(self.job, self.home.name)
        if epsilon is not None:
            self.privacy.spend(what, epsilon, self.run, self.home.config.policy.epsilon, self.home.name)

    def _aligned(self, table: Table) -> dict[str, Any]:
        """Which rows of the table are aligned, in which order, by which tokens."""
        kept = self.own.kept("alignment")
        if kept is not None:
            self._sent["align"] = kept["sent"]
            return kept
        column = id_column(table.ids, self.own.salt)
        party = self.own.aligner(column)
        outcome = self.session("align", party, align_psi.MESSAGES, self.folder / "align", self.job.digest)
        finish = outcome.finished[self.home.name]
        if finish.verdict != "aligned":
            raise error_named("BadData" if finish.verdict == "misaligned" else "PeerFailed", f"{finish.reason}.")
        assert party.joined is not None
        notes, sent = column.notes(self.home.name), self._sent["align"]
        aligned = {"rows": party.rows(), "tokens": list(party.joined), "notes": notes, "sent": sent}
        write_checkpoint(self.private, "alignment", aligned)
        return aligned

    def _alignment_notes(self, table: Table, aligned: dict[str, Any]) -> tuple[str, ...]:
        """How the rows were found, and what finding them told."""
        who, leader = self.home.name, self.job.labels_at[0]
        shared, all_have = len(aligned["rows"]), f"ids that all {len(self.job.parties)} parties have"
        told = f"{shared} of the {len(table)} rows of '{who}' belong to {all_have}."
        if self.job.rows.align == "import":
            return (*aligned["notes"], f"{told} The order was imported; no ids were compared.")
        learned = (
            f"Private set intersection told '{leader}' how many ids each party has and which of its own the parties "
            "asked before the last one share, and everybody which of its own ids all have."
        )
        return (*aligned["notes"], told, learned)

    def _trained(self, own: OwnRows, ids: list[Any]) -> tuple[OwnTraining, Outcome]:
        cap, before = self._row_limits(ids)
        training = self.own.training(own, cap=cap, before=before)
        outcome = self.session("train", training.party, training.messages, self.folder, self._training_digest(own))
        self.ledger.add(ids, training.watched.asked, what=self.run, asker=self.initiator)
        write_model(self.private, "model", training.model())
        self.update(kept=training.certified())
        return training, outcome

    def _row_limits(self, ids: list[Any]) -> tuple[int, Counts]:
        """The cap and what was used before, as they were when the training began: a restart must not see others."""
        kept = self.own.kept("limits")
        if kept is not None:
            return kept["cap"], kept["before"]
        cap, before = self.home.config.policy.row_cap, self.ledger.counts(ids)
        refuse_rows_over_cap(cap, before, 1, self.home.name)
        write_checkpoint(self.private, "limits", {"cap": cap, "before": before})
        return cap, before

    def _training_digest(self, own: OwnRows) -> str:
        """Every stream of the training compares it: the same job over the same rows in the same order."""
        return hashlib.sha256(self.job.digest.encode() + b"".join(own.tokens_train)).hexdigest()

    def _tested(self, own: OwnRows, ids: list[Any]) -> dict[str, float]:
        """Score the held-out rows together; the first label holder alone learns the scores and computes metrics."""
        if not len(own.tokens_test):
            return {}
        refuse_rows_over_cap(self.home.config.policy.row_cap, self.ledger.counts(ids), 1, self.home.name)
        party = self.own.tester(own)
        outcome = self.session("test", party, predict.MESSAGES, self.folder / "test", self._training_digest(own))
        finish = outcome.finished[self.home.name]
        if finish.verdict != "predicted":
            raise PeerFailed(f"the test rows could not be scored: {finish.reason}.")
        self.ledger.add(ids, np.ones(len(ids), np.int64), what=f"{self.run}/test", asker=self.job.labels_at[0])
        if party.result is None:
            return {}
        assert own.y_test is not None
        if self.job.model.task == "regression":
            return {"test_rmse": root_mean_square(party.result - own.y_test)}
        found = two_class_metrics(party.result, own.y_test)
        return {name: value for name, value in found.items() if np.isfinite(value)}

    # -- sessions -------------------------------------------------------------------------------------------------

    def session(
        self,
        what: str,
        party: Party,
        messages: Sequence[type[Message]],
        folder: Path | None,
        digest: str,
        options: SessionOptions | None = None,
    ) -> Outcome:
        """Take one party through one of the run's sessions; streams are told apart by the run's name and `what`."""
        session = Session(
            self.identity,
            self.roster,
            party,
            messages,
            run=f"{self.run}/{what}",
            server=self.server,
            peers=self.job.parties,
            options=options or self._session_options(),
            folder=folder,
            job_digest=digest,
            watch=self._watch,
        )
        self._session = session
        if self._stopped:
            raise PeerFailed(self._stopped)
        try:
            outcome = session.run()
        finally:
            self._session = None
        self._sent[what] = outcome.tallies[self.home.name].sent
        return outcome

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
        elif name in ("lost", "back", "passes", "batch_loss"):
            self.update(progress={**self.status.progress, name: value})
