"""One party's table in the aligned order, prepared for learning from its own training rows alone."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.fitting import fit_preparation
from offbeat.data.holdout import held_out
from offbeat.data.labels import Task, encode_labels
from offbeat.data.matrix import Floats, Matrix, take_rows
from offbeat.data.preparation import preparation_from
from offbeat.data.prepare import Fitted, fitted_from, state_of
from offbeat.data.table import Table, columns_of, read_table
from offbeat.data.weights import NO_WEIGHTS, by_exposure, mean_one, with_weights
from offbeat.errors import BadData, BadInput, BadJob
from offbeat.families.contract import Part
from offbeat.families.linear import check_counts, check_exposed
from offbeat.jobs.organisations import OrgJob
from offbeat.names import did_you_mean
from offbeat.orgs.budget import PrivacyLedger, label_digest, private_labels
from offbeat.orgs.party_config import Home
from offbeat.runtime.checkpoint import read_checkpoint, write_checkpoint


@dataclass(frozen=True, slots=True)
class OwnRows:
    """What this party trains on. Tokens name the rows; positions are the same at every party."""

    train: Matrix
    test: Matrix
    tokens_train: tuple[bytes, ...]
    tokens_test: tuple[bytes, ...]
    y_train: Floats | None  # under label_dp_epsilon: de-biased random answers, in place of -1 and 1
    y_test: Floats | None
    classes: tuple[Any, ...] | None
    fitted: Fitted
    notes: tuple[str, ...]
    weights: Floats = field(default_factory=lambda: NO_WEIGHTS)  # of the training rows, with a mean of 1; empty: all 1


@contextmanager
def _of_the_owner() -> Iterator[None]:
    """A mistake in a party's own settings is not the job's: peers are told of the job's, and these sentences name
    columns and show cells."""
    try:
        yield
    except BadJob as problem:
        raise BadData(str(problem)) from problem


@_of_the_owner()
def load_table(home: Home) -> Table:
    """Read the party's file; columns that the policy keeps out are not even asked for."""
    data, never = home.config.data, home.config.policy.columns_never
    banned = [column for column in data.columns if column in never]
    if banned:
        raise BadInput(f"party.toml lists the column '{banned[0]}', which its policy keeps out of every job.")
    preparation = preparation_from(data.prepare, f"{home.name}, data.prepare")
    beside = [column for column in (data.weight, data.exposure) if column is not None]
    table = read_table(
        home.source,
        data.id,
        data.label,
        list(dict.fromkeys([*data.columns, *beside])) if data.columns else None,
        text=preparation.as_text,
        missing="refuse" if preparation.strict and not preparation.columns else "keep",
        duplicates="keep-first",
    )
    _check_never(home, table, never)
    return with_weights(_without(table, never) if not data.columns and never else table, data.weight, data.exposure)


def _check_never(home: Home, table: Table, never: Sequence[str]) -> None:
    """A misspelt name would keep nothing out."""
    if not never:
        return
    there = (columns_of(home.source) if home.config.data.columns else None) or list(table.columns)
    for column in never:
        if column not in (*there, home.config.data.id, home.config.data.label):
            raise BadInput(
                f"the policy's columns_never lists '{column}', which {table.name} does not have: it keeps nothing "
                f"out. {did_you_mean(column, there)}"
            )


def _without(table: Table, never: Sequence[str]) -> Table:
    kept = np.array([j for j, column in enumerate(table.columns) if column not in never], dtype=np.int64)
    if not kept.size:
        raise BadData(f"{table.name}: the policy's columns_never leaves no column.")
    columns = tuple(table.columns[int(j)] for j in kept)
    features: Any = table.features[:, kept]
    return replace(table, columns=columns, features=features)


def own_rows(
    home: Home, table: Table, job: OrgJob, rows: NDArray[np.int64], tokens: Sequence[bytes], coin: bytes = b""
) -> OwnRows:
    """Put the table into the aligned order, hold test rows out by their ids and the coin of the alignment, and prepare
    the columns. Tokens change with every run; ids do not, and the coin is kept with the alignment: jobs over the same
    rows are tested on the same ones. Without a coin: a run of a version that tossed none."""
    test = rows_to_test(job, table.ids[rows], coin)
    features = take_rows(table.features, rows)
    with _of_the_owner():
        preparation = preparation_from(home.config.data.prepare, f"{home.name}, data.prepare")
        fitted = fit_preparation(take_rows(features, ~test), table.columns, preparation, table.levels, table.forms)
        block = fitted.apply(features)
    if fitted.orders and not job.model.ordered:
        raise BadInput(
            f"'{home.name}' has columns that must rise or fall, by its party.toml, and then nobody may leap: the job "
            "has to say so, with ordered = true under [model]. Ask for that, or treat these columns as bins."
        )
    labels, classes = _labels(home, table, job, rows)
    labels = labels if labels is None else _as_answered(home, job, table, labels, table.ids[rows])
    labels, weights = _weighed(home, job, table, rows, labels, test)
    names = np.array(list(tokens), dtype=object)
    return OwnRows(
        train=take_rows(block, ~test),
        test=take_rows(block, test),
        tokens_train=tuple(names[~test]),
        tokens_test=tuple(names[test]),
        y_train=None if labels is None else labels[~test],
        y_test=None if labels is None else labels[test],
        classes=classes,
        fitted=fitted,
        notes=tuple(f"{home.name}: {note}" for note in (*table.notes, *fitted.notes)),
        weights=weights,
    )


