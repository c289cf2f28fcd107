"""scikit-learn's manners for vertical learning: rows shared by all, columns by party.

    model = VerticalClassifier(passes=40).fit({"bank": Xb, "shop": Xs, "telecom": Xt}, y)
    model = VerticalClassifier(parties={"bank": ["income", "age"], "shop": ["spend"]}).fit(frame, y)
    model.predict_proba(frame)
    model.certificate_.duality_gap      # how far the objective is from the best possible, at most
    model.save("model"); VerticalClassifier.load("model")

Everything runs in this process: it is for research, for planning, and for finding out what a joint model would be
worth before organisations connect. Columns may hold text, dates and missing values: `prepare` says what is done to
them, in the words of job files (docs/how-to/prepare-columns.md).
"""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from offbeat.data.assemble import VerticalData
from offbeat.data.columns import NumberedColumns
from offbeat.data.labels import Task, encode_labels
from offbeat.data.matrix import as_matrix, is_sparse, take_rows
from offbeat.data.preparation import Preparation
from offbeat.data.split import split_columns
from offbeat.data.table import table_from_arrays
from offbeat.data.vertical import vertical_from_arrays
from offbeat.data.weights import checked_weights
from offbeat.errors import BadData, BadInput, BadJob, OutOfRange
from offbeat.jobs.methods import DEFAULT_ALGORITHM, linear_named
from offbeat.jobs.vertical import Job, vertical_job_from
from offbeat.metrics.plain import json_text
from offbeat.metrics.record import RunRecord
from offbeat.names import did_you_mean
from offbeat.run.experiment import Result, run_experiment
from offbeat.run.folder import write_job, write_result
from offbeat.run.model import TrainedModel, load, model_of
from offbeat.run.observer import Progress, Watch

if TYPE_CHECKING:
    from offbeat.orgs.client import JointModel

Floats = NDArray[np.float64]
Blocks = Mapping[str, Any]
Own = TypeVar("Own", bound="_Vertical")

PARTIES_USUAL = 3  # one matrix without `parties` is cut into so many, where it has as many columns
PARAMETERS_FILE = "estimator.json"


