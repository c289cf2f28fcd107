"""Everything observed in one run: what a person, a script or a later run needs to know about it.

A run folder keeps it in three files:

    record.json             all but the two long lists below
    metrics.jsonl           the curve, one look per line
    events/timeline.jsonl   messages as [sent_s, received_s, from, to, kind], the first few thousand

Numbers that are not finite are written as null. The names are a contract: scripts read them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from offbeat.errors import BadInput
from offbeat.metrics.curves import CurveRow
from offbeat.metrics.held_out import HeldOut, Worth
from offbeat.metrics.plain import encode_plain, json_text, replace_file
from offbeat.names import visible
from offbeat.party.verdicts import exit_code_of
from offbeat.runtime.transcript import digests_of, transcript_paths

RECORD_FILE = "record.json"
CURVE_FILE = "metrics.jsonl"
JOB_FILE = "job.toml"
TIMELINE_FILE = "events/timeline.jsonl"
LONG_LISTS = ("curve", "timeline")


class Certificate(msgspec.Struct, frozen=True):
    """What is known about the distance to the best possible objective, computed without pooling anything.

    `duality_gap` bounds it from above; it is None where there is no such bound (a nonconvex penalty, or none).
    """

    gradient_norm: float | None = None
    duality_gap: float | None = None


class PartyRecord(msgspec.Struct, frozen=True):
    """What one party did. `lag_histogram` counts lags of 0, 1, 2-3, 4-7, ...; seconds are of the run's clock."""

    updates: int = 0
    lag_mean: float = 0.0
    lag_max: int = 0
    lag_histogram: tuple[int, ...] = ()
    bytes_sent: int = 0
    bytes_by_kind: dict[str, int] = {}
    messages_by_kind: dict[str, int] = {}
    compute_s: float = 0.0
    communicate_s: float = 0.0
    wait_s: float = 0.0
    dropped: int = 0
    retried: int = 0
    abandoned: int = 0


class Reveal(msgspec.Struct, frozen=True):
    """One kind of message, how often it was sent, and what it tells to whom."""

    message: str
    count: int
    bytes: int
    reveals: str


class Transit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message on its way; `received_s` is None when it was lost."""

    sent_s: float
    received_s: float | None
    sender: str
    receiver: str
    kind: str


class DataRecord(msgspec.Struct, frozen=True):
    """Which data was used: one sentence on its source, its size, and the columns of each party. Of two `classes` a
    score above 0 is for the second. `label_offset` was taken from the numbers to learn, which were then divided by
    `label_scale`; both belong to predictions."""

    source: str = ""
    rows: int = 0
    test_rows: int = 0
    columns: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    task: str = ""
    classes: tuple[Any, ...] = ()
    label_offset: float = 0.0
    label_scale: float = 1.0


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one run came to.

    offbeat        the version that made it
    algorithm      the method
    runtime        what carried the messages
    clock          "virtual" or "wall": what `seconds` are of
    seed           the job's
    digest         the same for the same job and seed in the simulator
    verdict        one word for programs
    reason         one sentence for people
    objective      of the model that was kept
    certificate    how far it is, at most, from the best possible
    suboptimality  the true distance, where the pooled optimum is known
    passes         how often the rows were looked at
    seconds        how long it took
    metrics        on test rows: AUC and accuracy, or the root of the mean squared error
    parties        what each party did
    reveals        every kind of message, how often it was sent, and what it tells to whom
    privacy        each accountable party's own statement: `releases`, `epsilon`, `delta`, `adjacency`,
                   `budget_epsilon`, `seeded`, and `spent`, from which the epsilon can be computed anew. A client of
                   VAFL counts by record: its numbers are those of the record that has spent most, with the mechanism in
                   place of `spent`
    promises       what is guaranteed and what the guarantee covers, in sentences
    warnings       what should worry a reader, in sentences
    options        the job, and under `chosen` what was chosen for it
    data           which data it was
    held_out       curves and counts of the test rows, where whoever wrote the record may know their labels
    coefficients   of a linear model with one output, trained in one place: by party, the largest few, by the names of
                   its prepared columns; an organisation's record may be shown to others, and has none
    worth          what each party is worth, once `offbeat worth` has found it
    transcripts    by file: the SHA-256 of what both ends of each link signed (`offbeat audit --verify` checks it)
    versions       of Python and the packages
    machine        what it ran on
    curve          one row for each look
    timeline       the first few thousand messages
    """

    offbeat: str
    algorithm: str
    runtime: str
    clock: str
    seed: int
    digest: str
    verdict: str
    reason: str
    objective: float | None
    certificate: Certificate
    suboptimality: float | None = None
    passes: float
    seconds: float
    metrics: dict[str, float | None]
    parties: dict[str, PartyRecord]
    reveals: tuple[Reveal, ...] = ()
    privacy: dict[str, dict[str, Any]] = {}
    promises: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    data: DataRecord = DataRecord()
    held_out: HeldOut | None = None
    coefficients: dict[str, dict[str, float]] = {}
    worth: Worth | None = None
    transcripts: dict[str, str] = {}
    versions: dict[str, str] = {}
    machine: dict[str, str | int] = {}
    curve: tuple[CurveRow, ...] = ()
    timeline: tuple[Transit, ...] = ()

    @property
    def exit_code(self) -> int:
        """What `offbeat run` ends with."""
        return exit_code_of(self.verdict)

    @property
    def bound(self) -> float | None:
        """How far the objective is, at most, from the best: the certificate, or all of it, for losses and penalties are
        not negative. Only the loss of labels that were answered at random can be."""
        gap = self.certificate.duality_gap
        if gap is None or self.objective is None or self.options.get("label_dp_epsilon") is not None:
            return gap
        return min(gap, self.objective)

    @property
    def private(self) -> bool:
        """Whether some party's releases, or the labels, were under an epsilon."""
        accounted = any(statement.get("epsilon") is not None for statement in self.privacy.values())
        return accounted or self.options.get("label_dp_epsilon") is not None

    @property
    def bytes_sent(self) -> int:
        """The payload of all parties together."""
        return sum(party.bytes_sent for party in self.parties.values())

    @property
    def updates(self) -> int:
        """Those of all parties together."""
        return sum(party.updates for party in self.parties.values())

    def to_json_object(self, run: str | Path = "") -> dict[str, Any]:
        """The object that `--json` prints: the record as in record.json, with the folder `run` in front."""
        body: dict[str, Any] = msgspec.json.decode(encode_plain(self))
        return {"run": str(run), **{name: value for name, value in body.items() if name not in LONG_LISTS}}

    def write(self, folder: str | Path) -> Path:
        """Write the record into the run folder `folder`, the index last: one that has a record.json is complete."""
        folder = Path(folder)
        _write_lines(folder / CURVE_FILE, self.curve)
        _write_lines(folder / TIMELINE_FILE, self.timeline)
        body = self.to_json_object() | {"transcripts": digests_of(transcript_paths(folder), folder)}
        del body["run"]
        replace_file(folder / RECORD_FILE, f"{json_text(body)}\n".encode())
        return folder / RECORD_FILE

    @classmethod
    def read(cls, folder: str | Path) -> "RunRecord":
        """Read the run folder `folder` back; one that is none, or a damaged file, is named in a `BadInput`."""
        folder = Path(folder)
        body = _read_index(folder)
        curve = _read_lines(folder / CURVE_FILE, CurveRow)
        timeline = _read_lines(folder / TIMELINE_FILE, Transit)
        return msgspec.structs.replace(body, curve=curve, timeline=timeline)


