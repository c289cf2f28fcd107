"""What all estimators over columns share: columns by party and what is done to them, the run, `save` and `load`."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from offbeat.data.assemble import VerticalData
from offbeat.data.columns import NumberedColumns
from offbeat.data.labels import Task
from offbeat.data.matrix import is_sparse
from offbeat.data.preparation import Preparation, preparation_from
from offbeat.data.split import split_columns
from offbeat.data.table import tabular
from offbeat.data.vertical import vertical_from_arrays
from offbeat.errors import BadData, BadInput, BadJob, OutOfRange
from offbeat.estimators.incoming import Blocks, Floats, aligned, check_blocks, coded, column_name, one_matrix, plain
from offbeat.families.contract import Part
from offbeat.jobs.reading import AnyJob
from offbeat.jobs.vertical import Job
from offbeat.metrics.plain import json_text
from offbeat.metrics.record import RunRecord
from offbeat.names import did_you_mean
from offbeat.run.folder import write_job, write_result
from offbeat.run.model import TrainedModel, load
from offbeat.run.observer import Progress, Watch
from offbeat.run.result import Result

Own = TypeVar("Own", bound="ByParty")

PARTIES_USUAL = 3  # one matrix without `parties` is cut into so many, where it has as many columns
PARAMETERS_FILE = "estimator.json"
SCORED_LOOKS = 8.0
"""Looks a pass where a score is followed: every fourth look scores the held-out rows."""


class ByParty(BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator over the columns of parties. Its own are `_job`, `_trained` and what `_take` knows besides."""

    parties: Mapping[str, Sequence[str | int]] | int | None
    prepare: Any
    passes: float
    early_stopping: float | None
    validation_fraction: float
    warm_start: bool
    runtime: str
    slow: dict[str, float] | None
    seed: int | None
    verbose: bool

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    # -- columns by party ----------------------------------------------------------------------------------------

    def _blocks(self, X: Any, *, reset: bool) -> dict[str, Any]:
        """Columns by party, whatever form they come in. `reset`: whether this is what the model is fitted on."""
        if isinstance(X, Mapping) and not is_sparse(X):  # some sparse matrices are mappings of cells
            check_blocks(X)
            if reset:
                for name in ("columns_by_party_", "feature_names_in_"):  # of a fit before, on one matrix
                    self.__dict__.pop(name, None)
            return {name: tabular(block) for name, block in X.items()}
        return self._cut(one_matrix(tabular(X)), reset=reset)

    def _cut(self, X: Any, *, reset: bool) -> dict[str, Any]:
        """One matrix or frame, cut by columns."""
        if not reset and not hasattr(self, "columns_by_party_"):
            raise BadData(f"X must come as it was fitted: a dictionary with the columns of {', '.join(self.parties_)}.")
        try:
            validate_data(self, X, reset=reset, skip_check_array=True)
        except (TypeError, ValueError) as problem:
            raise BadData(f"{problem} Bring the columns that the model was fitted on, in their order.") from None
        if reset:
            self.columns_by_party_ = self._owners(X)
        found = {}
        for party, positions in self.columns_by_party_.items():
            found[party] = X.iloc[:, positions] if hasattr(X, "iloc") else X[:, positions]
        return found

    def _owners(self, X: Any) -> dict[str, list[int]]:
        names = [str(name) for name in X.columns] if hasattr(X, "iloc") else [str(j) for j in range(X.shape[1])]
        _check_parties(self.parties)
        if isinstance(self.parties, Mapping):
            wanted = {party: [column_name(column, names) for column in mine] for party, mine in self.parties.items()}
            return {party: positions.tolist() for party, positions in split_columns(names, (), wanted).items()}
        count = min(PARTIES_USUAL, len(names)) if self.parties is None else self.parties
        if len(names) < 2:
            raise BadData(
                "X has 1 feature(s), and vertical learning needs two parties or more, each with a column. Bring more "
                "columns, or use a model for one party."
            )
        return {party: positions.tolist() for party, positions in split_columns(names, count, "equal").items()}

    # -- fitting -------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, task: Task, classes: NDArray[Any] | None = None, **beside: Any) -> Result:
        """`beside`: the weights and the exposure of the rows, where they are given."""
        blocks = self._blocks(X, reset=True)
        given = {name: values for name, values in beside.items() if values is not None}
        blocks, labels, given = aligned(blocks, y, given)
        job = self._job(task, blocks)
        self._weigh(labels, classes, given)
        data = self._data(blocks, labels if classes is None else coded(labels, classes), task, job, given)
        if classes is not None:
            data = replace(data, classes=tuple(classes.tolist()))
        start = self.model_.parts if self.warm_start and hasattr(self, "model_") else None
        model, result = self._trained(data, job, teller(self.passes) if self.verbose else None, start)
        self._take(model, result.record)
        return result

    @abstractmethod
    def _job(self, task: Task, X: Blocks) -> Job: ...

    @abstractmethod
    def _trained(
        self, data: VerticalData, job: Job, watch: Watch | None, start: Mapping[str, Part] | None
    ) -> tuple[TrainedModel, Result]: ...

    def _weigh(self, labels: NDArray[Any], classes: NDArray[Any] | None, given: dict[str, Any]) -> None:
        """Put the weights of classes into those of rows, where there are any."""

    def _holders(self, X: Blocks, job: Job) -> Any:
        return [next(iter(X))]

    def _common(self, X: Blocks) -> dict[str, Any]:
        """What all jobs say, after a check of what only estimators can get wrong."""
        me = type(self).__name__
        if self.runtime in ("processes", "ray"):
            raise BadJob(
                f'{me} runs in one process: runtime must be "simulator" or "threads"; got "{self.runtime}", which is '
                f"for job files: offbeat run JOB.toml --runtime {self.runtime}."
            )
        if self.slow is not None and not isinstance(self.slow, Mapping):
            raise BadJob(f"{me}: slow must be a dictionary by party, as in {{'shop': 4.0}}; got {self.slow!r}.")
        slow = {name: plain(factor) for name, factor in (self.slow or {}).items()}
        unknown = [name for name in slow if name not in X]
        if unknown:
            raise BadJob(f"slow names {unknown[0]!r}, which is no party. {did_you_mean(str(unknown[0]), X)}")
        looks = 1.0 if self.early_stopping is None else SCORED_LOOKS
        runtime = {"kind": self.runtime, "slow": slow}
        return {"runtime": runtime, "optimum": False, "looks_per_pass": looks}

    def _data(self, X: Blocks, y: Any, task: Task, job: Job, beside: Mapping[str, Any]) -> VerticalData:
        held = 0.0 if self.early_stopping is None else self.validation_fraction
        if not isinstance(held, float | int) or not 0.0 <= held < 1.0:
            raise BadJob(f"validation_fraction must be a number of 0 or more and below 1; got {held!r}.")
        holders = self._holders(X, job)
        return vertical_from_arrays(X, y, holders, self._preparation(X), held, job.seed, task=task, **beside)

    def _preparation(self, X: Blocks) -> Any:
        """As it is, or by party: those that are left out are prepared as usual. Sparse columns stay as they are."""
        by_party = isinstance(self.prepare, Mapping) and "how" not in self.prepare
        known = {field.name for field in msgspec.structs.fields(Preparation)}
        if by_party and not set(self.prepare) <= known - set(X):
            unknown = [party for party in self.prepare if party not in X]
            if unknown:
                raise BadJob(f"prepare names {unknown[0]!r}, which is no party. {did_you_mean(str(unknown[0]), X)}")
            return {party: self.prepare.get(party, "auto") for party in X}
        return preparation_from(self.prepare, "prepare") if isinstance(self.prepare, Mapping) else self.prepare

    def _take(self, model: TrainedModel, record: RunRecord) -> None:
        """All that is known of a fitted model."""
        self.model_, self.record_ = model, record
        self.parties_ = model.names
        raw = {name: model.fitted(name).raw_columns for name in model.names}
        self.n_features_in_ = sum(len(columns) for columns in raw.values())
        named = not any(isinstance(columns, NumberedColumns) for columns in raw.values())
        if named and not hasattr(self, "columns_by_party_"):
            self.feature_names_in_ = np.array([c for columns in raw.values() for c in columns], dtype=object)
        self.n_iter_ = record.passes

    # -- using ---------------------------------------------------------------------------------------------------

    def _scores(self, X: Any) -> Floats:
        """What the model gives every row."""
        rows, _ = self._rows(X)
        return self.model_.decision_function(rows)

    def _rows(self, X: Any, y: Any = None) -> tuple[dict[str, Any], Any]:
        """New rows by party, and their labels, in one order."""
        check_is_fitted(self, "model_")
        blocks, labels, _ = aligned(self._blocks(X, reset=False), y, {})
        return blocks, labels

    def save(self, folder: str | Path) -> Path:
        """Write the fitted model into `folder`, a new one, which `load` and `offbeat.load` read; no pickle needed."""
        check_is_fitted(self, "model_")
        result = Result(self.record_, self.model_.parts, ())
        names = list(map(str, getattr(self, "feature_names_in_", ())))
        columns = {"columns_by_party": getattr(self, "columns_by_party_", None), "feature_names": names}
        return save_estimator(self, folder, self.model_.job, result, self._kept_parameters(), **columns)

    def _kept_parameters(self, **instead: Any) -> dict[str, Any]:
        return {**self.get_params(deep=False), **instead}

    @classmethod
    def load(cls: type[Own], folder: str | Path) -> Own:
        """The fitted model that `save` wrote into `folder`."""
        kept = kept_estimator(folder, cls.__name__)
        return cls._loaded(cls(**kept["parameters"]), load(folder), kept, Path(folder))

    @staticmethod
    def _loaded(model: Own, trained: TrainedModel, kept: Mapping[str, Any], folder: Path) -> Own:
        """`model` has its parameters; the rest is put into it."""
        if kept["columns_by_party"] is not None:
            model.columns_by_party_ = kept["columns_by_party"]
        if kept["feature_names"]:
            model.feature_names_in_ = np.array(kept["feature_names"], dtype=object)
        model._take(trained, RunRecord.read(folder))
        if kept["classes"] is not None:
            model.classes_ = classes_from(kept["classes"])
        return model


