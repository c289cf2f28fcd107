"""What a finished run gave away: the run is done again under a watch that sees what each party received.

    received    who was sent which kind of message, how often
    masks       every word of every mask stream was used for one answer only; a repeated answer had the same bytes
    sums        how many sums were complete; what is learned from the others is nothing
    attacks     what a curious party can work out of what it rightly received, tried on the real data

A simulated run is repeated from its seed, a run on threads, processes or ray from its logs; either way the audit covers
every message, not a sample.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.algorithms.mapa import CLOUD
from offbeat.audit.releases import ReleaseWatch, embedding_attacks, release_findings, release_text
from offbeat.data.assemble import VerticalData
from offbeat.errors import BadInput
from offbeat.families.evaluation import Setting
from offbeat.families.vertical_data import load_data
from offbeat.jobs.horizontal import EdgeJob
from offbeat.jobs.methods import EMBEDDING, method_named
from offbeat.jobs.vertical import Job
from offbeat.message.codec import Codec
from offbeat.metrics.machine import computing_as_on
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Broadcast, Effect, Event, Party, Received, Send, State
from offbeat.party.masked_sum import CURRENT, ShareAsked, ShareGiven
from offbeat.party.survey import Table
from offbeat.run.experiment import build_parties, setting_for
from offbeat.run.folder import any_job_of
from offbeat.run.parties import drew_secret_noise, messages_of_job, parties_of_edge_job, parties_of_job
from offbeat.run.record import reveals_of
from offbeat.run.runtimes import runtime_for
from offbeat.runtime.contract import Outcome
from offbeat.runtime.recovery import recover

Stream = tuple[str, str, int]
"""Whose masks, for whom, in which roster epoch."""


@dataclass
class Watch:
    """Sees every event of every party, and what followed."""

    rows: int
    received: dict[str, Counter[str]] = field(default_factory=dict)
    senders: dict[str, Counter[str]] = field(default_factory=dict)
    answers: dict[Stream, dict[int, tuple[int, bytes]]] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)
    repeated: int = 0
    givers: dict[tuple[str, int, int], set[str]] = field(default_factory=dict)
    asked: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    guesses: dict[str, np.ndarray] = field(default_factory=dict)  # by party: the sum of derivatives' signs for each row

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        if type(event) is Received:
            self._took(party.name, event)
        for effect in effects:
            if type(effect) is Send and type(effect.body) is ShareGiven:
                self._answered(party.name, effect.to, effect.body)
            elif type(effect) is Broadcast and type(effect.body) is ShareAsked:
                ask = effect.body
                if ask.point == CURRENT:
                    self.asked.setdefault((party.name, ask.first, ask.epoch), (ask.start, ask.stop))

    def ended(self, outcome: Outcome, parties: Sequence[Party]) -> None:
        pass

    def _took(self, name: str, event: Received) -> None:
        body = event.body
        kind = type(body).__name__
        self.received.setdefault(name, Counter())[kind] += 1
        self.senders.setdefault(kind, Counter())[event.sender] += 1
        if type(body) is ShareGiven:
            self.givers.setdefault((name, body.first, body.epoch), set()).add(event.sender)
        elif type(body) is Table:
            self._guess(name, body.start, body.derivatives)
        elif kind == "Backward":
            self._guess(name, body.start, body.derivatives)  # type: ignore[attr-defined]

    def _guess(self, name: str, start: int, derivatives: np.ndarray) -> None:
        signs = self.guesses.setdefault(name, np.zeros(self.rows))
        signs[start : start + len(derivatives)] -= np.sign(derivatives)

    def _answered(self, giver: str, asker: str, given: ShareGiven) -> None:
        kept = self.answers.setdefault((giver, asker, given.epoch), {})
        fingerprint = hashlib.blake2b(np.ascontiguousarray(given.words).tobytes(), digest_size=16).digest()
        before = kept.get(given.first)
        if before is None:
            kept[given.first] = (len(given.words), fingerprint)
        elif before == (len(given.words), fingerprint):
            self.repeated += 1
        else:
            self.reused.append(f"{giver} answered request {given.first} of {asker} twice, with different bytes")

    def overlaps(self) -> list[str]:
        """Answers that took the same words of one mask stream."""
        found = list(self.reused)
        for (giver, asker, _), kept in self.answers.items():
            end = -1
            for first in sorted(kept):
                if first < end:
                    found.append(f"{giver} used mask word {first} for {asker} twice")
                end = max(end, first + kept[first][0])
        return found


class _Watched:
    """A party whose every event is seen by a watch."""

    def __init__(self, party: Party, watch: "Watch | ReleaseWatch") -> None:
        self.party, self.watch, self.name = party, watch, party.name

    def handle(self, event: Event) -> list[Effect]:
        effects = self.party.handle(event)
        self.watch.handled(0.0, self.party, event, effects)
        return effects

    def snapshot(self) -> State:
        return self.party.snapshot()

    def restore(self, state: State) -> None:
        self.party.restore(state)


def audit_run(folder: Path) -> dict[str, Any]:
    """The audit of a run folder, as plain values."""
    record = RunRecord.read(folder)
    if record.runtime == "grpc":
        raise BadInput(
            f"expected a run in one place; {folder} is one organisation's side of a run between several. An audit does "
            "the run again with everybody's data, and nobody has that here. See `offbeat report` for what this party "
            "sent and received, and `offbeat replay --verify` to do its own part again from its log."
        )
    with computing_as_on(record.machine):
        return _audit(folder, record)


def _audit(folder: Path, record: RunRecord) -> dict[str, Any]:
    job = any_job_of(folder)
    if isinstance(job, EdgeJob) or job.algorithm in EMBEDDING:
        return _audit_releases(folder, record, job)
    data = load_data(job)
    setting = setting_for(data, job)
    parties = build_parties(setting, data, job)
    watch = Watch(setting.rows)
    _do_again(folder, record, job, parties, watch)
    return _findings(folder, record, job, data, setting, watch)


def _do_again(
    folder: Path, record: RunRecord, job: Job | EdgeJob, parties: Sequence[Party], watch: "Watch | ReleaseWatch"
) -> None:
    if job.runtime.kind == "simulator":
        world = job if isinstance(job, Job) else Job(seed=job.seed or 0, runtime=job.runtime)
        simulator: Any = runtime_for(world, (), parties)
        simulator.checkers = (watch,)
        simulator.until_s = min(simulator.until_s, record.seconds)
        simulator.run(parties)
        return
    codec = Codec(messages_of_job(job))
    for party in parties:
        recover(_Watched(party, watch), codec, folder, from_start=True)


def _audit_releases(folder: Path, record: RunRecord, job: Job | EdgeJob) -> dict[str, Any]:
    """The same for VAFL and horizontal runs, which mask nothing and number what they release."""
    if drew_secret_noise(job):
        raise BadInput(f"{folder} drew secret noise from the operating system: it cannot be done again under a watch.")
    watch = ReleaseWatch(Codec(messages_of_job(job)))
    attacks: list[dict[str, Any]] = []
    if isinstance(job, EdgeJob):
        _do_again(folder, record, job, parties_of_edge_job(job), watch)
        attacks = [_uploads_learned(record, watch)]
    else:
        data = load_data(job)
        parties = parties_of_job(job, data)
        _do_again(folder, record, job, parties, watch)
        server: Any = parties[0]
        attacks = embedding_attacks(data, server.head, job.label_dp_epsilon, watch)
    kinds = {kind.__name__: kind for kind in messages_of_job(job)}
    private_labels = isinstance(job, Job) and job.label_dp_epsilon is not None
    told = {kind for counts in watch.received.values() for kind in counts}
    return {
        "run": str(folder),
        "algorithm": record.algorithm,
        "received": {name: dict(counts) for name, counts in sorted(watch.received.items())},
        "reveals": {
            kind: reveals_of(kinds[kind], private_labels=private_labels) for kind in sorted(told) if kind in kinds
        },
        "releases": release_findings(record, watch),
        "privacy": record.privacy,
        "attacks": attacks,
        "warnings": list(record.warnings),
    }


def _uploads_learned(record: RunRecord, watch: ReleaseWatch) -> dict[str, Any]:
    """What the cloud holds of the edges' rows. Recovering those takes an attack made for the model: none is tried."""
    uploads = watch.received.get(CLOUD, Counter())["Upload"]
    if record.private:
        bound = "the ledgers bound what they tell of any one row; `offbeat bench edge-audit` attacks such releases"
    else:
        bound = "nothing bounds what they tell; `offbeat reproduce mapa-fig4` recovers pictures from such uploads"
    finding = f"received {uploads:,} uploads made from the edges' rows: {bound}. No attack was tried here"
    return {"attack": "uploads", "party": CLOUD, "finding": finding, "uploads": uploads}


