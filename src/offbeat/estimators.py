"""scikit-learn's manners for vertical learning: rows shared by all, columns by party.

    model = VerticalClassifier(passes=40).fit({"bank": Xb, "shop": Xs, "telecom": Xt}, y)
    model.predict_proba({"bank": Zb, "shop": Zs, "telecom": Zt})
    model.certificate_.duality_gap      # how far the objective is from the best possible, at most

Everything runs in this process: it is for research, for planning, and for finding out what a joint model would be
worth before organisations connect. Columns are taken as they are unless `standardise` says otherwise.

To scikit-learn's splitters a dictionary of three parties looks like three rows. `PartyColumns` tells them better:

    cross_val_score(VerticalClassifier(), PartyColumns({"bank": Xb, "shop": Xs, "telecom": Xt}), y)
    GridSearchCV(VerticalClassifier(), {"penalty": np.logspace(-4, -1, 4)}).fit(PartyColumns(X), y)
"""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from offbeat.data.assemble import VerticalData
from offbeat.data.columns import NumberedColumns
from offbeat.data.labels import Task, encode_labels
from offbeat.data.matrix import take_rows
from offbeat.data.preparation import Preparation
from offbeat.data.table import Table, table_from_arrays
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadData, BadJob, OutOfRange
from offbeat.jobs.methods import DEFAULT_ALGORITHM, linear_named
from offbeat.jobs.vertical import Job, vertical_job_from
from offbeat.learning.scores import probabilities
from offbeat.names import did_you_mean
from offbeat.run.experiment import Result, run_experiment

if TYPE_CHECKING:
    from offbeat.orgs.client import JointModel

Floats = NDArray[np.float64]
Blocks = Mapping[str, Any]


class PartyColumns(Mapping[str, Any]):
    """Columns by party that can be cut by rows: `X["bank"]` are a party's columns, `X[rows]` some rows of all parties.

    With its shape (rows, columns) it goes wherever scikit-learn cuts rows: cross_val_score, GridSearchCV,
    train_test_split. Data frames stay data frames.
    """

    def __init__(self, blocks: Blocks) -> None:
        _check_blocks(blocks)
        self._blocks = {name: _cuttable(name, block) for name, block in blocks.items()}
        sizes = {name: block.shape[0] for name, block in self._blocks.items()}
        if len(set(sizes.values())) != 1:
            raise BadData(f"All parties need the same number of rows; came {sizes}.")
        self.shape = (next(iter(sizes.values())), sum(block.shape[1] for block in self._blocks.values()))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._blocks[key]
        rows = np.arange(self.shape[0])[key]
        return PartyColumns(
            {
                name: block.iloc[rows] if hasattr(block, "iloc") else take_rows(block, rows)
                for name, block in self._blocks.items()
            }
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)


def _cuttable(name: str, block: Any) -> Any:
    return block if hasattr(block, "iloc") else table_from_arrays(block, name=f"party {name!r}").features


