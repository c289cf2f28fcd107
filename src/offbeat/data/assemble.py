"""Putting a vertical problem together: aligned raw rows in, every party's prepared blocks out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from offbeat.data.columns import take_names
from offbeat.data.dataset import DataSet
from offbeat.data.encode import spell
from offbeat.data.fitting import fit_preparation
from offbeat.data.labels import AnyTask, Task, about_classes, encode_labels, settled_task
from offbeat.data.matrix import Flags, Floats, Matrix, cut_columns, scale_party_rows, take_rows
from offbeat.data.preparation import AS_IS, Preparation, preparation_from
from offbeat.data.prepare import Fitted
from offbeat.data.split import HowColumns, Parties, split_columns
from offbeat.data.table import Table
from offbeat.data.weights import NO_WEIGHTS, by_exposure
from offbeat.errors import BadData, BadJob
from offbeat.names import counted, did_you_mean

FRACTION = re.compile(r"-?\d+\.\d+")
MEASUREMENTS_LEAST = 9
LabelsAt = Sequence[str] | Literal["all"] | None
"""Party names, or `all`; None where the tables tell."""

Preparations = str | Preparation | Mapping[str, str | Preparation]
"""One for all parties (each takes what concerns its columns), or one by party; each may be a word."""


@dataclass(frozen=True)
class VerticalData:
    """Row i of every block, `y_train[i]` and `ids_train[i]` belong to one sample; the same for the test rows.

    names              the parties
    train, test        each party's prepared columns by its name
    y_train, y_test    the labels: -1 and +1 for two classes, the position of the class for more, the value less
                       `y_offset` and over `y_scale` for numbers
    ids_train          the ids of the training rows
    ids_test           the ids of the test rows
    columns            the names of each party's prepared columns
    labels_at          the parties that hold the labels
    task               "classification", "multiclass" or "regression"
    classes            the classes in their order; None for numbers
    source             one sentence on where the data comes from
    notes              what joining and preparing had to say
    fitted             how each party prepares its raw columns
    y_offset           what was taken from numbers to learn
    y_scale            what they were then divided by
    digest             SHA-256 of the joined ids in their order, where tables were joined
    weights_train      how much each training row counts; empty: all alike
    exposed            whether there is an exposure: y was divided by it, and weights were multiplied by it
    warnings           what is probably a mistake
    """

    names: tuple[str, ...]
    train: Mapping[str, Matrix] = field(repr=False)
    test: Mapping[str, Matrix] = field(repr=False)
    y_train: Floats = field(repr=False)
    y_test: Floats = field(repr=False)
    ids_train: NDArray[Any] = field(repr=False)
    ids_test: NDArray[Any] = field(repr=False)
    columns: Mapping[str, Sequence[str]] = field(repr=False)
    labels_at: tuple[str, ...]
    task: Task
    classes: tuple[Any, ...] | None
    source: str
    notes: tuple[str, ...] = ()
    fitted: Mapping[str, Fitted] = field(default_factory=dict, repr=False)
    y_offset: float = 0.0
    y_scale: float = 1.0
    digest: str = ""
    weights_train: Floats = field(default_factory=lambda: NO_WEIGHTS, repr=False)
    exposed: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many training rows there are."""
        return int(self.y_train.size)

    @property
    def test_rows(self) -> int:
        """How many test rows there are."""
        return int(self.y_test.size)

    @property
    def widths(self) -> dict[str, int]:
        """How many columns each party has."""
        return {name: int(self.train[name].shape[1]) for name in self.names}

    def holding_out(self, held: Flags) -> "VerticalData":
        """The training rows alone: some of them take the place of test rows.

        held  a flag for each training row: whether it does
        """
        return replace(
            self,
            train={name: take_rows(rows, ~held) for name, rows in self.train.items()},
            test={name: take_rows(rows, held) for name, rows in self.train.items()},
            y_train=self.y_train[~held],
            y_test=self.y_train[held],
            ids_train=self.ids_train[~held],
            ids_test=self.ids_train[held],
            weights_train=self.weights_train[~held] if len(self.weights_train) else self.weights_train,
        )


