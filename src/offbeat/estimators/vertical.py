"""Linear models over columns, with scikit-learn's manners."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted

from offbeat.data.assemble import VerticalData
from offbeat.data.labels import Task, encode_labels
from offbeat.data.weights import NO_WEIGHTS, checked_weights
from offbeat.errors import BadData, BadJob
from offbeat.estimators.by_party import ByParty, Classifies, check_usable
from offbeat.estimators.incoming import Blocks, Floats, callers_level, check_labels, classes_of, coded, plain
from offbeat.families.contract import Part
from offbeat.jobs.methods import DEFAULT_ALGORITHM, linear_named
from offbeat.jobs.vertical import Job, vertical_job_from
from offbeat.metrics.held_out import Worth
from offbeat.metrics.record import RunRecord
from offbeat.run.experiment import run_experiment
from offbeat.run.model import Explanation, TrainedModel, model_of
from offbeat.run.observer import Watch
from offbeat.run.result import Result

if TYPE_CHECKING:
    from offbeat.orgs.client import JointModel
    from offbeat.run.scorecard import Scorecard


@dataclass(eq=False, repr=False)
class _Vertical(ByParty):
    """What the two estimators share. The constructor only stores; `fit` checks.

    algorithm           a linear method: vfb2-saga (the default), vfb2-svrg, afsvrg-vp, ... (docs/reference/job-file.md)
    parties             for one matrix or frame: the columns of each party, by name or position, as in
                        {"bank": ["income", "age"], "shop": [2, 3]}; None: shared out evenly over three parties
    prepare             what is done to the columns: "auto", "bins", "scaled", "none", a table with `how`, `columns` and
                        `bins`, or one of these by party
    penalty             the strength lambda; scikit-learn's C is 1 / (rows * penalty). A list of strengths, or "auto":
                        the best one by the loss of held-out rows, in one walk from the strongest to the weakest
    penalty_folds       for such a choice: hold a fifth of the rows out once (1), or each of so many folds in turn
    penalty_kind        "l2", "nonconvex", "none"
    l1_ratio            how much of the penalty is of absolute values (elastic net: exact zeros); 0, and below 1
    loss                "auto" (logistic for two classes, softmax for more, squared for numbers), "logistic", "softmax",
                        "squared_hinge", "ls_svm"; for numbers "squared", "poisson", "gamma", "huber"
    huber_delta         for "huber": how far from its label a prediction counts by the square, in the label's units
    class_weight        for classes: "balanced", or a weight by class; None: every row counts alike
    intercept           whether there is one
    passes              end after so many passes over the rows; at 60, with a target, not before 20 seconds
    target              end when the certificate is at or below it; None: make all passes
    early_stopping      end when the score of held-out rows has not improved for so many passes; None: never
    validation_fraction  how many of the rows are held out for that
    warm_start          begin the next `fit` with the model of the last one
    step                how far an update goes, or "auto": from what the parties measure
    batch               the rows of an update, or "auto"
    in_flight           how many products a party asks for at a time
    by_curvature        multiply steps by the inverse curvature: "auto" where that can be known, True, False
    secure_sum          how shares are hidden: "pairwise" masks, "two-tree"; "tree" hides nothing, for comparison
    two_party_insecure  accept that two parties hide nothing from each other
    fraction_bits       binary digits after the point of a share; fewer leave room for larger numbers
    labels_at           the parties that hold the labels; None: the first
    label_dp_epsilon    answer every label at random once, with this epsilon
    product_epsilon     noise inside every sum: what others learn of one row's columns at a party is differentially
                        private, over the whole run (algorithm "vfb-sgd", target None; docs/explanation)
    product_delta       at this delta
    products            for that: a dictionary with `rounds` (6), `colluders` (0), `clip` (0.25), `row_norm`
    runtime             "simulator" (virtual time) or "threads"
    slow                how many times slower a party is, by its name
    seed                decides the order of rows and batches; None is 0
    verbose             tell of the progress on standard error
    """

    algorithm: str = DEFAULT_ALGORITHM
    _: KW_ONLY
    parties: Mapping[str, Sequence[str | int]] | int | None = None
    prepare: Any = "auto"
    penalty: float | Sequence[float] | str = 1e-4
    penalty_folds: int = 1
    penalty_kind: str = "l2"
    l1_ratio: float = 0.0
    loss: str = "auto"
    huber_delta: float | None = None
    class_weight: Mapping[Any, float] | str | None = None
    intercept: bool = True
    passes: float = 60
    target: float | None = 1e-6
    early_stopping: float | None = None
    validation_fraction: float = 0.2
    warm_start: bool = False
    step: float | str = "auto"
    batch: int | str = "auto"
    in_flight: int = 1
    by_curvature: bool | str = "auto"
    secure_sum: str = "pairwise"
    two_party_insecure: bool = False
    fraction_bits: int | None = None
    labels_at: list[str] | None = None
    label_dp_epsilon: float | None = None
    product_epsilon: float | None = None
    product_delta: float = 1e-6
    products: Mapping[str, Any] | None = None
    runtime: str = "simulator"
    slow: dict[str, float] | None = None
    seed: int | None = 0
    verbose: bool = False

    # -- fitting -------------------------------------------------------------------------------------------------

    def _weigh(self, labels: NDArray[Any], classes: NDArray[Any] | None, given: dict[str, Any]) -> None:
        if self.class_weight is None:
            return
        if classes is None:
            raise BadJob("class_weight is for classes, and this is regression. Leave it out, or give sample_weight.")
        try:
            found = np.asarray(compute_sample_weight(self.class_weight, labels), dtype=np.float64)
            if not (found >= 0.0).all():
                raise ValueError("a class with a weight below 0")
        except (ValueError, TypeError):
            raise BadJob(
                f'class_weight must be "balanced", or a dictionary with a number of 0 or more for each of the classes '
                f"{', '.join(map(repr, classes.tolist()[:8]))}; got {self.class_weight!r}."
            ) from None
        if "weights" in given:
            found = found * checked_weights(given["weights"], len(found), "sample_weight")
        given["weights"] = found

    def _job(self, task: Task, X: Blocks) -> Job:
        linear_named(self.algorithm)
        common = self._common(X)
        own = ("runtime", "slow", "prepare", "parties", "verbose", "class_weight", "validation_fraction", "warm_start")
        known = signature(type(self).__init__).parameters
        never_none = [name for name in known if known[name].default is not None and name != "seed"]
        given = {
            name: plain(getattr(self, name))
            for name in self.get_params(deep=False)
            if name not in own and (getattr(self, name) is not None or name in never_none)
        }
        if self.parties is None and hasattr(self, "columns_by_party_"):
            given["two_party_insecure"] = True  # nobody said who holds what: there is nothing to hide
        return vertical_job_from({**given, **common, "task": task}, type(self).__name__)

    def _holders(self, X: Blocks, job: Job) -> Any:
        everywhere = linear_named(job.algorithm).labels_everywhere
        if everywhere and job.labels_at is not None:
            raise BadData(f"{job.algorithm} gives the labels to every party; leave labels_at out, or use vfb2-svrg.")
        if everywhere:
            return "all"
        return super()._holders(X, job) if job.labels_at is None else job.labels_at

    def _trained(
        self, data: VerticalData, job: Job, watch: Watch | None, start: Mapping[str, Part] | None
    ) -> tuple[TrainedModel, Result]:
        result = run_experiment(data, job, watch=watch, start=start)
        check_usable(result)
        return model_of(job, result), result

    def _take(self, model: TrainedModel, record: RunRecord) -> None:
        super()._take(model, record)
        self.coef_ = {name: np.array(model.parts[name].arrays["weights"]) for name in model.names}
        self.intercept_ = model.intercept
        self.certificate_ = record.certificate
        self.penalty_ = record.options["penalty"]
        self.penalties_tried_ = record.options["chosen"].get("penalties_tried", [])

    def _warn(self, result: Result) -> None:
        record = result.record
        if record.verdict == "target" or (record.verdict == "passes" and self.target is None):
            return
        warnings.warn(
            f"{record.reason}. record_ has the curve.",
            ConvergenceWarning,
            stacklevel=callers_level(),
        )

    # -- what the model says, for people

    @property
    def coefficients_(self) -> dict[str, dict[str, Any]]:
        """The coefficient of every prepared column, by party and name; of several classes, those by class."""
        check_is_fitted(self, "model_")
        return self.model_.coefficients

    def explain(self, X: Any) -> Explanation:
        """What each party adds to the product of each row of `X`: `base`, `parts` by party, and their sum `total`."""
        rows, _ = self._rows(X)
        return self.model_.explain(rows)

    def scorecard(self, X: Any = None, y: Any = None, **options: Any) -> "Scorecard":
        """Points for every bin and category, of a model of two classes with prepare="bins". With rows `X`, how many
        fall into each, too; with their labels `y`, weights of evidence, information values and KS. `options`:
        points=600 at odds=50 to 1 for the class good (None: the first), double=20 points to double the odds,
        digits=0."""
        check_is_fitted(self, "model_")
        if X is None and y is not None:
            raise BadData("scorecard got labels and no rows: they are counted together. Give scorecard(X, y).")
        rows, labels = (None, None) if X is None else self._rows(X, y)
        return self.model_.scorecard(rows, labels, **options)

    def to_sklearn(self) -> Any:
        """A scikit-learn pipeline that predicts the same from one frame or matrix of all columns (those of a dictionary
        side by side): for whoever may hold them in one place."""
        from offbeat.run.to_sklearn import to_sklearn

        check_is_fitted(self, "model_")
        return to_sklearn(self.model_, getattr(self, "columns_by_party_", None))

    def to_onnx(self, party: str) -> Any:
        """The part of one `party` as an `onnx.ModelProto`, from its raw columns on; the parts of all add up to the
        score. Needs the extra `onnx`."""
        check_is_fitted(self, "model_")
        return self.model_.to_onnx(party)

    def worth(self, X: Any, y: Any, X_test: Any, y_test: Any, *, score: str | None = None) -> Worth:
        """What each party is worth: exact Shapley values of a held-out score, the model trained anew on `X` and `y` for
        each coalition of parties (at most six) and scored on `X_test` and `y_test`. Columns stay prepared as they are.
        `score`: "auc", "accuracy" or "explained"; None: as usual for the task."""
        from offbeat.run.worth import worth

        train, labels = self._rows(X, y)
        test, held_out = self._rows(X_test, y_test)
        model, blocks = self.model_, self.model_.blocks
        given: dict[str, Any] = {"weights": NO_WEIGHTS}
        if getattr(self, "class_weight", None) is not None:
            given.clear()
            self._weigh(labels, self.classes_, given)
        data = VerticalData(
            names=model.names,
            train=blocks(model.tables(train)),
            test=blocks(model.tables(test)),
            y_train=self._targets(labels),
            y_test=self._targets(held_out),
            ids_train=np.arange(len(labels)),
            ids_test=np.arange(len(held_out)),
            columns={name: model.fitted(name).columns for name in model.names},
            labels_at=model.names[:1],
            task=model.task,  # type: ignore[arg-type]
            classes=model.classes,
            source="arrays in memory",
            weights_train=given["weights"],
        )
        return worth(data, msgspec.structs.replace(model.job, penalty=self.penalty_), score)

    def _targets(self, labels: Any) -> Any:
        """Labels as learning has them: -1 and 1, positions of classes, or numbers."""
        if self.model_.classes is None:
            return encode_labels(np.asarray(labels), "regression", "y")[0]
        strange = np.setdiff1d(labels, self.classes_)
        if strange.size:
            known = ", ".join(map(str, self.classes_))
            raise BadData(f"y holds {strange.tolist()[0]!r}; the classes of this model are {known}.")
        return coded(np.asarray(labels), self.classes_)


class VerticalClassifier(Classifies, _Vertical):
    __doc__ = f"""Two classes or more, of any type. After `fit`: coef_ (arrays by party), coefficients_ (by party and
    name), intercept_, classes_, certificate_, record_, feature_names_in_, n_features_in_.
{(_Vertical.__doc__ or "").partition("checks.")[2]}"""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "VerticalClassifier":
        """Train. `X`: the columns of each party (arrays, sparse matrices, data frames), or one matrix or frame of all;
        `y`: labels, one for each row; `sample_weight`: how much each row counts."""
        y = check_labels(y, type(self).__name__)
        classes, task = classes_of(y, "VerticalRegressor")
        self._warn(self._fit(X, y, task, classes, weights=sample_weight))
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> Floats:
        """The product of every row of `X` with the whole model; above 0 is for the second of two classes. Of more
        classes, one product for each, in the order of classes_."""
        return self._scores(X)

    @staticmethod
    def connect(home: str | Path, run: str, address: str = "") -> "JointModel":
        """The model of a finished `run` between organisations, asked through the daemon of the party in `home`.
        `address`: where that daemon listens, if not where party.toml says."""
        from offbeat.orgs.client import connect

        return connect(home, run, address)


class VerticalRegressor(RegressorMixin, _Vertical):  # type: ignore[misc]
    __doc__ = f"""A number to predict: by the squared loss, or by "huber" where some labels are far
    from all others; a count by "poisson", an amount above 0 by "gamma". After
    `fit`: coef_ (arrays by party), coefficients_ (by party and name), intercept_, certificate_, record_,
    feature_names_in_, n_features_in_.
{(_Vertical.__doc__ or "").partition("checks.")[2]}"""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None) -> "VerticalRegressor":
        """Train. `X`: the columns of each party (arrays, sparse matrices, data frames), or one matrix or frame of all;
        `y`: numbers, one for each row; `sample_weight`: how much each row counts; `exposure`: what a count or an amount
        is of, years say. The model then predicts for one unit of it."""
        y = check_labels(y, type(self).__name__)
        self._warn(self._fit(X, y, "regression", weights=sample_weight, exposure=exposure))
        return self

    def predict(self, X: Any) -> Floats:
        """The number of every row of `X`, which comes in the form that `fit` had."""
        scores = self._scores(X)
        return np.asarray(self.model_.answers(scores))


@dataclass(eq=False, repr=False, kw_only=True)
class VerticalClassifierCV(VerticalClassifier):
    """A VerticalClassifier that chooses its penalty by five folds of the rows. After `fit`: penalty_, the one chosen,
    and penalties_tried_, with the held-out loss of each."""

    penalty: float | Sequence[float] | str = "auto"
    penalty_folds: int = 5


@dataclass(eq=False, repr=False, kw_only=True)
class VerticalRegressorCV(VerticalRegressor):
    """A VerticalRegressor that chooses its penalty by five folds of the rows. After `fit`: penalty_, the one chosen,
    and penalties_tried_, with the held-out loss of each."""

    penalty: float | Sequence[float] | str = "auto"
    penalty_folds: int = 5
