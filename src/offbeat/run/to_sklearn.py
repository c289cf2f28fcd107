"""A linear model as a pipeline of scikit-learn: each party's columns prepared as in training, and one plain estimator.

    pipeline = model.to_sklearn()
    pipeline.predict_proba(frame)          # one frame or matrix with the columns of all parties

For whoever may hold all columns in one place. The pipeline needs offbeat to prepare columns, and nothing else of it:
its last step is scikit-learn's own, with `coef_` and `intercept_`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import GammaRegressor, LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC

from offbeat.data.matrix import Matrix, stack_columns
from offbeat.errors import BadData, BadInput
from offbeat.run.model import TrainedModel


class PreparedColumns(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """All parties' columns, each prepared as in training. `positions`: where each party's raw columns are in a matrix.
    Fitting it changes nothing: what it knows was learned when the model was trained."""

    def __init__(self, model: TrainedModel, positions: Mapping[str, Sequence[int]]) -> None:
        self.model = model
        self.positions = positions

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any = None) -> "PreparedColumns":
        return self

    def transform(self, X: Any) -> Matrix:
        rows = {party: self._cut(X, party) for party in self.model.names}
        return stack_columns(list(self.model.blocks(self.model.tables(rows)).values()))

    def _cut(self, X: Any, party: str) -> Any:
        """A party's columns: by name where a frame has them all, else by position."""
        if not hasattr(X, "iloc"):
            X = X if hasattr(X, "shape") else np.asarray(X)
        names, places = list(self.model.fitted(party).raw_columns), list(self.positions[party])
        if hasattr(X, "iloc") and self._names_tell and all(name in X.columns for name in names):
            return X[names]
        if X.ndim != 2 or X.shape[1] <= max(places, default=-1):
            expected = 1 + max(place for mine in self.positions.values() for place in mine)
            raise BadData(f"X must have the columns of all parties, {expected} at least; came shape {X.shape}.")
        return X.iloc[:, places] if hasattr(X, "iloc") else X[:, places]

    @property
    def _names_tell(self) -> bool:
        """Whether no two parties have columns of one name."""
        names = [name for party in self.model.names for name in self.model.fitted(party).raw_columns]
        return len(set(names)) == len(names)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        columns = [f"{party}: {name}" for party in self.model.names for name in self.model.fitted(party).columns]
        return np.array(columns, dtype=object)


def to_sklearn(model: TrainedModel, positions: Mapping[str, Sequence[int]] | None = None) -> Pipeline:
    """`positions`: None where a matrix has the parties' columns one party after the other."""
    if model.job.embeds:
        raise BadInput(f"to_sklearn is for linear models; {model.job.algorithm} trains networks. Use predict.")
    columns = PreparedColumns(model, _in_order(model) if positions is None else dict(positions))
    return Pipeline([("prepare", columns), ("model", _estimator(model))])


def _in_order(model: TrainedModel) -> dict[str, list[int]]:
    found, start = {}, 0
    for party in model.names:
        width = len(model.fitted(party).raw_columns)
        found[party] = list(range(start, start + width))
        start += width
    return found


def _estimator(model: TrainedModel) -> Any:
    """The one whose predictions are those of this loss, with the model's numbers in it."""
    weights = np.concatenate([model.parts[party].arrays["weights"] for party in model.names], axis=-1)
    intercept = np.ravel(np.asarray(model.intercept) + model.offset)
    if model.classes is not None:
        logistic = model.loss in ("auto", "logistic", "softmax")
        found = LogisticRegression() if logistic else LinearSVC()
        found.classes_ = np.asarray(model.classes)
        if weights.ndim == 2 and len(model.classes) == 2:  # softmax over two classes: their difference decides
            weights, intercept = weights[1] - weights[0], intercept[1:] - intercept[:1]
        found.coef_ = np.atleast_2d(weights)
        found.intercept_ = np.broadcast_to(intercept, found.coef_.shape[0]).copy()
    else:
        found = {"poisson": PoissonRegressor, "gamma": GammaRegressor}.get(model.loss, LinearRegression)()
        found.coef_, found.intercept_ = weights, float(intercept.sum())
        if hasattr(found, "_get_loss"):
            found._base_loss = found._get_loss()  # which tells its link when it predicts
    found.n_features_in_ = weights.shape[-1]
    found.n_iter_ = np.zeros(1, dtype=np.int32)  # trained elsewhere
    return found