class _Vertical(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share. The constructor only stores; `fit` checks."""

    def __init__(
        self,
        algorithm: str = DEFAULT_ALGORITHM,
        *,
        penalty: float = 1e-4,
        penalty_kind: str = "l2",
        loss: str = "auto",
        intercept: bool = True,
        standardise: str = "none",
        passes: float = 60,
        target: float | None = 1e-6,
        step: float | str = "auto",
        batch: int | str = "auto",
        in_flight: int = 1,
        by_curvature: bool = False,
        secure_sum: str = "pairwise",
        two_party_insecure: bool = False,
        fraction_bits: int | None = None,
        labels_at: list[str] | None = None,
        label_dp_epsilon: float | None = None,
        runtime: str = "simulator",
        slow: dict[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.penalty = penalty
        self.penalty_kind = penalty_kind
        self.loss = loss
        self.intercept = intercept
        self.standardise = standardise
        self.passes = passes
        self.target = target
        self.step = step
        self.batch = batch
        self.in_flight = in_flight
        self.by_curvature = by_curvature
        self.secure_sum = secure_sum
        self.two_party_insecure = two_party_insecure
        self.fraction_bits = fraction_bits
        self.labels_at = labels_at
        self.label_dp_epsilon = label_dp_epsilon
        self.runtime = runtime
        self.slow = slow
        self.seed = seed

    # -- fitting -------------------------------------------------------------------------------------------------

    def _fit(self, X: Blocks, y: Any, task: Task, given: Any) -> Result:
        """y: the labels as numbers; given: as the user brought them, perhaps with an index."""
        _check_blocks(X)
        job = self._job(task, X)
        _warn_of_indexes([*X.items(), ("y", given)])
        data = self._data(X, y, task, job)
        result = run_experiment(data, job)
        _check_usable(result)
        self._keep(result, data)
        self._warn(result)
        return result

    def _job(self, task: Task, X: Blocks) -> Job:
        me = type(self).__name__
        linear_named(self.algorithm)
        if self.runtime in ("processes", "ray"):
            raise BadJob(
                f'{me} runs in one process: runtime must be "simulator" or "threads"; got "{self.runtime}", which is '
                f"for job files: offbeat run JOB.toml --runtime {self.runtime}."
            )
        slow = {name: _plain(factor) for name, factor in (self.slow or {}).items()}
        unknown = [name for name in slow if name not in X]
        if unknown:
            raise BadJob(f"slow names {unknown[0]!r}, which is no party. {did_you_mean(str(unknown[0]), X)}")
        given = {
            name: _plain(getattr(self, name))
            for name in self.get_params(deep=False)
            if name not in ("runtime", "slow", "standardise") and getattr(self, name) is not None
        }
        runtime = {"kind": self.runtime, "slow": slow}
        tree = {**given, "task": task, "runtime": runtime, "optimum": False, "looks_per_pass": 1.0}
        return vertical_job_from(tree, me)

    def _data(self, X: Blocks, y: Any, task: Task, job: Job) -> VerticalData:
        everywhere = linear_named(job.algorithm).labels_everywhere
        holders: Any = "all" if everywhere else [next(iter(X))] if job.labels_at is None else job.labels_at
        if everywhere and job.labels_at is not None:
            raise BadData(f"{job.algorithm} gives the labels to every party; leave labels_at out, or use vfb2-svrg.")
        preparation = Preparation(how="none" if self.standardise == "none" else "scaled")
        return vertical_from_arrays(X, y, holders, preparation, 0.0, self.seed, task=task)

    def _keep(self, result: Result, data: VerticalData) -> None:
        self.parties_ = data.names
        self.n_features_in_ = sum(data.widths.values())
        self.coef_ = {name: np.array(result.weights[name]) for name in data.names}
        self.intercept_ = result.intercept
        self.certificate_ = result.record.certificate
        self.record_ = result.record
        self.n_iter_ = result.record.passes
        self._columns = dict(data.columns)
        self._fitted = dict(data.fitted)

    def _warn(self, result: Result) -> None:
        record = result.record
        if record.verdict == "target" or (record.verdict == "passes" and self.target is None):
            return
        warnings.warn(f"{record.reason}. See record_.", ConvergenceWarning, stacklevel=4)

    # -- using ---------------------------------------------------------------------------------------------------

    def decision_function(self, X: Blocks) -> Floats:
        """The product of every row with the whole model."""
        check_is_fitted(self)
        _check_blocks(X)
        _warn_of_indexes(list(X.items()))
        tables = {name: self._table(X, name) for name in self.parties_}
        unknown = [name for name in X if name not in tables]
        if unknown:
            raise BadData(f"{unknown[0]!r} is no party of this model. {did_you_mean(str(unknown[0]), self.parties_)}")
        sizes = {name: len(table) for name, table in tables.items()}
        if len(set(sizes.values())) > 1:
            raise BadData(f"All parties need the same number of rows; came {sizes}.")
        total = np.full(next(iter(sizes.values())), float(self.intercept_))
        for name, table in tables.items():
            total += np.asarray(self._fitted[name].apply(table.features) @ self.coef_[name])
        return total

    def _table(self, X: Blocks, name: str) -> Table:
        if name not in X:
            raise BadData(f"The columns of party {name!r} are missing; this model needs {', '.join(self.parties_)}.")
        table = table_from_arrays(X[name], name=f"party {name!r}", missing="refuse")
        expected = len(self.coef_[name])  # nothing here makes several columns of one
        if len(table.columns) != expected:
            raise BadData(f"Party {name!r} had {expected} columns when fitted; came {len(table.columns)}.")
        named = not isinstance(table.columns, NumberedColumns)
        known = self._columns[name]
        if named and not isinstance(known, NumberedColumns) and list(table.columns) != list(known):
            raise BadData(
                f"Party {name!r} had the columns {', '.join(known)} when fitted; came {', '.join(table.columns)}. "
                "Bring the same columns in the same order."
            )
        return table


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays, as grids are made of, become Python's."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _check_blocks(X: Any) -> None:
    if not isinstance(X, Mapping):
        raise BadData(
            f"X must be a dictionary from party to its columns, as in {{'bank': Xb, 'shop': Xs}}; got "
            f"{type(X).__name__}."
        )
    if not X:
        raise BadData("X must have the columns of at least one party; got an empty dictionary.")
    for name in X:
        if not isinstance(name, str) or not name:
            raise BadData(f"Parties must be named by text, as in {{'bank': Xb, 'shop': Xs}}; got {name!r}.")


def _check_labels(y: Any) -> None:
    """An empty label is no class of its own."""
    import pandas as pd

    labels = np.asarray(y)
    empty = np.asarray(pd.isna(labels) | np.isinf(labels) if labels.dtype.kind == "f" else pd.isna(labels))
    if empty.any():
        row = int(np.argwhere(empty)[0][0])
        raise BadData(
            f"y must have a label in every row; row {row + 1} has {labels[row]} ({int(empty.sum())} such rows). Fill "
            "the labels in or leave these rows out."
        )


def _warn_of_indexes(given: list[tuple[str, Any]]) -> None:
    """Rows are matched by position, as everywhere in scikit-learn; data frames may know better."""
    import pandas as pd

    indexes = [(name, part.index) for name, part in given if isinstance(getattr(part, "index", None), pd.Index)]
    for name, index in indexes[1:]:
        first, expected = indexes[0]
        if len(index) != len(expected):
            continue
        differ = np.asarray(index.to_numpy() != expected.to_numpy())
        if differ.any():
            row = int(np.argmax(differ))
            warnings.warn(
                f"The rows of {first} and {name} are matched by position, but their indexes differ: row {row + 1} is "
                f"{expected[row]} in one and {index[row]} in the other. Bring them into one order first (by reindex, "
                "say), or drop the indexes (reset_index) if the order is right.",
                UserWarning,
                stacklevel=4,
            )
            return


def _check_usable(result: Result) -> None:
    """A run that never got anywhere leaves no model."""
    record = result.record
    if record.verdict == "range":
        raise OutOfRange(f"Nothing was learned: {record.reason}")
    if record.verdict == "diverged":
        raise BadJob(f"Training diverged after {record.passes:.3g} passes: {record.reason}.")


class VerticalClassifier(ClassifierMixin, _Vertical):  # type: ignore[misc]
    """Two classes of any type. After `fit`: coef_ (by party), intercept_, classes_, certificate_, record_."""

    def fit(self, X: Blocks, y: Any) -> "VerticalClassifier":
        """X: the columns of each party (arrays, sparse matrices, data frames), all with the same rows; y: labels."""
        _check_labels(y)
        labels = np.asarray(y)
        try:
            classes, position = np.unique(labels, return_inverse=True)
        except TypeError as problem:
            raise BadData(f"The classes cannot be put in order: {problem}.") from problem
        if len(classes) != 2 or labels.ndim != 1:
            encode_labels(labels.ravel(), "classification", "y")
            raise BadData(f"y must be one label per row; came an array of shape {labels.shape}.")
        self._fit(X, np.where(position == 0, -1.0, 1.0), "classification", y)
        self.classes_ = classes
        return self

    def predict(self, X: Blocks) -> NDArray[Any]:
        positive = self.decision_function(X) >= 0
        return np.asarray(self.classes_[positive.astype(np.intp)])

    def predict_proba(self, X: Blocks) -> Floats:
        """One column per class, in the order of classes_."""
        scores = self.decision_function(X)
        positive = probabilities(scores, self.record_.options["loss"])
        return np.column_stack([1.0 - positive, positive])

    @staticmethod
    def connect(home: str | Path, run: str, address: str = "") -> "JointModel":
        """The model of a finished run between organisations, asked through the daemon of the party in this folder."""
        from offbeat.orgs.client import connect

        return connect(home, run, address)


class VerticalRegressor(RegressorMixin, _Vertical):  # type: ignore[misc]
    """A number to predict, by the squared loss. After `fit`: coef_ (by party), intercept_, certificate_, record_."""

    def fit(self, X: Blocks, y: Any) -> "VerticalRegressor":
        """X: the columns of each party (arrays, sparse matrices, data frames), all with the same rows; y: numbers."""
        _check_labels(y)
        self._fit(X, y, "regression", y)
        return self

    def predict(self, X: Blocks) -> Floats:
        return self.decision_function(X)
