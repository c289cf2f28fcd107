"""Linear models over columns, with scikit-learn's manners."""

import warnings
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_sample_weight

from offbeat.data.assemble import VerticalData
from offbeat.data.labels import Task
from offbeat.data.weights import checked_weights
from offbeat.errors import BadData, BadJob
from offbeat.estimators.by_party import ByParty, Classifies, check_usable
from offbeat.estimators.incoming import Blocks, Floats, check_labels, classes_of, plain
from offbeat.families.contract import Part
from offbeat.jobs.methods import DEFAULT_ALGORITHM, linear_named
from offbeat.jobs.vertical import Job, vertical_job_from
from offbeat.metrics.record import RunRecord
from offbeat.run.experiment import run_experiment
from offbeat.run.model import TrainedModel, model_of
from offbeat.run.observer import Watch
from offbeat.run.readable import Readable
from offbeat.run.result import Result

if TYPE_CHECKING:
    from offbeat.orgs.client import JointModel


class _Vertical(ByParty, Readable):
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
    passes              end after so many passes over the rows; at 60, with a target, not before five seconds
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
        penalty: float | Sequence[float] | str = 1e-4,
        penalty_folds: int = 1,
        penalty_kind: str = "l2",
        l1_ratio: float = 0.0,
        loss: str = "auto",
        huber_delta: float | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        intercept: bool = True,
        passes: float = 60,
        target: float | None = 1e-6,
        early_stopping: float | None = None,
        validation_fraction: float = 0.2,
        warm_start: bool = False,
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
        self.penalty, self.penalty_folds = penalty, penalty_folds
        self.penalty_kind, self.l1_ratio = penalty_kind, l1_ratio
        self.loss, self.huber_delta = loss, huber_delta
        self.class_weight = class_weight
        self.intercept = intercept
        self.passes, self.target = passes, target
        self.early_stopping, self.validation_fraction = early_stopping, validation_fraction
        self.warm_start = warm_start
        self.step, self.batch = step, batch
        self.in_flight, self.by_curvature = in_flight, by_curvature
        self.secure_sum, self.two_party_insecure, self.fraction_bits = secure_sum, two_party_insecure, fraction_bits
        self.labels_at, self.label_dp_epsilon = labels_at, label_dp_epsilon
        self.runtime, self.slow = runtime, slow
        self.seed, self.verbose = seed, verbose

    # -- fitting -------------------------------------------------------------------------------------------------

    def _weigh(self, labels: NDArray[Any], classes: NDArray[Any] | None, given: dict[str, Any]) -> None:
        if self.class_weight is None:
            return
        if classes is None:
            raise BadJob("class_weight is for classes, and this is regression. Leave it out, or give sample_weight.")
        try:
            found = np.asarray(compute_sample_weight(self.class_weight, labels), dtype=np.float64)
        except (ValueError, TypeError):
            raise BadJob(
                f'class_weight must be "balanced", or a dictionary with a number for each of the classes '
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
            f"{record.reason}. Raise passes ({self.passes:g} now), or set a larger target or penalty. record_ has the "
            "curve.",
            ConvergenceWarning,
            stacklevel=3,
        )


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


def _choosing(kind: type[_Vertical]) -> Any:
    """The constructor of an estimator whose penalty is chosen by folds of the rows unless it is given."""
    usual: dict[str, Any] = {"penalty": "auto", "penalty_folds": 5}

    def __init__(self: _Vertical, *algorithm: str, **others: Any) -> None:
        kind.__init__(self, *algorithm, **{**usual, **others})

    known = signature(kind.__init__)
    own = [one.replace(default=usual.get(one.name, one.default)) for one in known.parameters.values()]
    __init__.__signature__ = known.replace(parameters=own)  # type: ignore[attr-defined]
    return __init__


class VerticalClassifierCV(VerticalClassifier):
    """A VerticalClassifier that chooses its penalty by five folds of the rows. After `fit`: penalty_, the one chosen,
    and penalties_tried_, with the held-out loss of each."""

    __init__ = _choosing(VerticalClassifier)


class VerticalRegressorCV(VerticalRegressor):
    """A VerticalRegressor that chooses its penalty by five folds of the rows. After `fit`: penalty_, the one chosen,
    and penalties_tried_, with the held-out loss of each."""

    __init__ = _choosing(VerticalRegressor)
