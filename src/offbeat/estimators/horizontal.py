"""Rows at several sites, one model for all: the horizontal methods with scikit-learn's manners.

    model = HorizontalClassifier(epsilon=3.0).fit({"north": Xn, "south": Xs}, {"north": yn, "south": ys})
    model = HorizontalClassifier(sites="hospital", ranges={"age": (0, 120), "bmi": (10, 60)}).fit(frame, y)
    model.predict(frame)

The rows stay at their sites; gradients leave, with noise where an epsilon is given. Nothing is learned from the rows
without noise, not even their scale: `ranges` says in advance what columns can hold, or every row is scaled by itself.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from offbeat.algorithms.mapa import CLOUD
from offbeat.data.columns import NumberedColumns
from offbeat.data.matrix import is_sparse
from offbeat.data.sites import horizontal_from_tables, said_in_advance
from offbeat.data.split import split_rows
from offbeat.data.table import Table, table_from_arrays
from offbeat.errors import BadData, BadJob
from offbeat.estimators.by_party import check_usable, classes_from, kept_estimator, save_estimator, teller
from offbeat.estimators.incoming import Floats, check_labels, classes_of, one_matrix, plain
from offbeat.families.contract import Part
from offbeat.jobs.horizontal import EdgeJob, edge_job_from
from offbeat.jobs.methods import DEFAULT_HORIZONTAL, horizontal_named
from offbeat.metrics.record import RunRecord
from offbeat.names import check_party_names, counted, did_you_mean
from offbeat.run.experiment import run_experiment
from offbeat.run.folder import job_of, read_parts
from offbeat.run.result import Result
from offbeat.run.site_model import site_model

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
        rows, labels = self._by_site(X, y)
        every = check_labels(np.concatenate(list(labels.values())), type(self).__name__)
        classes, _ = classes_of(every, "another model")
        tables = {site: self._table(f"site {site!r}", block) for site, block in rows.items()}
        columns = next(iter(tables.values())).columns
        job = self._job(list(tables), len(columns), classes)
        coded = {site: replace(t, labels=np.searchsorted(classes, labels[site])) for site, t in tables.items()}
        data = horizontal_from_tables(coded, self._holds(columns), 0.0, 0, ADVICE)
        for note in data.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        data = replace(data, classes=tuple(classes.tolist()), source="arrays in memory")
        result = run_experiment(data, job, watch=teller(self.updates, "updates") if self.verbose else None)
        check_usable(result)
        self._take(job, result.models[CLOUD], result.record, classes)
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

    def _job(self, sites: list[str], columns: int, classes: Array) -> EdgeJob:
        me = type(self).__name__
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

    def _table(self, name: str, block: Any) -> Table:
        table = table_from_arrays(block, name=name)
        if table.levels:
            raise BadData(
                f"{name[0].upper()}{name[1:]}: column {next(iter(table.levels))!r} holds text, and sites learn no "
                "categories from each other. Make columns of 0 and 1 of categories that are known in advance "
                "(pandas.get_dummies)."
            )
        values = table.features
        return table if isinstance(values, np.ndarray) else replace(table, features=values.toarray())

    def _holds(self, columns: Sequence[str]) -> dict[str, list[float]] | None:
        """By column: the least and the most that it can hold."""
        given: Any = self.ranges
        if given is None:
            return None
        if isinstance(given, Mapping):
            lacking = [name for name in columns if name not in given]
            if lacking:
                raise BadJob(f"ranges has no pair for column {lacking[0]!r}. Give the least and the most it can hold.")
            given = [given[name] for name in columns]
        if len(given) != len(columns):
            raise BadJob(
                f"ranges has {counted(len(given), 'pair')}, and the rows have {counted(len(columns), 'column')}."
            )
        for name, pair in zip(columns, given, strict=True):
            if not _is_range(pair):
                raise BadJob(
                    f"ranges of column {name!r} must be (least, most), two numbers, least first; got {pair!r}."
                )
        return {name: [float(one) for one in pair] for name, pair in zip(columns, given, strict=True)}

    # -- using ---------------------------------------------------------------------------------------------------

    def _take(self, job: EdgeJob, part: Part, record: RunRecord, classes: Array) -> None:
        self.job_, self.part_, self.record_, self.classes_ = job, part, record, classes
        self.model_ = site_model(job, part, tuple(classes.tolist()))
        self.sites_ = tuple(record.data.columns)
        self.privacy_ = dict(record.privacy)
        self.n_features_in_, self.n_iter_ = len(self.model_.fitted.columns), record.parties[CLOUD].updates
        weights = self.model_.parameters.reshape(-1, self.n_features_in_ + 1)
        self.coef_, self.intercept_ = weights[:, :-1], weights[:, -1]

    def decision_function(self, X: Any) -> Floats:
        """One score for each row of `X` under the logistic model, above 0 for the second class; else one a class."""
        check_is_fitted(self, "model_")
        if isinstance(X, Mapping) and not is_sparse(X):
            raise BadData("Rows are scored one matrix or frame at a time, not by site: bring the rows of one site.")
        table, columns = self._table("X", self._without_site(one_matrix(X))), self.model_.fitted.raw_columns
        if isinstance(table.columns, NumberedColumns) and len(table.columns) == len(columns):
            table = replace(table, columns=columns)
        return self.model_.decision_function(table)

    def _without_site(self, X: Any) -> Any:
        named = isinstance(self.sites, str) and self.sites in getattr(X, "columns", ())
        return X.drop(columns=self.sites) if named else X

    def predict(self, X: Any) -> Array:
        """The class of every row of `X`."""
        scores = self.decision_function(X)  # first: it says whether there is a model
        return np.asarray(self.model_.answers(scores), dtype=self.classes_.dtype)

    def predict_proba(self, X: Any) -> Floats:
        """The probabilities of the rows of `X`: one column per class, in the order of classes_."""
        scores = self.decision_function(X)
        return self.model_.probabilities(scores)

    def save(self, folder: str | Path) -> Path:
        """Write the fitted model into `folder`, a new one, which `load` reads; no pickle needed."""
        check_is_fitted(self, "model_")
        result = Result(self.record_, {CLOUD: self.part_}, ())
        return save_estimator(self, folder, self.job_, result, self.get_params())

    @classmethod
    def load(cls, folder: str | Path) -> "HorizontalClassifier":
        """The fitted model that `save` wrote into `folder`."""
        kept = kept_estimator(folder, cls.__name__)
        model = cls(**kept["parameters"])
        job, part = job_of(Path(folder)), read_parts(Path(folder), [CLOUD])[CLOUD]
        assert isinstance(job, EdgeJob)
        if part.fitted is None:  # an earlier version kept the columns alone
            part = part._replace(fitted=said_in_advance(model._holds(kept["columns"]), kept["columns"]))
        model._take(job, part, RunRecord.read(Path(folder)), classes_from(kept["classes"]))
        return model


def _is_range(pair: Any) -> bool:
    two = isinstance(pair, tuple | list | np.ndarray) and len(pair) == 2
    numbers = two and all(isinstance(one, int | float | np.number) and np.isfinite(one) for one in pair)
    return bool(numbers and pair[0] < pair[1])