class PartyColumns(Mapping[str, Any]):
    """Columns by party that can be cut by rows: `X["bank"]` are a party's columns, `X[rows]` some rows of all parties.

    To scikit-learn's splitters a dictionary of three parties looks like three rows. This has a shape (rows, columns)
    and goes wherever they cut rows: cross_val_score, GridSearchCV, train_test_split. Data frames stay data frames.

    blocks  each party's columns by its name: arrays, sparse matrices or data frames with equally many rows
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

    def __repr__(self) -> str:
        widths = ", ".join(f"{name}: {block.shape[1]}" for name, block in self._blocks.items())
        return f"PartyColumns({self.shape[0]} rows; columns of {widths})"


def _cuttable(name: str, block: Any) -> Any:
    """Something that can be cut by rows."""
    if hasattr(block, "iloc"):
        return block
    table = table_from_arrays(block, name=f"party {name!r}")
    return np.asarray(block, dtype=object) if table.levels else table.features


class _Vertical(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share. The constructor only stores; `fit` checks.

    algorithm           a linear method: vfb2-saga (the default), vfb2-svrg, afsvrg-vp, ... (docs/reference/job-file.md)
    parties             for one matrix or frame: the columns of each party, by name or position, as in
                        {"bank": ["income", "age"], "shop": [2, 3]}; None: shared out evenly over three parties
    prepare             what is done to the columns: "auto", "bins", "scaled", "none", a table with `how`, `columns` and
                        `bins`, or one of these by party
    penalty             the strength lambda; scikit-learn's C is 1 / (rows * penalty)
    penalty_kind        "l2", "nonconvex", "none"
    l1_ratio            how much of the penalty is of absolute values (elastic net: exact zeros); 0, and below 1
    loss                "auto" (logistic for two classes, softmax for more, squared for numbers), "logistic", "softmax",
                        "squared_hinge", "ls_svm"; for numbers "squared", "poisson", "gamma"
    class_weight        for classes: "balanced", or a weight by class; None: every row counts alike
    intercept           whether there is one
    passes              end after so many passes over the rows
    target              end when the certificate is at or below it; None: make all passes
    step                how far an update goes, or "auto": from what the parties measure
    batch               the rows of an update, or "auto"
    in_flight           how many products a party asks for at a time
    by_curvature        multiply steps by the inverse curvature: "auto" where that can be known, True, False
    secure_sum          how shares are hidden: "pairwise" masks, "two-tree"; "tree" hides nothing, for comparison
    two_party_insecure  accept that two parties hide nothing from each other
    fraction_bits       binary digits after the point of a share; fewer leave room for larger numbers
    labels_at           the parties that hold the labels; None: the first
    label_dp_epsilon    answer every label at random once, with this epsilon
    runtime             "simulator" (virtual time) or "threads"
    slow                how many times slower a party is, by its name
    seed                decides the order of rows and batches; None is 0
    verbose             tell of the progress on standard error
    """

    def __init__(
        self,
        algorithm: str = DEFAULT_ALGORITHM,
        *,
        parties: Mapping[str, Sequence[str | int]] | int | None = None,
        prepare: Any = "auto",
        penalty: float = 1e-4,
        penalty_kind: str = "l2",
        l1_ratio: float = 0.0,
        loss: str = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        intercept: bool = True,
        passes: float = 60,
        target: float | None = 1e-6,
        step: float | str = "auto",
        batch: int | str = "auto",
        in_flight: int = 1,
        by_curvature: bool | str = "auto",
        secure_sum: str = "pairwise",
        two_party_insecure: bool = False,
        fraction_bits: int | None = None,
        labels_at: list[str] | None = None,
        label_dp_epsilon: float | None = None,
        runtime: str = "simulator",
        slow: dict[str, float] | None = None,
        seed: int | None = 0,
        verbose: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self.parties = parties
        self.prepare = prepare
        self.penalty = penalty
        self.penalty_kind = penalty_kind
        self.l1_ratio = l1_ratio
        self.loss = loss
        self.class_weight = class_weight
        self.intercept = intercept
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
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    # -- columns by party ----------------------------------------------------------------------------------------

    def _blocks(self, X: Any, *, reset: bool) -> dict[str, Any]:
        """Columns by party, whatever form they come in. `reset`: whether this is what the model is fitted on."""
        if isinstance(X, Mapping) and not is_sparse(X):  # some sparse matrices are mappings of cells
            _check_blocks(X)
            if reset:
                for name in ("columns_by_party_", "feature_names_in_"):  # of a fit before, on one matrix
                    self.__dict__.pop(name, None)
            return dict(X)
        return self._cut(_matrix(X), reset=reset)

    def _cut(self, X: Any, *, reset: bool) -> dict[str, Any]:
        """One matrix or frame, cut by columns."""
        validate_data(self, X, reset=reset, skip_check_array=True)
        if reset:
            self.columns_by_party_ = self._owners(X)
        elif not hasattr(self, "columns_by_party_"):
            raise BadData(f"X must come as it was fitted: a dictionary with the columns of {', '.join(self.parties_)}.")
        found = {}
        for party, positions in self.columns_by_party_.items():
            found[party] = X.iloc[:, positions] if hasattr(X, "iloc") else X[:, positions]
        return found

    def _owners(self, X: Any) -> dict[str, list[int]]:
        names = [str(name) for name in X.columns] if hasattr(X, "iloc") else [str(j) for j in range(X.shape[1])]
        if isinstance(self.parties, Mapping):
            wanted = {party: [_name(column, names) for column in mine] for party, mine in self.parties.items()}
            return {party: positions.tolist() for party, positions in split_columns(names, (), wanted).items()}
        count = min(PARTIES_USUAL, len(names)) if self.parties is None else self.parties
        if len(names) < 2:
            raise BadData(
                "X has 1 feature(s), and vertical learning needs two parties or more, each with a column. Bring more "
                "columns, or use a model for one party."
            )
        return {party: positions.tolist() for party, positions in split_columns(names, count, "equal").items()}

    # -- fitting -------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, task: Task, classes: NDArray[Any] | None = None, **beside: Any) -> None:
        """`beside`: the weights and the exposure of the rows, where they are given."""
        blocks = self._blocks(X, reset=True)
        given = {name: values for name, values in beside.items() if values is not None}
        blocks, labels, given = _aligned(blocks, y, given)
        job = self._job(task, blocks)
        targets = labels if classes is None else _coded(labels, classes)
        if self.class_weight is not None:
            given["weights"] = self._class_weighted(labels, classes, given.get("weights"))
        data = self._data(blocks, targets, task, job, given)
        if classes is not None:
            data = replace(data, classes=tuple(classes.tolist()))
        result = run_experiment(data, job, watch=_teller(self.passes) if self.verbose else None)
        _check_usable(result)
        self._take(model_of(job, result), result.record)
        self._warn(result)

    def _class_weighted(self, labels: NDArray[Any], classes: NDArray[Any] | None, weights: Any) -> Floats:
        if classes is None:
            raise BadJob("class_weight is for classes, and this is regression. Leave it out, or give sample_weight.")
        try:
            found = compute_sample_weight(self.class_weight, labels)
        except (ValueError, TypeError) as problem:
            raise BadJob(f'class_weight must be "balanced" or a number by class; {problem}.') from None
        return np.asarray(found if weights is None else found * checked_weights(weights, len(found), "sample_weight"))

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
        own = ("runtime", "slow", "prepare", "parties", "verbose", "class_weight")
        given = {
            name: _plain(getattr(self, name))
            for name in self.get_params(deep=False)
            if name not in own and getattr(self, name) is not None
        }
        if self.parties is None and hasattr(self, "columns_by_party_"):
            given["two_party_insecure"] = True  # nobody said who holds what: there is nothing to hide
        runtime = {"kind": self.runtime, "slow": slow}
        tree = {**given, "task": task, "runtime": runtime, "optimum": False, "looks_per_pass": 1.0}
        return vertical_job_from(tree, me)

    def _data(self, X: Blocks, y: Any, task: Task, job: Job, beside: Mapping[str, Any]) -> VerticalData:
        everywhere = linear_named(job.algorithm).labels_everywhere
        holders: Any = "all" if everywhere else [next(iter(X))] if job.labels_at is None else job.labels_at
        if everywhere and job.labels_at is not None:
            raise BadData(f"{job.algorithm} gives the labels to every party; leave labels_at out, or use vfb2-svrg.")
        return vertical_from_arrays(X, y, holders, self._preparation(X), 0.0, self.seed or 0, task=task, **beside)

    def _preparation(self, X: Blocks) -> Any:
        """As it is, or by party: those that are left out are prepared as usual. Sparse columns stay as they are."""
        by_party = isinstance(self.prepare, Mapping) and "how" not in self.prepare
        known = {field.name for field in msgspec.structs.fields(Preparation)}
        if by_party and not set(self.prepare) <= known - set(X):
            unknown = [party for party in self.prepare if party not in X]
            if unknown:
                raise BadJob(f"prepare names {unknown[0]!r}, which is no party. {did_you_mean(str(unknown[0]), X)}")
            return {party: self.prepare.get(party, "auto") for party in X}
        return self.prepare

    def _take(self, model: TrainedModel, record: RunRecord) -> None:
        """All that is known of a fitted model."""
        self.model_, self.record_ = model, record
        self.parties_ = model.names
        raw = {name: model.fitted(name).raw_columns for name in model.names}
        self.n_features_in_ = sum(len(columns) for columns in raw.values())
        named = not any(isinstance(columns, NumberedColumns) for columns in raw.values())
        if named and not hasattr(self, "columns_by_party_"):
            self.feature_names_in_ = np.array([c for columns in raw.values() for c in columns], dtype=object)
        self.coef_ = {name: np.array(model.parts[name].arrays["weights"]) for name in model.names}
        self.intercept_ = model.intercept
        self.certificate_ = record.certificate
        self.n_iter_ = record.passes

    @property
    def coefficients_(self) -> dict[str, dict[str, Any]]:
        """The coefficient of every prepared column, by party and name; of several classes, those by class."""
        check_is_fitted(self, "model_")
        return {name: self._coefficients_of(name) for name in self.parties_}

    def _coefficients_of(self, party: str) -> dict[str, Any]:
        columns, found = self.model_.fitted(party).columns, self.coef_[party]
        if found.ndim == 1:
            return dict(zip(columns, found.tolist(), strict=True))
        classes = self.classes_.tolist()
        return {name: dict(zip(classes, row, strict=True)) for name, row in zip(columns, found.T.tolist(), strict=True)}

    def _warn(self, result: Result) -> None:
        record = result.record
        if record.verdict == "target" or (record.verdict == "passes" and self.target is None):
            return
        warnings.warn(
            f"{record.reason}. Raise passes ({self.passes:g} now), or set a larger target or penalty. record_ has the "
            "curve.",
            ConvergenceWarning,
            stacklevel=4,
        )

    # -- using ---------------------------------------------------------------------------------------------------

    def _scores(self, X: Any) -> Floats:
        """The product of every row with the whole model."""
        check_is_fitted(self, "model_")
        blocks, _, _ = _aligned(self._blocks(X, reset=False), None, {})
        return self.model_.decision_function(blocks)

    def save(self, folder: str | Path) -> Path:
        """Write the fitted model into `folder`, a new one, which `load` and `offbeat.load` read; no pickle needed."""
        check_is_fitted(self, "model_")
        place = Path(folder)
        if place.exists():
            raise BadInput(f"{place} is there already. Give a folder that is not, or remove it first.")
        write_job(self.model_.job, place)
        write_result(Result(self.record_, self.model_.parts, ()), place)
        classes = getattr(self, "classes_", None)
        kept = {
            "kind": type(self).__name__,
            "parameters": {name: msgspec.to_builtins(_plain(value)) for name, value in self.get_params().items()},
            "columns_by_party": getattr(self, "columns_by_party_", None),
            "feature_names": list(map(str, getattr(self, "feature_names_in_", ()))),
            "classes": None if classes is None else {"dtype": classes.dtype.str, "values": classes.tolist()},
        }
        (place / PARAMETERS_FILE).write_text(json_text(kept), encoding="utf-8")
        return place

    @classmethod
    def load(cls: type[Own], folder: str | Path) -> Own:
        """The fitted model that `save` wrote into `folder`."""
        file = Path(folder) / PARAMETERS_FILE
        if not file.is_file():
            raise BadInput(f"{folder} holds no saved estimator: {PARAMETERS_FILE} is not there. Did `save` write it?")
        kept = msgspec.json.decode(file.read_bytes())
        if kept["kind"] != cls.__name__:
            raise BadInput(f"{folder} holds a {kept['kind']}; load it with {kept['kind']}.load.")
        model = cls(**kept["parameters"])
        if kept["columns_by_party"] is not None:
            model.columns_by_party_ = kept["columns_by_party"]
        if kept["feature_names"]:
            model.feature_names_in_ = np.array(kept["feature_names"], dtype=object)
        model._take(load(folder), RunRecord.read(Path(folder)))
        if kept["classes"] is not None:
            model.classes_ = np.array(kept["classes"]["values"], dtype=np.dtype(kept["classes"]["dtype"]))
        return model


# -- what comes in ---------------------------------------------------------------------------------------------------


def _coded(labels: NDArray[Any], classes: NDArray[Any]) -> Floats:
    """-1 and 1 for two classes, the positions of more."""
    if len(classes) == 2:
        return np.where(labels == classes[1], 1.0, -1.0)
    return np.searchsorted(classes, labels).astype(np.float64)


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays, as grids are made of, become Python's."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _name(column: str | int, names: Sequence[str]) -> str:
    """A column's name; a position that is none of the names counts from 0."""
    if isinstance(column, int | np.integer) and str(column) not in names and 0 <= column < len(names):
        return names[int(column)]
    return str(column)


def _matrix(X: Any) -> Any:
    """One matrix of two dimensions with a row and a column at least."""
    if is_sparse(X):
        X = X if X.dtype.kind == "c" else as_matrix(X)
    elif not hasattr(X, "iloc"):
        X = np.asarray(X)
    if getattr(getattr(X, "dtype", None), "kind", "") == "c":
        raise BadData(f"Complex data not supported: X holds {X.dtype}. Bring real numbers.")
    if X.ndim != 2:
        raise BadData(
            f"Expected 2D array, got {X.ndim}D array instead: X is a dictionary from party to its columns, or one "
            "matrix or frame. Reshape your data, a single column by X.reshape(-1, 1)."
        )
    if not X.shape[0]:
        raise BadData(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
    if not X.shape[1]:
        raise BadData(f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    return X


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


def _check_labels(y: Any, me: str) -> Any:
    """One label a row; an empty label is no class of its own."""
    import pandas as pd

    if y is None:
        raise BadData(
            f"This {me} requires y to be passed, but the target y is None. Give the labels, one for each row."
        )
    labels = np.asarray(y)
    if labels.ndim != 1 and not (labels.ndim == 2 and labels.shape[1] == 1):
        raise BadData(f"y must be one label per row; came an array of shape {labels.shape}.")
    labels = labels if labels.ndim == 1 else column_or_1d(labels, warn=True)
    empty = np.asarray(pd.isna(labels) | np.isinf(labels) if labels.dtype.kind == "f" else pd.isna(labels))
    if empty.any():
        row = int(np.argwhere(empty)[0][0])
        what = "infinity" if labels.dtype.kind == "f" and np.isinf(labels[row]) else "NaN"
        raise BadData(
            f"Input y contains {what}, and y must have a label in every row; row {row + 1} has {labels[row]} "
            f"({int(empty.sum())} such rows). Fill the labels in or leave these rows out."
        )
    if labels.size == 1:
        raise BadData("n_samples=1: there is one row, and learning needs at least two.")
    return y if hasattr(y, "index") and np.ndim(y) == 1 else labels


def _aligned(blocks: dict[str, Any], y: Any, beside: Mapping[str, Any]) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Frames whose indexes hold the same labels are brought into the order of the first; otherwise rows are matched by
    position, and a warning tells where indexes differ. What lies beside y without an index is in the order of y."""
    import pandas as pd

    found = dict(blocks) if y is None else {**blocks, "y": y}
    names = {f"y, {name}": name for name in beside}  # no party is called that
    for key, name in names.items():
        values, follows = beside[name], isinstance(getattr(y, "index", None), pd.Index)
        plain = follows and not hasattr(values, "index") and np.shape(values) == np.shape(y)
        found[key] = pd.Series(np.asarray(values), index=y.index) if plain else values
    indexed = [name for name, part in found.items() if isinstance(getattr(part, "index", None), pd.Index)]
    for name in indexed[1:]:
        first, index = found[indexed[0]].index, found[name].index
        if len(index) != len(first) or index.equals(first):
            continue
        if first.is_unique and index.is_unique and index.isin(first).all():
            found[name] = found[name].loc[first]
            continue
        _warn_of_indexes(indexed[0], first, name, index)
        break
    labels = None if y is None else np.asarray(found.pop("y"))
    return {name: found[name] for name in blocks}, labels, {name: np.asarray(found[key]) for key, name in names.items()}


def _warn_of_indexes(one: str, first: Any, other: str, index: Any) -> None:
    row = int(np.argmax(np.asarray(index.to_numpy() != first.to_numpy())))
    warnings.warn(
        f"The rows of {one} and {other} are matched by position, but their indexes differ: row {row + 1} is "
        f"{first[row]} in one and {index[row]} in the other. Bring them into one order first (by reindex, say), or "
        "drop the indexes (reset_index) if the order is right.",
        UserWarning,
        stacklevel=5,
    )


def _check_usable(result: Result) -> None:
    """A run that never got anywhere leaves no model."""
    record = result.record
    if record.verdict == "range":
        raise OutOfRange(f'Nothing was learned: {record.reason} The argument for that is prepare="auto".')
    if record.verdict == "diverged":
        raise BadJob(f"Training diverged after {record.passes:.3g} passes: {record.reason}.")


def _teller(passes: float) -> Watch:
    """Tells of the progress on standard error, about ten times."""
    told = [-1.0]

    def watch(now: Progress) -> None:
        if now.passes >= told[0] + passes / 10:
            told[0] = now.passes
            certificate = "" if now.certificate is None else f", certificate {now.certificate:.3g}"
            objective = "" if now.objective is None else f": objective {now.objective:.6g}"
            print(f"{now.passes:.1f} of {passes:g} passes{objective}{certificate}", file=sys.stderr)

    return watch


class VerticalClassifier(ClassifierMixin, _Vertical):  # type: ignore[misc]
    __doc__ = f"""Two classes or more, of any type. After `fit`: coef_ (arrays by party), coefficients_ (by party and
    name), intercept_, classes_, certificate_, record_, feature_names_in_, n_features_in_.
{(_Vertical.__doc__ or "").partition("checks.")[2]}"""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "VerticalClassifier":
        """Train. `X`: the columns of each party (arrays, sparse matrices, data frames), or one matrix or frame of all;
        `y`: labels, one for each row; `sample_weight`: how much each row counts."""
        y = _check_labels(y, type(self).__name__)
        labels = np.asarray(y)
        kind = type_of_target(labels, input_name="y") if labels.dtype != object else "unknown"
        if kind.startswith("continuous"):
            raise BadData(f"Unknown label type: {kind}. A number to be predicted is for VerticalRegressor.")
        try:
            classes = np.unique(labels)
        except TypeError as problem:
            raise BadData(f"The classes cannot be put in order: {problem}.") from problem
        if len(classes) < 2:
            encode_labels(labels, "classification", "y")  # which says what is wrong
        task: Task = "classification" if len(classes) == 2 else "multiclass"
        self._fit(X, y, task, classes, weights=sample_weight)
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> Floats:
        """The product of every row of `X` with the whole model; above 0 is for the second of two classes. Of more
        classes, one product for each, in the order of classes_."""
        return self._scores(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of every row of `X`, which comes in the form that `fit` had."""
        scores = self._scores(X)
        chosen = scores >= 0 if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen.astype(np.intp)])

    def predict_proba(self, X: Any) -> Floats:
        """The probabilities of the rows of `X`: one column per class, in the order of classes_."""
        scores = self._scores(X)
        return self.model_.probabilities(scores)

    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithms of the probabilities of the rows of `X`."""
        return np.asarray(np.log(self.predict_proba(X)))

    @staticmethod
    def connect(home: str | Path, run: str, address: str = "") -> "JointModel":
        """The model of a finished `run` between organisations, asked through the daemon of the party in `home`.
        `address`: where that daemon listens, if not where party.toml says."""
        from offbeat.orgs.client import connect

        return connect(home, run, address)


class VerticalRegressor(RegressorMixin, _Vertical):  # type: ignore[misc]
    __doc__ = f"""A number to predict: by the squared loss; a count by "poisson", an amount above 0 by "gamma". After
    `fit`: coef_ (arrays by party), coefficients_ (by party and name), intercept_, certificate_, record_,
    feature_names_in_, n_features_in_.
{(_Vertical.__doc__ or "").partition("checks.")[2]}"""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None) -> "VerticalRegressor":
        """Train. `X`: the columns of each party (arrays, sparse matrices, data frames), or one matrix or frame of all;
        `y`: numbers, one for each row; `sample_weight`: how much each row counts; `exposure`: what a count or an amount
        is of, years say. The model then predicts for one unit of it."""
        y = _check_labels(y, type(self).__name__)
        self._fit(X, y, "regression", weights=sample_weight, exposure=exposure)
        return self

    def predict(self, X: Any) -> Floats:
        """The number of every row of `X`, which comes in the form that `fit` had."""
        scores = self._scores(X)
        return np.asarray(self.model_.answers(scores))