def _check_parties(parties: Any) -> None:
    """A number of parties, their names, or the columns of each."""
    wrong = ""
    if isinstance(parties, Mapping):
        lists = {party: isinstance(mine, list | tuple | np.ndarray) for party, mine in parties.items()}
        wrong = next((f"for {party!r} {parties[party]!r}" for party, good in lists.items() if not good), "")
    elif parties is not None and not isinstance(parties, list | tuple | int | np.integer):
        wrong = repr(parties)
    if wrong:
        raise BadJob(
            "parties must be a list of columns for each party, as in {'bank': ['income', 'age'], 'shop': ['spend']}, "
            f"or a number of parties; got {wrong}."
        )


def classes_from(kept: Mapping[str, Any]) -> NDArray[Any]:
    return np.array(kept["values"], dtype=np.dtype(kept["dtype"]))


def _path(folder: Any) -> Path:
    if not isinstance(folder, str | Path):
        raise BadInput(f"Expected the path of a folder, as text; got {type(folder).__name__} ({folder!r}).")
    return Path(folder)


def save_estimator(
    model: Any, folder: str | Path, job: AnyJob, result: Result, parameters: Mapping[str, Any], **more: Any
) -> Path:
    """Write a fitted model into a new folder, with what `kept_estimator` is to find there."""
    place, classes = _path(folder), getattr(model, "classes_", None)
    if place.exists():
        raise BadInput(f"{place} is there already. Give a folder that is not, or remove it first.")
    try:
        write_job(job, place)
    except OSError as problem:
        raise BadInput(f"{place} cannot be written: {problem.strerror}. Give a folder that can.") from None
    write_result(result, place)
    kept = {
        "kind": type(model).__name__,
        "parameters": {name: msgspec.to_builtins(plain(value)) for name, value in parameters.items()},
        "classes": None if classes is None else {"dtype": classes.dtype.str, "values": classes.tolist()},
        **more,
    }
    (place / PARAMETERS_FILE).write_text(json_text(kept), encoding="utf-8")
    return place


