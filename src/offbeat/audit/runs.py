"""What a finished run gave away: the run is done again under a watch that sees what each party received.

    received    who was sent which kind of message, how often
    masks       of the linear methods: audit/masks.py
    releases    of embeddings and uploads: audit/releases.py
    attacks     what a curious party can work out of what it rightly received, tried on the real data

A simulated run is repeated from its seed, a run on threads, processes or ray from its logs; either way the audit covers
every message, not a sample. Of a run between organisations each audits its own side: audit/own_side.py.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from offbeat.audit.masks import MaskWatch, followed, mask_text
from offbeat.audit.releases import ReleaseWatch, release_text
from offbeat.families.contract import Training
from offbeat.jobs.reading import family_name
from offbeat.message.codec import Codec
from offbeat.metrics.machine import computing_as_on
from offbeat.metrics.record import RunRecord
from offbeat.party.contract import Effect, Event, Message, Party, Received, State
from offbeat.report import wording
from offbeat.run.folder import job_of
from offbeat.run.parties import training_of, without_optimum
from offbeat.run.record import kept_private, reveals_of
from offbeat.run.replay import NOTHING, Vouched, refuse_secret_noise
from offbeat.run.runtimes import simulator_for
from offbeat.runtime.recovery import recover
from offbeat.runtime.simulator.checkers import Checker


class Watch(Protocol):
    """Sees every event of every party, and what followed."""

    def handled(self, name: str, event: Event, effects: Sequence[Effect]) -> None: ...

    def findings(self, record: RunRecord) -> dict[str, Any]:
        """What it found, `attacks` among them."""


WATCHES: dict[str, Callable[[Any], Watch]] = {
    "linear": lambda training: MaskWatch(followed(training)),
    "embedding": ReleaseWatch,
    "horizontal": ReleaseWatch,
}


class Witness(Checker):
    """Counts what each party received, and lets a watch see everything. The simulator takes it for a checker."""

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch
        self.received: dict[str, Counter[str]] = {}

    def handled(self, now_s: float, party: Party, event: Event, effects: Sequence[Effect]) -> None:
        if type(event) is Received:
            self.received.setdefault(party.name, Counter())[type(event.body).__name__] += 1
        if self.watch is not None:
            self.watch.handled(party.name, event, effects)


class Watched:
    """A party whose every event is seen by a witness."""

    def __init__(self, party: Party, witness: Witness) -> None:
        self.party, self.witness, self.name = party, witness, party.name

    def handle(self, event: Event) -> list[Effect]:
        effects = self.party.handle(event)
        self.witness.handled(0.0, self.party, event, effects)
        return effects

    def snapshot(self) -> State:
        return self.party.snapshot()

    def restore(self, state: State) -> None:
        self.party.restore(state)


def audit_run(folder: Path, vouched: Vouched = NOTHING) -> dict[str, Any]:
    """The audit of a run folder, as plain values."""
    record = RunRecord.read(folder)
    job = without_optimum(job_of(folder))
    refuse_secret_noise(job, folder)
    vouched.refuse_unknown_job(folder, job)
    with computing_as_on(record.machine):
        training = training_of(job)
        watch = WATCHES[family_name(job)](training)
        witness = Witness(watch)
        same = _do_again(folder, record, training, witness)
        told = told_of(folder, record, training.messages, kept_private(training), witness.received, watch)
    told["warnings"] += [] if same else [OTHERWISE]
    return told


def _do_again(folder: Path, record: RunRecord, training: Training, witness: Witness) -> bool:
    """Whether a simulated run came out as it did then."""
    if training.job.runtime.kind == "simulator":
        simulator = simulator_for(training)
        simulator.checkers = (witness,)
        simulator.until_s = min(simulator.until_s, record.seconds)
        return simulator.run(training.parties).digest == record.digest
    codec = Codec(training.messages)
    for party in training.parties:
        recover(Watched(party, witness), codec, folder, from_start=True)
    return True


OTHERWISE = (
    "This version of offbeat, or this machine, does the run otherwise than the one that made the folder. What is told "
    "here is of the run as it would be now; the record and the report are of the run as it was."
)


def told_of(
    folder: Path,
    record: RunRecord,
    messages: Iterable[type[Message]],
    private: Mapping[str, bool],
    received: Mapping[str, Counter[str]],
    watch: Watch,
    **more: str,
) -> dict[str, Any]:
    """What an audit tells, as plain values; `private`: what noise covers."""
    kinds = {kind.__name__: kind for kind in messages}
    came = sorted({kind for counts in received.values() for kind in counts})
    return {
        "run": str(folder),
        "algorithm": record.algorithm,
        **more,
        "received": {name: dict(counts) for name, counts in sorted(received.items())},
        "reveals": {kind: reveals_of(kinds[kind], **private) for kind in came if kind in kinds},
        **watch.findings(record),
        "privacy": record.privacy,
        "promises": list(record.promises),
        "warnings": list(record.warnings),
    }


def audit_text(told: dict[str, Any]) -> str:
    """The same as one page of text."""
    scheme = f", secure_sum = {told['secure_sum']!r}" if "secure_sum" in told else ""
    lines = [f"Audit of {told['run']}: {told['algorithm']}{scheme}"]
    if "side" in told:
        lines += [
            "",
            "Whose side",
            f"  {told['side']}: what it received and sent. The others' sides are not known here.",
        ]
    lines += ["", "Received"]
    for name, counts in told["received"].items():
        lines.append(f"  {name}: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items())))
    lines += mask_text(told) if "masks" in told else release_text(told["releases"])
    lines += ["", "What a curious party can work out"]
    lines += [f"  {row['party']} {row['finding']}." for row in told["attacks"]] or ["  No attack was tried."]
    lines += ["", "What each kind of message reveals"]
    lines += [f"  {kind}: {sentence}" for kind, sentence in told["reveals"].items()]
    if told["promises"]:
        lines += ["", wording.PROMISED, *(f"  {sentence}" for sentence in told["promises"])]
    if told["warnings"]:
        lines += ["", "Warnings of the run", *(f"  ! {warning}" for warning in told["warnings"])]
    return "\n".join(lines) + "\n"


def violations_of(told: dict[str, Any]) -> list[str]:
    """What must never happen and did: a mask or a release number used twice."""
    found: list[str] = told["masks" if "masks" in told else "releases"]["violations"]
    return found