def _weighed(
    home: Home, job: OrgJob, table: Table, rows: NDArray[np.int64], labels: Floats | None, test: NDArray[np.bool_]
) -> tuple[Floats | None, Floats]:
    """Labels for each unit of exposure, and the training rows' weights. Both belong to the labels: where several
    parties hold those, each would weigh by its own."""
    if labels is None:
        return None, NO_WEIGHTS
    exposure, weights = (None if found is None else found[rows] for found in (table.exposure, table.weights))
    check_exposed(exposure is not None, job.loss)
    alike = len(job.labels_at) > 1 or job.embeds or job.private_products
    answered = job.method.label_dp_epsilon is not None  # a weight is told as it is, and may follow from the label
    if (exposure is not None or weights is not None) and (alike or answered):
        raise BadJob(
            f"'{home.name}' names a column of weights or exposure in party.toml: that goes with the linear methods, "
            "one label holder, exact products and labels that are not answered at random (label_dp_epsilon). Leave the "
            "key out, or change the job."
        )
    labels, chosen = by_exposure(labels, test, weights, exposure)
    if job.loss.grows:
        check_counts(labels[~test], labels[test], job.loss)
    return labels, mean_one(chosen)


def rows_to_test(job: OrgJob, ids: NDArray[Any], coin: bytes) -> NDArray[np.bool_]:
    """Which rows are held out follows from a coin that all parties tossed over the rows they had agreed on, and from
    the number of test rows: nobody can look for a test set that holds one person, or for two that differ by one."""
    count = round(job.rows.test_fraction * ids.size)
    joint = hashlib.sha256(repr((sorted(job.parties), count)).encode() + coin).digest()
    return held_out(ids, seed=int.from_bytes(joint, "big"), rows=count)


def _labels(
    home: Home, table: Table, job: OrgJob, rows: NDArray[np.int64]
) -> tuple[Floats | None, tuple[Any, ...] | None]:
    if home.name not in job.labels_at:
        return None, None
    if table.labels is None:
        raise BadData(
            f"the job wants the labels of '{home.name}', but its party.toml names no label column; add label = \"...\" "
            "under [data], or leave this party out of labels_at."
        )
    task: Task = job.model.task if job.model.classes is None else "multiclass"
    where = f"the label of {table.name}"
    if job.method.label_dp_epsilon is not None:  # by the whole column: whether a run begins must not tell of its rows
        y, classes = encode_labels(table.labels, task, where)
        return y[rows], classes
    y, classes = encode_labels(table.labels[rows], task, where)
    if job.model.classes is not None and len(classes or ()) != job.model.classes:
        raise BadData(
            f"the job says classes = {job.model.classes}, and the label of {table.name} has "
            f"{len(classes or ())} in the rows that all parties have. Submit the job with that number."
        )
    return y, classes


def _as_answered(home: Home, job: OrgJob, table: Table, labels: Floats, ids: NDArray[Any]) -> Floats:
    """The labels as training and test may see them: under label_dp_epsilon both know the random answers alone."""
    epsilon = job.method.label_dp_epsilon
    if epsilon is None:
        return labels
    ledger, digest = PrivacyLedger(home.ledger), digest_of_labels(home, table)
    return private_labels(labels, ids.tolist(), epsilon, ledger.secret(), digest)


def digest_of_labels(home: Home, table: Table) -> str:
    assert table.labels is not None
    return label_digest(str(home.config.data.label), table.ids.tolist(), table.labels.tolist())


# -- a trained block, kept by its owner -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnModel:
    """This party's part of a trained model: its weights and how its columns were prepared. It is the owner's alone."""

    weights: Floats  # of its columns and, last, its part of the intercept; of several classes, classes x these
    fitted: Fitted
    classes: tuple[Any, ...] | None
    network: dict[str, Any] | None = None  # a network's arrays; then `weights` is the head's bias alone
    told: bytes = b""  # a digest of what its training was told; those of all parties are the same, or no score is right

    def block(self, table: Table, rows: NDArray[np.int64]) -> Matrix:
        """These rows of a table, prepared as the training rows were."""
        chosen = replace(table, ids=table.ids[rows], features=take_rows(table.features, rows), labels=None)
        return self.fitted.apply_table(chosen)

    def shares(self, table: Table, rows: NDArray[np.int64]) -> Floats:
        """This block's part of the products of these rows with a linear model."""
        assert self.network is None, "a network's part is computed by orgs/scoring.py"
        return self.products(self.block(table, rows))

    def products(self, block: Matrix) -> Floats:
        """The same of rows that are prepared; of several classes, rows x classes."""
        parts: Floats = np.asarray(block @ self.weights[..., :-1].T, dtype=np.float64) + self.weights[..., -1]
        return parts

    @property
    def part(self) -> Part:
        """Its weights and its part of the intercept, by name."""
        arrays = {"weights": self.weights[..., :-1], "intercept": np.atleast_1d(self.weights[..., -1])}
        return Part(arrays, self.fitted.columns, self.fitted)


def write_model(folder: Path, name: str, model: OwnModel) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_checkpoint(
        folder,
        name,
        {
            "weights": model.weights,
            "preparation": state_of(model.fitted),
            "classes": None if model.classes is None else list(model.classes),
            "network": model.network,
            "told": model.told,
        },
    )


def read_model(folder: Path, name: str) -> OwnModel:
    state = read_checkpoint(folder, name)
    if state is None:
        raise BadData(f"no trained block of '{name}' is kept in {folder}; has that run ended here?")
    if "numbers" not in state["preparation"]:
        raise BadData(
            f"the trained block of '{name}' in {folder} was kept by an earlier version, which prepared columns in "
            "another way; train it anew."
        )
    classes = None if state["classes"] is None else tuple(state["classes"])
    fitted = fitted_from(state["preparation"])
    return OwnModel(state["weights"], fitted, classes, state.get("network"), state.get("told", b""))