@dataclass(frozen=True)
class Raw:
    """Aligned rows before preparation; of the parties' tables, the features and what is known of columns count."""

    tables: Mapping[str, Table]
    labels: NDArray[Any]
    ids: NDArray[Any]
    test: Flags
    where: str
    source: str
    notes: tuple[str, ...] = ()
    digest: str = ""
    weights: Floats | None = None
    exposure: Floats | None = None
    warnings: tuple[str, ...] = ()


def build(
    raw: Raw, labels_at: LabelsAt, preparation: Preparations, task: AnyTask, centre_labels: bool = False
) -> VerticalData:
    if raw.test.all():
        raise BadData("All rows are test rows; none is left for training.")
    by_party = preparations_by_party(preparation, {party: table.columns for party, table in raw.tables.items()})
    train: dict[str, Matrix] = {}
    test: dict[str, Matrix] = {}
    fitted: dict[str, Fitted] = {}
    for party, table in raw.tables.items():
        mine = take_rows(table.features, ~raw.test)
        fitted[party] = _fitted(party, mine, table, by_party[party])
        train[party] = fitted[party].apply(mine)
        test[party] = fitted[party].apply(take_rows(table.features, raw.test))
    return _finish(raw, train, test, fitted, labels_at, task, centre_labels)


def _fitted(party: str, rows: Matrix, table: Table, preparation: Preparation) -> Fitted:
    """What the party learns from its training rows; what is wrong is said with the party's name."""
    try:
        return fit_preparation(rows, table.columns, preparation, table.levels, table.forms)
    except (BadData, BadJob) as problem:
        if party == "all":
            raise
        raise type(problem)(f"Party {party!r}: {problem}") from None


def build_split_late(
    raw: Raw,
    data: DataSet,
    preparation: Preparation,
    parties: Parties,
    split: HowColumns,
    rng: np.random.Generator,
    labels_at: LabelsAt,
) -> VerticalData:
    whole = build(raw, None, msgspec.structs.replace(preparation, rows="as-is"), data.task)
    parts = split_columns(whole.columns["all"], parties, split, rng)
    raw = replace(raw, notes=("The columns were shared out after encoding; each was prepared alone.",))
    columns = {party: take_names(whole.columns["all"], positions) for party, positions in parts.items()}
    train, test = cut_columns(whole.train["all"], parts), cut_columns(whole.test["all"], parts)
    built = _finish(raw, train, test, {}, labels_at, data.task, data.centre_labels, (columns, preparation))
    return replace(built, notes=(*whole.notes, *built.notes))


def _finish(
    raw: Raw,
    train: dict[str, Matrix],
    test: dict[str, Matrix],
    fitted: dict[str, Fitted],
    labels_at: LabelsAt,
    task: AnyTask,
    centre_labels: bool,
    late: tuple[Mapping[str, Sequence[str]], Preparation] | None = None,
) -> VerticalData:
    """`late`: the names of columns that were prepared before they were shared out, and how they were."""
    wanted, task = task, settled_task(raw.labels, task, raw.where)
    y, classes = encode_labels(raw.labels, task, raw.where)
    _check_training_rows(raw, classes, guessed=wanted == "auto")
    if raw.exposure is not None and classes is not None:
        raise BadData("An exposure is for counts and amounts, and the labels are classes. Leave it out.")
    y, weights = by_exposure(y, raw.test, raw.weights, raw.exposure)
    offset = float(y[~raw.test].mean()) if centre_labels else 0.0
    names = tuple(train)
    columns = {party: one.columns for party, one in fitted.items()} if late is None else late[0]
    preparations = [one.preparation for one in fitted.values()] if late is None else [late[1]]
    rows = preparations[0].rows
    notes = [*raw.notes, *_task_note(wanted, task, raw.labels)]
    for party, one in fitted.items():
        notes += [note if party == "all" else f"{party}: {note}" for note in one.notes]
    if offset:
        notes.append(f"Labels were centred by their training mean {offset:.6g}.")
    return VerticalData(
        names=names,
        train=scale_party_rows(train, rows),
        test=scale_party_rows(test, rows),
        y_train=y[~raw.test] - offset,
        y_test=y[raw.test] - offset,
        ids_train=raw.ids[~raw.test],
        ids_test=raw.ids[raw.test],
        columns=columns,
        labels_at=_holders(labels_at, names),
        task=task,
        classes=classes,
        source=f"{raw.source}; {counted(sum(block.shape[1] for block in train.values()), 'column')} over "
        f"{counted(len(names), 'party')}; {'; '.join(dict.fromkeys(one.sentence() for one in preparations))}.",
        notes=tuple(notes),
        fitted=fitted,
        y_offset=offset,
        digest=raw.digest,
        weights_train=weights,
        exposed=raw.exposure is not None,
        warnings=(*raw.warnings, *about_classes(classes or ()), *_measurements_as_categories(fitted)),
    )


