"""What a fitted estimator says about its model, for people: coefficients by name, parts, a scorecard, worth."""

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from sklearn.utils.validation import check_is_fitted

from offbeat.data.assemble import VerticalData
from offbeat.data.weights import NO_WEIGHTS
from offbeat.errors import BadData
from offbeat.metrics.held_out import Worth
from offbeat.run.model import Explanation, TrainedModel

if TYPE_CHECKING:
    from offbeat.run.scorecard import Scorecard


class Readable:
    """For estimators with a `model_`, whose `_rows` gives new rows by party and their labels in one order."""

    model_: TrainedModel
    classes_: Any
    penalty_: float

    def _weigh(self, labels: Any, classes: Any, given: dict[str, Any]) -> None:
        raise NotImplementedError

    def _rows(self, X: Any, y: Any = None) -> tuple[dict[str, Any], Any]:
        raise NotImplementedError

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
        classes = self.model_.classes
        if classes is None:
            return np.asarray(labels, dtype=np.float64)
        place = {name: at for at, name in enumerate(classes)}
        strange = [label for label in np.unique(labels).tolist() if label not in place]
        if strange:
            raise BadData(f"y holds {strange[0]!r}; the classes of this model are {', '.join(map(str, classes))}.")
        found = np.array([place[label] for label in np.asarray(labels).tolist()], dtype=np.float64)
        return 2.0 * found - 1.0 if len(classes) == 2 else found
