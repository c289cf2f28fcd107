"""Labels as numbers: -1/+1 for two classes, class positions for several, the value itself for regression."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.data.matrix import Floats
from offbeat.errors import BadData
from offbeat.names import did_you_mean

Task = Literal["classification", "regression", "multiclass"]
TASKS: tuple[Task, ...] = ("classification", "regression", "multiclass")


def encode_labels(labels: NDArray[Any], task: Task, where: str) -> tuple[Floats, tuple[Any, ...] | None]:
    """(y, classes). Classification: the smaller class (in the order of numbers or letters) becomes -1.

    Multiclass: y is the position in `classes`. Regression: y is the label, and there are no classes.
    """
    if task not in TASKS:
        raise BadData(f"Unknown task {task!r}. {did_you_mean(str(task), TASKS)}")
    if task == "regression":
        return _numbers(labels, where), None
    values = labels.astype(str) if labels.dtype == object else labels
    found, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    classes = tuple(_plain(value) for value in found.tolist())
    if task == "multiclass":
        return position.astype(np.float64), classes
    if len(classes) != 2:
        raise BadData(_not_two(classes, counts.tolist(), where))
    return np.where(position == 0, -1.0, 1.0), classes


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _numbers(labels: NDArray[Any], where: str) -> Floats:
    try:
        return labels.astype(np.float64)
    except ValueError as error:
        raise BadData(f"Regression needs numbers as labels; {where} has text ({error}).") from error


def _not_two(classes: tuple[Any, ...], counts: list[int], where: str) -> str:
    shown = ", ".join(f"{value!r} ({count} rows)" for value, count in list(zip(classes, counts, strict=True))[:6])
    shown += ", ..." if len(classes) > 6 else ""
    several = (
        'A number to be predicted is regression: task = "regression" in a job file, VerticalRegressor in Python. '
        'Several classes are learned by VAFL: algorithm = "vafl" with task = "multiclass".'
    )
    advice = several if len(classes) > 2 else "Check the label column, and that enough ids are shared."
    return f"Classification needs exactly two classes; {where} has {len(classes)}: {shown}. {advice}"
