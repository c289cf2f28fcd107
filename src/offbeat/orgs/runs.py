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
from numpy.typing import NDArray

from offbeat.data.matrix import Floats
from offbeat.data.table import Table
from offbeat.errors import BadData, OffbeatError, PeerFailed, Refused
from offbeat.families.evaluation import accuracy, area_under_curve
from offbeat.jobs.organisations import Job, wanted_of
from offbeat.metrics.plain import json_text, replace_file
from offbeat.orgs import align_psi, predict
from offbeat.orgs.align_psi import Aligner
from offbeat.orgs.budget import PrivacyLedger
from offbeat.orgs.control import ENDED_PHASES, RunStatus, error_named
from offbeat.orgs.org_record import OwnRun, write_record
from offbeat.orgs.party_config import Home
from offbeat.orgs.policy import refuse_rows
from offbeat.orgs.predict import Predictor
from offbeat.orgs.row_ledger import Counts, RowLedger, refuse_rows_over_cap
from offbeat.orgs.rows import OwnRows, load_table, own_rows, read_model, write_model
from offbeat.orgs.scoring import part_scores
from offbeat.orgs.tokens import id_column, tokens_of
from offbeat.orgs.train import AnyGuarded, build_party, ended_together, sums_of, trained_model
from offbeat.party.contract import Finish, Message, Party
from offbeat.party.verdicts import ended_well
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint
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
        self.folder = home.runs / run
        self.private = home.private / run
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

    @property
    def salt(self) -> bytes:
        return (self.private / "salt").read_bytes()

    def secret(self, purpose: str) -> bytes:
        """This party's own secret for one purpose of this run; the same after a restart, another in a run that only
        has the same name."""
        return run_secret(self.identity, self.private, purpose)

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
        rows, tokens = self._aligned(table)
        refuse_rows(self.home.config.policy, self.home.name, len(rows))
        self._spend()
        own = own_rows(self.home, table, self.job, rows, tokens)
        self.update(phase="training", progress={**self.status.progress, "rows": len(rows)})
        finish, facts, party, outcome = self._trained(own, table, rows)
        if ended_well(finish.verdict):
            metrics = self._tested(own, self._ids_of(own.tokens_test, table, rows))
            self.update(metrics=metrics)
            facts["metrics"] = metrics
        notes = (*self._alignment_notes(len(table), len(rows)), *own.notes)
        ended = OwnRun(self.job, self.run, party, outcome, own, notes, self.status.metrics, self._sent)
        facts |= write_record(self.folder, ended)
        return finish.verdict, finish.reason, facts

    def _spend(self) -> None:
        """Write down what leaves of this party under an account, before it can."""
        what, epsilon = wanted_of(self.job, self.home.name)
        if epsilon is not None:
            self.privacy.spend(what, epsilon, self.run, self.home.config.policy.epsilon, self.home.name)

    def _aligned(self, table: Table) -> tuple[NDArray[np.int64], list[bytes]]:
        kept = read_checkpoint(self.private, "alignment")
        if kept is not None:
            self._sent["align"] = kept["sent"]
            return kept["rows"], list(kept["tokens"])
        column = id_column(table.ids, self.salt)
        imported = imported_order(self.home, self.job, self.salt) if self.job.rows.align == "import" else None
        secret = self.secret("alignment")
        party = Aligner(
            self.home.name, self.job.parties, self.job.labels_at[0], column, secret=secret, imported=imported
        )
        outcome = self.session("align", party, align_psi.MESSAGES, self.folder / "align", self.job.digest)
        finish = outcome.finished[self.home.name]
        if finish.verdict != "aligned":
            raise error_named("BadData" if finish.verdict == "misaligned" else "PeerFailed", f"{finish.reason}.")
        assert party.joined is not None
        rows, tokens = party.rows(), list(party.joined)
        write_checkpoint(
            self.private,
            "alignment",
            {"rows": rows, "tokens": tokens, "notes": column.notes(self.home.name), "sent": self._sent["align"]},
        )
        return rows, tokens

    def _alignment_notes(self, own: int, shared: int) -> tuple[str, ...]:
        """How the rows were found, and what finding them told."""
        kept = read_checkpoint(self.private, "alignment")
        assert kept is not None
        who, leader = self.home.name, self.job.labels_at[0]
        told = f"{shared} of the {own} rows of '{who}' belong to ids that all {len(self.job.parties)} parties have."
        if self.job.rows.align == "import":
            return (*kept["notes"], f"{told} The order was imported; no ids were compared.")
        learned = (
            f"Private set intersection told '{leader}' how many ids each party has and which of its own the parties "
            "asked before the last one share, and everybody which of its own ids all have."
        )
        return (*kept["notes"], told, learned)

    def _trained(
        self, own: OwnRows, table: Table, rows: NDArray[np.int64]
    ) -> tuple[Finish, dict[str, Any], AnyGuarded, Outcome]:
        ids = self._ids_of(own.tokens_train, table, rows)
        cap, before = self._row_limits(ids)
        secret = self.secret("masks")
        party, messages = build_party(
            self.job,
            self.home.name,
            own,
            run=self.run,
            secret=secret,
            cap=cap,
            before=before,
            shape=self.home.config.data.shape,
        )
        outcome = self.session("train", party, messages, self.folder, self._training_digest(own))
        finish = outcome.finished[self.home.name]
        self.ledger.add(ids, party.rows.asked, what=self.run, asker=self.initiator)
        write_model(self.private, "model", trained_model(party, self.job, own))
        self.update(kept=ended_together(party))
        return finish, {"events": outcome.events, "seconds": outcome.time_s}, party, outcome

    def _row_limits(self, ids: list[Any]) -> tuple[int, Counts]:
        """The cap and what was used before, as they were when the training began: a restart must not see others."""
        kept = read_checkpoint(self.private, "limits")
        if kept is not None:
            return kept["cap"], kept["before"]
        cap, before = self.home.config.policy.row_cap, self.ledger.counts(ids)
        refuse_rows_over_cap(cap, before, 1, self.home.name)
        write_checkpoint(self.private, "limits", {"cap": cap, "before": before})
        return cap, before

    def _ids_of(self, tokens: Sequence[bytes], table: Table, rows: NDArray[np.int64]) -> list[Any]:
        position = dict(zip(self._all_tokens(), rows.tolist(), strict=True))
        return [table.ids[position[token]] for token in tokens]

    def _all_tokens(self) -> list[bytes]:
        kept = read_checkpoint(self.private, "alignment")
        assert kept is not None
        return list(kept["tokens"])

    def _training_digest(self, own: OwnRows) -> str:
        """Every stream of the training compares it: the same job over the same rows in the same order."""
        return hashlib.sha256(self.job.digest.encode() + b"".join(own.tokens_train)).hexdigest()

    def _tested(self, own: OwnRows, ids: list[Any]) -> dict[str, float]:
        """Score the held-out rows together; the first label holder alone learns the scores and computes metrics."""
        if not len(own.tokens_test):
            return {}
        refuse_rows_over_cap(self.home.config.policy.row_cap, self.ledger.counts(ids), 1, self.home.name)
        model = read_model(self.private, "model")
        scores = part_scores(self.job, self.home, model, own.test, own.tokens_test, self.secret("scores"))
        scorer = FixedScores(own.tokens_test, scores)
        party = self.predictor("test", self.job.labels_at[0], scorer, own.tokens_test, without=False)
        outcome = self.session("test", party, predict.MESSAGES, self.folder / "test", self._training_digest(own))
        finish = outcome.finished[self.home.name]
        if finish.verdict != "predicted":
            raise PeerFailed(f"the test rows could not be scored: {finish.reason}.")
        self.ledger.add(ids, np.ones(len(ids), np.int64), what=f"{self.run}/test", asker=self.job.labels_at[0])
        if party.result is None:
            return {}
        assert own.y_test is not None
        if self.job.model.task == "regression":
            return {"test_rmse": float(np.sqrt(np.mean((party.result - own.y_test) ** 2)))}
        found = {
            "test_auc": area_under_curve(party.result, own.y_test),
            "test_accuracy": accuracy(party.result, own.y_test),
        }
        return {name: value for name, value in found.items() if np.isfinite(value)}

    # -- sessions -------------------------------------------------------------------------------------------------

    def predictor(
        self, what: str, asker: str, scorer: predict.Scorer, tokens: Sequence[bytes], *, without: bool
    ) -> Predictor:
        name = f"{self.run}/{what}"
        return Predictor(
            self.home.name,
            self.job.parties,
            asker,
            scorer,
            run=name,
            secret=self.secret(what) if what == "test" else os.urandom(32),  # whoever asks again gets other masks
            sums=sums_of(self.job),
            tokens=tokens if self.home.name == asker else (),
            without=without,
        )

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


def imported_order(home: Home, job: Job, salt: bytes) -> list[bytes]:
    """The tokens of an alignment that was computed elsewhere, in its order."""
    path = home.folder / f"{job.name}.ids"
    if not path.is_file():
        raise BadData(f"the job imports an alignment: expected one id per line, in the common order, in {path}.")
    return tokens_of(path.read_text(encoding="utf-8").split("\n")[:-1], salt)


def run_secret(identity: Identity, private: Path, purpose: str) -> bytes:
    nonce = (private / "nonce").read_bytes()
    return identity.derive(f"{purpose} {private.name} {nonce.hex()}")


class FixedScores:
    """Scores that are known already, by token."""

    def __init__(self, tokens: Sequence[bytes], values: Floats) -> None:
        self._position = {token: i for i, token in enumerate(tokens)}
        self._values = values

    def scores(self, tokens: Sequence[bytes]) -> tuple[Floats, NDArray[np.bool_]]:
        places = [self._position.get(token, -1) for token in tokens]
        known = np.array(places) >= 0
        return np.where(known, self._values[places] if len(self._values) else 0.0, 0.0), known
