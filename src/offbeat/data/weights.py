"""Weights of rows: how much each counts, given by the party that holds the labels; and exposure, in which counts and
amounts are measured.

A weight of 2 is the row twice, a weight of 0 is no row; only their ratios matter. A count over an exposure e, claims in
e years say, is the rate count / e with the weight e: that is Poisson's loss with an offset of log e, up to a constant.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.columns import take_names
from offbeat.data.matrix import Floats, as_matrix
from offbeat.data.table import Table
from offbeat.errors import BadData
from offbeat.names import did_you_mean

NO_WEIGHTS = np.empty(0)
ABOVE = "An exposure is above 0: leave rows without any out."
NOT_BELOW = "Weights are 0 or more: leave a row out by a weight of 0."


def checked_weights(weights: Any, rows: int, where: str, advice: str = NOT_BELOW) -> Floats:
    """One weight of 0 or more for each row, not all of them 0."""
    try:
        found = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadData(
            f"{where} must be numbers, one for each of the {rows:,} rows; came {type(weights).__name__} with something "
            "else in it. Give numbers of 0 or more."
        ) from None
    if found.shape != (rows,):
        raise BadData(
            f"{where} must be one number for each of the {rows:,} rows; came an array of shape {found.shape}."
        )
    _check_cells(found, where, found < 0.0, "negative", advice)
    if not found.any():
        raise BadData(f"{where} are all zero, so no row counts. Give at least one row a number above 0.")
    return found


def checked_exposure(exposure: Any, rows: int, where: str) -> Floats:
    """A number above 0 for each row."""
    found = checked_weights(exposure, rows, where, ABOVE)
    _check_cells(found, where, found == 0.0, "0", ABOVE)
    return found


def _check_cells(found: Floats, where: str, wrong: NDArray[Any], what: str, advice: str) -> None:
    empty = ~np.isfinite(found)
    if empty.any():
        raise BadData(
            f"{where} must be finite numbers; row {int(np.argmax(empty)) + 1} has {found[empty][0]}. Fill it in."
        )
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadData(
            f"{where}: row {row + 1} has {found[row]:g}, which is {what} ({int(wrong.sum())} such rows). {advice}"
        )


def by_exposure(
    y: Floats, test: NDArray[np.bool_], weights: Floats | None, exposure: Floats | None
) -> tuple[Floats, Floats]:
    """Labels for each unit of exposure, and the training rows' weights times exposure."""
    if exposure is not None:
        y, weights = y / exposure, exposure if weights is None else exposure * weights
    if weights is None:
        return y, NO_WEIGHTS
    if not weights[~test].any():
        raise BadData("The weights of all training rows are 0, so none counts. Choose another seed, or other weights.")
    return y, weights[~test]


def mean_one(weights: Floats) -> Floats:
    """The same weights with a mean of 1; none where all rows count alike."""
    return weights / weights.mean() if len(weights) and np.ptp(weights) > 0.0 else NO_WEIGHTS


def with_weights(table: Table, weight: str | None, exposure: str | None) -> Table:
    """The same table with these two columns taken out of its features."""
    for column, field, check in ((weight, "weights", checked_weights), (exposure, "exposure", checked_exposure)):
        if column is None:
            continue
        names = list(table.columns)
        where = f"{table.name}, {field} column {column!r}"
        if column not in names:
            raise BadData(f"{table.name} has no {field} column {column!r}. {did_you_mean(column, names)}")
        if column in table.levels or column in table.dates:
            raise BadData(f"{where} must hold numbers; it holds {'dates' if column in table.dates else 'text'}.")
        at = names.index(column)
        values = np.asarray(as_matrix(table.features[:, [at]]), dtype=np.float64).ravel()
        kept = np.array([j for j in range(len(names)) if j != at], dtype=np.int64)
        if not kept.size:
            raise BadData(f"{where} is the only column, and every party needs one to learn from.")
        changes: Any = {"columns": take_names(table.columns, kept), "features": as_matrix(table.features[:, kept])}
        changes[field] = check(values, len(table), where)
        table = replace(table, **changes)
    return table
