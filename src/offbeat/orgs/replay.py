"""A real run, again: feed each session's log of this party to a party built anew, and compare every effect's digest.

Only the owner can do it: the masks come from its key, which no run folder holds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.errors import BadInput, PeerFailed
from offbeat.jobs.organisations import job_from_text
from offbeat.message.codec import Codec
from offbeat.metrics.record import RunRecord
from offbeat.orgs import align_psi, predict
from offbeat.orgs.align_psi import Aligner
from offbeat.orgs.party_config import Home, read_home
from offbeat.orgs.predict import Predictor
from offbeat.orgs.rows import load_table, own_rows, read_model
from offbeat.orgs.runs import FixedScores, imported_order, run_secret
from offbeat.orgs.scoring import part_scores
from offbeat.orgs.tokens import id_column
from offbeat.orgs.train import build_party, sums_of
from offbeat.party.contract import Message, Party
from offbeat.runtime.checkpoint import read_checkpoint
from offbeat.runtime.recovery import log_path, recover


@dataclass(frozen=True, slots=True)
class Repeated:
    """What a replay did: all marks in the log were met, or it would have raised."""

    party: str
    events: int
    marks: int
    digest: str
    verdict: str


def replay_training(home: Home, run: str) -> Repeated:
    """Replay this party's training of one run from the first event; raises where the effects differ."""
    return _Replay(home, run).training()


def replay_sessions(home: Home, run: str) -> dict[str, Repeated]:
    """Replay all that this party did in one run: the alignment, the training and the test of the held-out rows."""
    again = _Replay(home, run)
    sessions = {"align": again.alignment, "train": again.training, "test": again.test}
    logged = {"align": again.folder / "align", "train": again.folder, "test": again.folder / "test"}
    return {what: play() for what, play in sessions.items() if log_path(logged[what], home.name).is_file()}


class _Replay:
    """One party's run, from its run folder and its private one."""

    def __init__(self, home: Home, run: str) -> None:
        self.home, self.run = home, run
        self.folder, self.private = home.runs / run, home.private / run
        kept, limits = read_checkpoint(self.private, "alignment"), read_checkpoint(self.private, "limits")
        if kept is None or limits is None or not log_path(self.folder, home.name).is_file():
            raise BadInput(f"'{home.name}' has no log of a training under {self.folder}.")
        self.limits = limits
        job_file = self.folder / "job.toml"
        self.job = job_from_text(job_file.read_text(encoding="utf-8"), job_file)
        self.table = load_table(home)
        self.own = own_rows(home, self.table, self.job, kept["rows"], kept["tokens"])

    def alignment(self) -> Repeated:
        salt = (self.private / "salt").read_bytes()
        column = id_column(self.table.ids, salt)
        imported = imported_order(self.home, self.job, salt) if self.job.rows.align == "import" else None
        secret = run_secret(self.home.identity(), self.private, "alignment")
        parties, leader = self.job.parties, self.job.labels_at[0]
        party = Aligner(self.home.name, parties, leader, column, secret=secret, imported=imported)
        return self._again(party, align_psi.MESSAGES, self.folder / "align")

    def training(self) -> Repeated:
        party, messages = build_party(
            self.job,
            self.home.name,
            self.own,
            run=self.run,
            secret=run_secret(self.home.identity(), self.private, "masks"),
            cap=self.limits["cap"],
            before=self.limits["before"],
            shape=self.home.config.data.shape,
        )
        return self._again(party, messages, self.folder)

    def test(self) -> Repeated:
        model = read_model(self.private, "model")
        secret = run_secret(self.home.identity(), self.private, "scores")
        scores = part_scores(self.job, self.home, model, self.own.test, self.own.tokens_test, secret)
        scorer = FixedScores(self.own.tokens_test, scores)
        asker = self.job.labels_at[0]
        party = Predictor(
            self.home.name,
            self.job.parties,
            asker,
            scorer,
            run=f"{self.run}/test",
            secret=run_secret(self.home.identity(), self.private, "test"),
            sums=sums_of(self.job),
            tokens=self.own.tokens_test if self.home.name == asker else (),
        )
        return self._again(party, predict.MESSAGES, self.folder / "test")

    def _again(self, party: Party, messages: tuple[type[Message], ...], folder: Path) -> Repeated:
        replayed = recover(party, Codec(messages), folder, from_start=True)
        finish = replayed.drive.finished
        verdict = finish.verdict if finish is not None else ""
        return Repeated(self.home.name, replayed.events, replayed.marks, replayed.drive.digest.hex(), verdict)


def replay_folder(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """Replay the run in this folder, `runs/RUN` under a party's home: for people (`sentence`) and for programs."""
    home = _home_of(folder)
    try:
        if verify:
            repeated = replay_sessions(home, folder.name)
        else:
            repeated = {"train": replay_training(home, folder.name)}
    except PeerFailed as problem:
        return {"run": str(folder), "how": "logs", "same": False, "party": home.name, "sentence": str(problem)}
    unended = [what for what, one in repeated.items() if verify and not one.verdict]
    recorded = RunRecord.read(folder).digest
    same = repeated["train"].digest == recorded and not unended
    events = {f"{home.name}/{what}": one.events for what, one in repeated.items()}
    words = "gave the same effects, bit for bit" if same else "gave other effects than recorded"
    if unended:
        words = f"stop before the end of: {', '.join(unended)}"
    return {
        "run": str(folder),
        "how": "logs",
        "same": same,
        "events": events,
        "digests": {f"{home.name}/{what}": one.digest for what, one in repeated.items()},
        "sentence": f"{sum(events.values())} logged events of '{home.name}' {words}.",
    }


def _home_of(folder: Path) -> Home:
    """The party whose run this is: the nearest party.toml above the run folder."""
    for place in folder.resolve().parents:
        if (place / "party.toml").is_file():
            return read_home(place)
    raise BadInput(
        f"{folder} is a run of an organisation, but no party.toml lies above it: only its owner can replay it."
    )