def read_records(folders: Iterable[str | Path]) -> dict[str, RunRecord]:
    """Several run folders by name; folders of the same name are told apart by their parents."""
    paths = [Path(folder).resolve() for folder in folders]
    return {_short_name(path, paths): RunRecord.read(path) for path in paths}


def _short_name(path: Path, among: list[Path]) -> str:
    others = [other for other in among if other != path]
    for depth in range(1, len(path.parts)):
        name = "/".join(path.parts[-depth:])
        if all("/".join(other.parts[-depth:]) != name for other in others):
            return name
    return str(path)


_Line = TypeVar("_Line")


def _write_lines(path: Path, rows: Iterable[object]) -> None:
    replace_file(path, b"".join(encode_plain(row) + b"\n" for row in rows))


def _read_index(folder: Path) -> RunRecord:
    path = folder / RECORD_FILE
    if not path.is_file():
        raise BadInput(
            f"{folder} is not a finished run folder: a {RECORD_FILE} was expected in it. Give the folder that "
            f"`offbeat run` printed; a run that was interrupted has none."
        )
    record = _decode(path, path.read_bytes(), RunRecord)
    seen, classes = record.held_out, record.data.classes
    if seen is not None and seen.confusion and classes and len(seen.confusion) != len(classes):
        raise BadInput(
            f"{path} has {len(classes)} classes and counts {len(seen.confusion)}. The file is damaged or was edited."
        )
    return record


def _read_lines(path: Path, kind: type[_Line]) -> tuple[_Line, ...]:
    if not path.is_file():
        return ()
    lines = path.read_bytes().splitlines()
    return tuple(_decode(path, line, kind, number) for number, line in enumerate(lines, 1) if line)


def _decode(path: Path, content: bytes, kind: type[_Line], line: int = 0) -> _Line:
    try:
        return msgspec.convert(_visible(msgspec.json.decode(content)), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        where = f"{path}, line {line}" if line else str(path)
        raise BadInput(
            f"{where} is not what a run record holds: {error}. The file is damaged or was edited."
        ) from error


def _visible(value: Any) -> Any:
    """A folder may be somebody else's: what it says is shown on a screen."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible(one) for one in value]
    if isinstance(value, dict):
        return {visible(name): _visible(one) for name, one in value.items()}
    return value