def _findings(
    folder: Path, record: RunRecord, job: Job, data: VerticalData, setting: Setting, watch: Watch
) -> dict[str, Any]:
    kinds = {kind.__name__: kind for kind in method_named(job.algorithm).family().messages}
    overlaps = watch.overlaps()
    complete = sum(len(givers) == len(data.names) - 1 for givers in watch.givers.values())
    return {
        "run": str(folder),
        "algorithm": record.algorithm,
        "secure_sum": job.secure_sum,
        "received": {name: dict(counts) for name, counts in sorted(watch.received.items())},
        "reveals": {kind: reveals_of(kinds[kind]) for kind in sorted(watch.senders) if kind in kinds},
        "masks": {
            "used_once": not overlaps if job.secure_sum == "pairwise" else None,
            "answers": sum(map(len, watch.answers.values())),
            "repeated_with_the_same_bytes": watch.repeated,
            "violations": overlaps,
        },
        "sums": {"complete": complete, "incomplete": len(watch.givers) - complete},
        "attacks": [*_labels_read(job, data, setting, watch), *_products_learned(data, watch)],
        "warnings": list(record.warnings),
    }


def _labels_read(job: Job, data: VerticalData, setting: Setting, watch: Watch) -> list[dict[str, Any]]:
    """Each party that was not meant to hold labels guesses them from the derivatives' signs."""
    if method_named(job.algorithm).labels_everywhere:
        return [
            {"attack": "labels", "party": name, "finding": "holds the labels: the method gave them to it"}
            for name in data.names
        ]
    if not setting.classifies:
        return []
    found = []
    truth = setting.y_train > 0 if job.label_dp_epsilon is None else None
    for name in data.names:
        if name in data.labels_at or name not in watch.guesses:
            continue
        signs = watch.guesses[name]
        seen = signs != 0
        right = float(np.mean((signs > 0)[seen] == truth[seen])) if truth is not None and seen.any() else None
        share = f"{int(seen.sum()):,} of {setting.rows:,} labels"
        how = f", {right:.1%} of them right" if right is not None else "; they were answered at random first"
        finding = f"reads {share} from the derivatives' signs{how}"
        found.append({"attack": "labels", "party": name, "finding": finding, "right": right})
    return found


