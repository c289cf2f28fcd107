"""Labels as numbers: -1/+1 for two classes, class positions for several, the value itself for regression."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.data.frames import folded, is_number, says_nothing
from offbeat.data.matrix import Floats
from offbeat.errors import BadData
from offbeat.names import counted, did_you_mean

Task = Literal["classification", "regression", "multiclass"]
TASKS: tuple[Task, ...] = ("classification", "regression", "multiclass")
AnyTask = Task | Literal["auto"]
CLASSES_MOST = 100
"""More different labels are taken for classes only where the task says so."""


def settled_task(labels: NDArray[Any], task: AnyTask, where: str) -> Task:
    """Classification of more than two classes is `multiclass`. Labels that look like numbers to be predicted are
    refused then, and are regression where the task is `auto`."""
    if task not in ("classification", "auto"):
        return task  # type: ignore[return-value]  # mypy does not narrow by `in`
    found, counts = np.unique(labels.astype(str) if labels.dtype == object else labels, return_counts=True)
    if len(found) <= 2:
        return "classification"
    broken = found.dtype.kind == "f" and bool((found % 1 != 0).any())
    if broken or len(found) > CLASSES_MOST:
        if task == "auto" and found.dtype.kind == "f":
            return "regression"
        raise BadData(_not_classes(found.tolist(), counts.tolist(), where, broken))
    return "multiclass"


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
    if task == "multiclass" and len(classes) > 1:
        return position.astype(np.float64), classes
    if len(classes) != 2:
        raise BadData(_not_two(classes, counts.tolist(), where))
    return np.where(position == 0, -1.0, 1.0), classes


def about_classes(classes: Sequence[Any]) -> list[str]:
    """A word on classes that are probably mistakes: spelled in two ways, or a word for an unknown one."""
    texts = [name for name in classes if isinstance(name, str)]
    twice = [name for name in texts if sum(folded(name) == folded(other) for other in texts) > 1]
    found = []
    if twice:
        shown = ", ".join(map(repr, twice[:6]))
        found.append(f"Labels differ by capitals or spaces alone and count as different classes: {shown}.")
    nothing = [name for name in texts if says_nothing(name)]
    if nothing:
        found.append(
            f"The class {nothing[0]!r} reads like a label that is not known. If so, leave its rows out of the table."
        )
    return found


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _numbers(labels: NDArray[Any], where: str) -> Floats:
    try:
        return labels.astype(np.float64)
    except (TypeError, ValueError) as error:
        wrong = next(at for at, label in enumerate(labels.tolist()) if not is_number(label))
        raise BadData(
            f"Regression needs numbers as labels; {where} has text: {labels.tolist()[wrong]!r} in row {wrong + 1}. For "
            'classes use task = "classification" in a job file, VerticalClassifier in Python.'
        ) from error


NUMBERS = 'A number to be predicted is regression: task = "regression" in a job file, VerticalRegressor in Python.'


def _shown(classes: Sequence[Any], counts: Sequence[int]) -> str:
    shown = ", ".join(
        f"{_plain(value)!r} ({counted(count, 'row')})" for value, count in list(zip(classes, counts, strict=True))[:6]
    )
    return shown + (", ..." if len(classes) > 6 else "")


def _not_classes(classes: Sequence[Any], counts: Sequence[int], where: str, broken: bool) -> str:
    why = "with digits after the point" if broken else f"more than {CLASSES_MOST}"
    return (
        f"Classification needs classes; {where} has {len(classes):,} different values, {why}: "
        f'{_shown(classes, counts)}. {NUMBERS} If these are classes all the same, say so: task = "multiclass" in a job '
        "file, or labels that are text."
    )


def _not_two(classes: tuple[Any, ...], counts: list[int], where: str) -> str:
    several = (
        f"{NUMBERS} Between organisations a model has two classes, so far: several are learned in one place, by "
        "`offbeat run` and VerticalClassifier. Or learn one class against all others: give those one label."
    )
    joined = " whose ids " in where
    one = (
        f"Check the label column{', and that enough ids are shared' if joined else ''}: there is nothing to tell apart."
    )
    wanted, advice = ("exactly two classes", several) if len(classes) > 2 else ("two classes or more", one)
    return f"Classification needs {wanted}; {where} has {len(classes)}: {_shown(classes, counts)}. {advice}"