def _check_training_rows(raw: Raw, classes: tuple[Any, ...] | None, guessed: bool) -> None:
    if classes is None:
        return
    known, counts = np.unique(raw.labels.astype(str), return_counts=True)
    lacking = [at for at, name in enumerate(known) if name not in set(raw.labels[~raw.test].astype(str))]
    if lacking:
        at, numbers = lacking[0], guessed and raw.labels.dtype != object
        raise BadData(
            f"The training rows lack {'one' if len(lacking) == 1 else len(lacking)} of the {len(classes)} classes of "
            f"{raw.where}: {str(known[at])!r}, with {counts[at]} row(s) in all, is in the test rows only. "
            + ('If the labels are numbers to be predicted, and no classes, write task = "regression". ' * numbers)
            + "Choose another seed or a smaller test fraction, or bring more rows of that class."
        )


def preparations_by_party(preparation: Preparations, columns: Mapping[str, Sequence[str]]) -> dict[str, Preparation]:
    """How each party prepares its columns; one that is given by party and lacks some leaves theirs as they are."""
    if isinstance(preparation, Mapping):
        unknown = [party for party in preparation if party not in columns]
        if unknown:
            raise BadJob(
                f"A preparation is given for {unknown[0]!r}, which is no party. {did_you_mean(unknown[0], columns)}"
            )
        chosen = {
            party: preparation_from(preparation.get(party, AS_IS), f"The preparation of {party!r}") for party in columns
        }
        if len({one.rows for one in chosen.values()}) > 1:
            raise BadJob("All parties must scale their rows in the same way; the preparations differ in `rows`.")
        return chosen
    common = preparation_from(preparation, "The preparation")
    if not common.columns:
        return dict.fromkeys(columns, common)
    owned = {party: set(names) for party, names in columns.items()}
    for name in common.columns:
        if not any(name in mine for mine in owned.values()):
            everything = [column for names in columns.values() for column in names]
            raise BadJob(f"prepare names column {name!r}, which no party has. {did_you_mean(name, everything)}")
    return {
        party: msgspec.structs.replace(common, columns={k: v for k, v in common.columns.items() if k in mine})
        for party, mine in owned.items()
    }


def _holders(labels_at: LabelsAt, names: tuple[str, ...]) -> tuple[str, ...]:
    if labels_at is None or labels_at == "all":
        return names
    wanted = (labels_at,) if isinstance(labels_at, str) else tuple(labels_at)
    for party in wanted:
        if party not in names:
            raise BadJob(f"Labels are to be at {party!r}, which is no party. {did_you_mean(party, names)}")
    if not wanted:
        raise BadJob("At least one party must hold the labels.")
    return tuple(name for name in names if name in wanted)


def _measurements_as_categories(fitted: Mapping[str, Fitted]) -> list[str]:
    """Numbers with parts behind the point, each of which got a column of its own."""
    found = []
    for party, one in fitted.items():
        for item in (item for item in one.levels if not item.is_bins):
            name = one.raw_columns[item.column]
            spelled = spell(item.values, one.spelling.get(name))
            broken = [text for text in spelled if FRACTION.fullmatch(text)]
            if len(broken) > max(MEASUREMENTS_LEAST, len(spelled) / 2):
                found.append(
                    f"{party}: column {name!r} is treated as a category and has {len(spelled)} 0/1 columns, for values "
                    f'such as {broken[0]}. If these are measurements, write "scaled" or "bins" for it.'
                )
    return found


def _task_note(wanted: AnyTask, task: Task, labels: NDArray[Any]) -> list[str]:
    """What `auto` made of labels that are numbers and more than two."""
    if wanted != "auto" or labels.dtype == object or task == "classification":
        return []
    if task == "regression":
        return ['The labels are numbers and are predicted as such. If they are classes, write task = "multiclass".']
    many = len(np.unique(labels))
    return [f'The labels are {many} whole numbers and are taken as classes. If not, write task = "regression".']