def kept_estimator(folder: str | Path, kind: str) -> dict[str, Any]:
    """What `save` kept of an estimator of this kind, besides the model."""
    file = _path(folder) / PARAMETERS_FILE
    if not file.is_file():
        raise BadInput(f"{folder} holds no saved estimator: {PARAMETERS_FILE} is not there. Did `save` write it?")
    try:
        kept: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BadInput(f"{file} cannot be read: {problem}. It was changed since `save` wrote it: save anew.") from None
    if kept["kind"] != kind:
        raise BadInput(f"{folder} holds a {kept['kind']}; load it with {kept['kind']}.load.")
    return kept


class Classifies(ClassifierMixin):  # type: ignore[misc]
    """Answers in classes, for an estimator by party."""

    classes_: NDArray[Any]
    model_: TrainedModel

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of every row of `X`, which comes in the form that `fit` had."""
        scores = self._scores(X)  # first: it says whether there is a model
        return np.asarray(self.model_.answers(scores), dtype=self.classes_.dtype)

    def predict_proba(self, X: Any) -> Floats:
        """The probabilities of the rows of `X`: one column per class, in the order of classes_."""
        scores = self._scores(X)  # first: it says whether there is a model
        return self.model_.probabilities(scores)

    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithms of the probabilities of the rows of `X`."""
        return np.asarray(np.log(self.predict_proba(X)))


# -- how it ended ----------------------------------------------------------------------------------------------------


def check_usable(result: Result) -> None:
    """A run that never got anywhere leaves no model."""
    record = result.record
    if record.verdict == "range":
        parts = [part.fitted for part in result.models.values() if part.fitted is not None]
        as_they_are = "label" not in record.reason and any(fitted.preparation.strict for fitted in parts)
        advice = ' prepare="auto" does so.' if as_they_are else ""
        raise OutOfRange(f"Nothing was learned: {record.reason}{advice}")
    if record.verdict == "diverged":
        advice = "" if "smaller step" in record.reason else " Use a smaller step."
        raise BadJob(f"Training diverged after {record.passes:.3g} passes: {record.reason}.{advice}")


def teller(passes: float, unit: str = "passes") -> Watch:
    """Tells of the progress on standard error, about ten times."""
    told = [-1.0, -1.0]  # the passes and the penalty that were told of last

    def watch(now: Progress) -> None:
        if now.trying is not None:
            if now.trying != told[1]:
                told[1] = now.trying
                print(f"trying the penalty {now.trying:.3g}", file=sys.stderr)
            return
        if now.passes >= told[0] + passes / 10:
            told[0] = now.passes
            certificate = "" if now.certificate is None else f", certificate {now.certificate:.3g}"
            objective = "" if now.objective is None else f": objective {now.objective:.6g}"
            print(f"{now.passes:.1f} of {passes:g} {unit}{objective}{certificate}", file=sys.stderr)

    return watch