def _products_learned(data: VerticalData, watch: Watch) -> list[dict[str, Any]]:
    """How often each asker learned the others' total, which is the other's own share when there are two parties."""
    found = []
    for name in data.names:
        spans = [span for (asker, *_), span in watch.asked.items() if asker == name]
        if not spans:
            continue
        pairs = sum(stop - start for start, stop in spans)
        whose = "the other party's own share" if len(data.names) == 2 else "the total of the others' shares"
        finding = f"learned {whose} for {pairs:,} (row, moment) pairs: {pairs / watch.rows:.1f} for each row on average"
        found.append({"attack": "products", "party": name, "finding": finding, "pairs": pairs})
    return found


def audit_text(told: dict[str, Any]) -> str:
    """The same as one page of text."""
    scheme = f", secure_sum = {told['secure_sum']!r}" if "secure_sum" in told else ""
    lines = [f"Audit of {told['run']}: {told['algorithm']}{scheme}", "", "Received"]
    for name, counts in told["received"].items():
        lines.append(f"  {name}: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items())))
    lines += _mask_text(told) if "masks" in told else release_text(told["releases"])
    lines += ["", "What a curious party can work out"]
    lines += [f"  {row['party']} {row['finding']}." for row in told["attacks"]] or ["  No attack was tried."]
    lines += ["", "What each kind of message reveals"]
    lines += [f"  {kind}: {sentence}" for kind, sentence in told["reveals"].items()]
    if told["warnings"]:
        lines += ["", "Warnings of the run", *(f"  ! {warning}" for warning in told["warnings"])]
    return "\n".join(lines) + "\n"


def violations_of(told: dict[str, Any]) -> list[str]:
    """What must never happen and did: a mask or a release number used twice."""
    found: list[str] = told["masks" if "masks" in told else "releases"]["violations"]
    return found


def _mask_text(told: dict[str, Any]) -> list[str]:
    masks, sums = told["masks"], told["sums"]
    lines = ["", "Masks"]
    if masks["used_once"] is None:
        lines.append(f"  {told['secure_sum']}: partial sums, no pairwise masks to follow.")
    elif masks["used_once"]:
        lines.append(
            f"  Every mask word was used once, in {masks['answers']:,} answers; "
            f"{masks['repeated_with_the_same_bytes']:,} answers were sent again with the same bytes."
        )
    lines += [f"  VIOLATION: {violation}" for violation in masks["violations"]]
    if sums["complete"] or sums["incomplete"]:
        lines.append(f"  {sums['complete']:,} sums were complete; {sums['incomplete']:,} were not, and told nothing.")
    return lines
