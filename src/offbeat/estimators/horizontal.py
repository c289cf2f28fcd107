"""Rows at several sites, one model for all: the horizontal methods with scikit-learn's manners.

    model = HorizontalClassifier(epsilon=3.0).fit({"north": Xn, "south": Xs}, {"north": yn, "south": ys})
    model = HorizontalClassifier(sites="hospital", ranges={"age": (0, 120), "bmi": (10, 60)}).fit(frame, y)
    model.predict(frame)

The rows stay at their sites; gradients leave, with noise where an epsilon is given. Nothing is learned from the rows
without noise, not even their scale: `ranges` says in advance what columns can hold, or every row is scaled by itself.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from offbeat.algorithms.mapa import CLOUD
from offbeat.data.columns import NumberedColumns
from offbeat.data.horizontal import HorizontalData
from offbeat.data.matrix import is_sparse
from offbeat.data.sites import about_scales
from offbeat.data.split import split_rows
from offbeat.data.table import Table, table_from_arrays
from offbeat.errors import BadData, BadJob
from offbeat.estimators.by_party import (
    PARAMETERS_FILE,
    check_usable,
    classes_from,
    kept_classes,
    kept_estimator,
    new_place,
    teller,
)
from offbeat.estimators.incoming import Floats, check_labels, classes_of, one_matrix, plain
from offbeat.families.contract import Part
from offbeat.families.horizontal import rows_for
from offbeat.jobs.horizontal import EdgeJob, edge_job_from
from offbeat.jobs.methods import DEFAULT_HORIZONTAL, horizontal_named
from offbeat.jobs.rules import model_of
from offbeat.learning.horizontal import LinearModel
from offbeat.learning.scores import class_probabilities
from offbeat.metrics.plain import json_text
from offbeat.metrics.record import RunRecord
from offbeat.names import check_party_names, counted, did_you_mean
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import job_of, read_parts, write_job, write_result
from offbeat.run.result import Result

KINDS = ("auto", "logistic", "softmax", "hinge", "squared-hinge")
ADVICE = "Give `ranges`: the least and the most that each column can hold."
Array = NDArray[Any]
Ranges = Mapping[str, Sequence[float]] | Sequence[Sequence[float]]


@dataclass(eq=False, repr=False)
class HorizontalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Two classes or more, from rows at several sites. The constructor only stores; `fit` checks. After `fit`:
    classes_, coef_ (outputs x columns), intercept_, sites_, privacy_ (each site's statement), record_, n_features_in_.

    sites               for one matrix or frame: how many sites share the rows at random; or the column of a frame that
                        names the site of each row. Not looked at where X comes by site
    epsilon             the privacy of each row in all that leaves its site, a number or one by site; None: no noise
    delta               what goes with epsilon
    ranges              what every column can hold at most, known without looking at rows: {"age": (0, 120), ...} or a
                        pair for each column. Values become -1 to 1, those outside are cut. None: every row is scaled
                        to one length by itself
    kind                "auto" (logistic for two classes, softmax for more), "logistic", "softmax", "hinge",
                        "squared-hinge"
    algorithm           steady, mapa, audp; without noise also asgd, fedasync, fedbuff (docs/reference/edge-job-file.md)
    updates             of the model, by all sites together
    batch               rows of one upload, on average
    strength            of the l2 penalty
    runtime             "simulator" (virtual time) or "threads"
    slow                how many times slower a site is, by its name
    seed                None: noise comes from the operating system and nobody can draw it again. A number is for
                        experiments: whoever knows it can take the noise off
    verbose             tell of the progress on standard error
    """

    sites: int | str = 5
    _: KW_ONLY
    epsilon: float | Mapping[str, float] | None = None
    delta: float = 1e-5
    ranges: Ranges | None = None
    kind: str = "auto"
    algorithm: str = DEFAULT_HORIZONTAL
    updates: int = 1500
    batch: int = 512
    strength: float = 1e-4
    runtime: str = "simulator"
    slow: dict[str, float] | None = None
    seed: int | None = None
    verbose: bool = False

    # -- fitting -------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> "HorizontalClassifier":
        """Train. `X` and `y` by site, as dictionaries; or one matrix or frame, and its labels."""
        self.__dict__.pop("_columns", None)
        rows, labels = self._by_site(X, y)
        every = check_labels(np.concatenate(list(labels.values())), type(self).__name__)
        classes, _ = classes_of(every, "another model")
        tables = {site: self._numbers(site, block) for site, block in rows.items()}
        if self.ranges is None:
            for told in about_scales(np.concatenate(list(tables.values())), self._columns, ADVICE):
                warnings.warn(told, UserWarning, stacklevel=2)
        edges = {site: (tables[site], np.searchsorted(classes, labels[site]).astype(np.float64)) for site in tables}
        job = self._job(list(edges), tables, classes)
        nobody = np.empty((0, len(self._columns))), np.empty(0)
        data = HorizontalData(edges, *nobody, "multiclass", tuple(classes.tolist()), "arrays in memory")
        result = run_experiment(data, job, watch=teller(self.updates, "updates") if self.verbose else None)
        check_usable(result)
        self.classes_ = classes
        self._take(job, result.models[CLOUD], result.record)
        return self

    def _by_site(self, X: Any, y: Any) -> tuple[dict[str, Any], dict[str, Array]]:
        if isinstance(X, Mapping):
            return self._as_given(X, y)
        labels, rows = np.asarray(check_labels(y, type(self).__name__)), one_matrix(X)
        if len(labels) != rows.shape[0]:
            raise BadData(f"X has {rows.shape[0]} rows, and y has {len(labels)} labels: one for each row is needed.")
        parts = self._shared_out(rows, labels)
        if isinstance(self.sites, str):
            rows = rows.drop(columns=self.sites)
        cut = {site: rows.iloc[at] if hasattr(rows, "iloc") else rows[at] for site, at in parts.items()}
        return cut, {site: labels[at] for site, at in parts.items()}

    def _as_given(self, X: Mapping[str, Any], y: Any) -> tuple[dict[str, Any], dict[str, Array]]:
        if not X or not isinstance(y, Mapping) or set(y) != set(X):
            came = f"labels of {', '.join(map(str, y)) or 'none'}" if isinstance(y, Mapping) else type(y).__name__
            raise BadData(
                f"X comes by site ({', '.join(map(str, X)) or 'none'}), so y must too: a dictionary with the labels of "
                f"the same sites; got {came}."
            )
        labels = {}
        for site, block in X.items():
            mine = labels[site] = np.asarray(y[site])
            rows = block.shape[0] if hasattr(block, "shape") else len(block)
            if mine.shape != (rows,):
                raise BadData(f"Site {site!r} has {rows} rows and labels of shape {mine.shape}: one a row is needed.")
        return dict(X), labels

    def _shared_out(self, rows: Any, labels: Array) -> dict[str, Array]:
        if not isinstance(self.sites, str):
            count = plain(self.sites)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                got = repr(count) if isinstance(count, int | float) else f"a {type(count).__name__}"
                raise BadJob(f"sites must be a number of sites, 1 or more, or the name of a column; got {got}.")
            return split_rows(labels, count, np.random.default_rng(self.seed))
        names = [str(name) for name in getattr(rows, "columns", ())]
        if self.sites not in names:
            raise BadData(f"X has no column {self.sites!r} to tell each row's site. {did_you_mean(self.sites, names)}")
        told = rows[self.sites]
        if told.isna().any():
            row = int(np.argmax(told.isna().to_numpy())) + 1
            raise BadData(f"Column {self.sites!r} must name a site in every row; row {row} has none.")
        texts = told.astype(str).to_numpy()
        return {site: np.flatnonzero(texts == site) for site in np.unique(texts)}

    def _job(self, sites: list[str], tables: Mapping[str, Array], classes: Array) -> EdgeJob:
        me, columns = type(self).__name__, len(self._columns)
        if self.kind not in KINDS:
            raise BadJob(f"{me}: kind must be one of {', '.join(KINDS)}; got {self.kind!r}.")
        if self.epsilon is not None and not horizontal_named(self.algorithm).private:
            raise BadJob(f"{me}: {self.algorithm} adds no noise, so no epsilon holds. Use steady, mapa or audp.")
        check_party_names(sites, me)
        auto = "logistic" if len(classes) == 2 else "softmax"
        tree: dict[str, Any] = {
            **{key: plain(getattr(self, key)) for key in ("algorithm", "updates", "batch", "strength")},
            "model": {"kind": auto if self.kind == "auto" else self.kind, "features": columns, "classes": len(classes)},
            "privacy": {"mode": "none"},
            "data": {"edges": sites},
            "runtime": {"kind": self.runtime, "slow": dict(self.slow or {})},
        }
        if self.epsilon is not None:
            epsilon = dict(self.epsilon) if isinstance(self.epsilon, Mapping) else plain(self.epsilon)
            tree["privacy"] = {"mode": "sound", "epsilon": epsilon, "delta": plain(self.delta)}
        if self.ranges is not None:
            tree["model"] |= {"rows": "plain"}
            tree["constants"] = {"norm_max": sqrt(columns + 1)}
        return edge_job_from(tree if self.seed is None else {**tree, "seed": plain(self.seed)}, me)

    # -- columns -------------------------------------------------------------------------------------------------

    def _numbers(self, site: str, block: Any) -> Array:
        """A site's columns as numbers, in the first site's order, each within -1 and 1 where ranges are given."""
        table = table_from_arrays(block, name=f"site {site!r}", missing="refuse")
        if table.levels:
            raise BadData(
                f"Site {site!r}: column {next(iter(table.levels))!r} holds text, and sites learn no categories from "
                "each other. Make columns of 0 and 1 of categories that are known in advance (pandas.get_dummies)."
            )
        if not hasattr(self, "_columns"):
            self._columns = list(table.columns)
        values = np.asarray(table.features[:, self._order(site, table)])
        values = values.toarray() if hasattr(values, "toarray") else values
        return values if self.ranges is None else self._within(values)

    def _order(self, site: str, table: Table) -> list[int]:
        names = list(table.columns)
        if isinstance(table.columns, NumberedColumns) and len(names) == len(self._columns):
            return list(range(len(names)))
        lacking = [name for name in self._columns if name not in names]
        if lacking or len(names) != len(self._columns):
            raise BadData(
                f"Site {site!r} has {counted(len(names), 'column')}, and the model has {len(self._columns)}: "
                f"{', '.join(self._columns[:8])}. {f'{lacking[0]!r} is missing.' if lacking else ''} All sites bring "
                "the same columns."
            )
        return [names.index(name) for name in self._columns]

    def _within(self, values: Array) -> Array:
        low, high = np.array(self._pairs(), dtype=np.float64).T
        return np.asarray(np.clip(2.0 * (values - low) / (high - low) - 1.0, -1.0, 1.0))

    def _pairs(self) -> list[tuple[float, float]]:
        given: Any = self.ranges
        if isinstance(given, Mapping):
            lacking = [name for name in self._columns if name not in given]
            if lacking:
                raise BadJob(f"ranges has no pair for column {lacking[0]!r}. Give the least and the most it can hold.")
            given = [given[name] for name in self._columns]
        if len(given) != len(self._columns):
            raise BadJob(
                f"ranges has {counted(len(given), 'pair')}, and the rows have {counted(len(self._columns), 'column')}."
            )
        for name, pair in zip(self._columns, given, strict=True):
            if not _is_range(pair):
                raise BadJob(
                    f"ranges of column {name!r} must be (least, most), two numbers, least first; got {pair!r}."
                )
        return [(float(pair[0]), float(pair[1])) for pair in given]

    # -- using ---------------------------------------------------------------------------------------------------

    def _take(self, job: EdgeJob, part: Part, record: RunRecord) -> None:
        """Under noise the mean of the last models is nearer to the best one than the last model is."""
        self.job_, self.part_, self.record_ = job, part, record
        self.sites_ = tuple(record.data.columns)
        self.privacy_ = dict(record.privacy)
        self.n_features_in_, self.n_iter_ = len(self._columns), record.parties[CLOUD].updates
        found = np.asarray(part.arrays["parameters" if self.epsilon is None else "averaged"])
        weights = found.reshape(-1, self.n_features_in_ + 1)
        self.coef_, self.intercept_ = weights[:, :-1], weights[:, -1]

    def decision_function(self, X: Any) -> Floats:
        """One score for each row of `X` under the logistic model, above 0 for the second class; else one a class."""
        check_is_fitted(self, "coef_")
        if isinstance(X, Mapping) and not is_sparse(X):
            raise BadData("Rows are scored one matrix or frame at a time, not by site: bring the rows of one site.")
        values = self._numbers("X", self._without_site(one_matrix(X)))
        rows = rows_for(self.job_, values, np.zeros(len(values)))
        model = model_of(self.job_)
        assert isinstance(model, LinearModel)
        scores = model.scores(np.column_stack([self.coef_, self.intercept_]).ravel(), rows)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _without_site(self, X: Any) -> Any:
        named = isinstance(self.sites, str) and self.sites in getattr(X, "columns", ())
        return X.drop(columns=self.sites) if named else X

    def predict(self, X: Any) -> Array:
        """The class of every row of `X`."""
        scores = self.decision_function(X)
        chosen = scores > 0 if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen.astype(np.intp)])

    def predict_proba(self, X: Any) -> Floats:
        """The probabilities of the rows of `X`: one column per class, in the order of classes_."""
        scores = self.decision_function(X)
        if "hinge" in self.job_.model.kind:
            raise BadJob(f"Probabilities need kind logistic or softmax; this is {self.job_.model.kind}. Use predict.")
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        return class_probabilities(scores)

    def save(self, folder: str | Path) -> Path:
        """Write the fitted model into `folder`, a new one, which `load` reads; no pickle needed."""
        check_is_fitted(self, "coef_")
        place = new_place(folder)
        write_job(self.job_, place)
        write_result(Result(self.record_, {CLOUD: self.part_}, ()), place)
        parameters = {name: msgspec.to_builtins(plain(value)) for name, value in self.get_params().items()}
        kept = {
            "kind": type(self).__name__,
            "parameters": parameters,
            "columns": list(self._columns),
            "classes": kept_classes(self),
        }
        (place / PARAMETERS_FILE).write_text(json_text(kept), encoding="utf-8")
        return place

    @classmethod
    def load(cls, folder: str | Path) -> "HorizontalClassifier":
        """The fitted model that `save` wrote into `folder`."""
        kept = kept_estimator(folder, cls.__name__)
        model = cls(**kept["parameters"])
        model._columns = kept["columns"]
        model.classes_ = classes_from(kept["classes"])
        job = job_of(Path(folder))
        assert isinstance(job, EdgeJob)
        model._take(job, read_parts(Path(folder), [CLOUD])[CLOUD], RunRecord.read(Path(folder)))
        return model


def _is_range(pair: Any) -> bool:
    two = isinstance(pair, tuple | list | np.ndarray) and len(pair) == 2
    numbers = two and all(isinstance(one, int | float | np.number) and np.isfinite(one) for one in pair)
    return bool(numbers and pair[0] < pair[1])
