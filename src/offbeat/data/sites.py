"""Rows at sites that bring files of their own: the same columns everywhere, each site's rows by themselves.

What columns can hold is said in advance, `[least, most]` of a number or all categories of a text, and is the same at
all sites: a scale, a median or a category that is learned from rows would tell of them, and no privacy budget would
know.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from offbeat.data.encode import Levels
from offbeat.data.holdout import held_out
from offbeat.data.horizontal import HorizontalData
from offbeat.data.labels import encode_labels, settled_task
from offbeat.data.matrix import Floats, take_rows
from offbeat.data.preparation import AS_IS, Preparation
from offbeat.data.prepare import Fitted, Numbers
from offbeat.data.table import Table
from offbeat.errors import BadData, BadJob
from offbeat.names import counted

SCALES_APART = 20.0
"""Without ranges a column so many times as large as most leaves nothing of these."""
ADVICE = "Say in data.columns what each column can hold."
Holds = Mapping[str, Sequence[float | str]]


def check_holds(columns: Holds, where: str) -> None:
    """Every column has two numbers, the least first, or two texts or more that differ."""
    if not columns:
        raise BadJob(f"{where} is empty. List what each column can hold, or leave the key out.")
    for name, holds in columns.items():
        texts = [one for one in holds if isinstance(one, str)]
        wrong = len(holds) < 2 or (texts and (len(texts) < len(holds) or len(set(texts)) < len(texts)))
        if not texts and not wrong:
            wrong = len(holds) != 2 or not np.isfinite(np.array(holds, float)).all() or holds[0] >= holds[1]  # type: ignore[operator]
        if wrong:
            raise BadJob(
                f"{where}: {name!r} must have the least and the most that the column can hold, as in [0, 120], or all "
                f'of its categories, as in ["f", "m"]; got {list(holds)!r}.'
            )


def public_preparation(columns: Holds) -> Fitted:
    """Numbers from -1 to 1 and categories as 0/1 columns, by what was said in advance: no row is looked at. A row of
    k columns is never longer than the root of k."""
    names: list[str] = []
    number: list[tuple[int, int, float, float]] = []
    levels: list[Levels] = []
    spelling: dict[str, list[str]] = {}
    for at, (column, holds) in enumerate(columns.items()):
        if isinstance(holds[0], str):
            spelling[column] = texts = [str(text) for text in holds]
            levels.append(Levels(at, len(names), np.arange(len(texts), dtype=np.float64)))
            names += [f"{column}={text}" for text in texts]
        else:
            number.append((at, len(names), float(holds[0]), float(holds[1])))
            names.append(column)
    table = np.array(number, dtype=np.float64).reshape(-1, 4)
    place = table[:, 1].astype(np.int64)
    low, high = np.ascontiguousarray(table[:, 2]), np.ascontiguousarray(table[:, 3])
    centre, scale = np.zeros(len(names)), np.ones(len(names))
    centre[place], scale[place] = (low + high) / 2, 2.0 / (high - low)
    numbers = Numbers(table[:, 0].astype(np.int64), place, np.zeros(len(table)), low, high)
    how = Preparation(how="scaled")
    return Fitted(how, tuple(columns), tuple(names), numbers, tuple(levels), spelling, centre=centre, scale=scale)


def said_in_advance(holds: Holds | None, columns: Sequence[str]) -> Fitted:
    """A preparation that no row is looked at for; without `holds` the numbers stay as they are."""
    if holds is not None:
        return public_preparation(holds)
    every = np.arange(len(columns), dtype=np.int64)
    wide = np.full(every.size, np.inf)
    return Fitted(AS_IS, columns, columns, Numbers(every, every, np.zeros(every.size), -wide, wide))


def site_rows(site: str, table: Table, fitted: Fitted) -> Floats:
    """A site's rows as the model wants them; text and gaps that nobody announced are refused."""
    try:
        cells = fitted.recoded(table)
    except BadData as problem:
        text = [column for column in table.levels if column in fitted.raw_columns and column not in fitted.spelling]
        said = str(problem) if site == table.name else f"Site {site!r}: {problem}"
        if text:
            said += (
                f' All sites name its categories in advance, as in data.columns = {{ {text[0]} = ["f", "m"], ... }}.'
            )
        raise BadData(said) from None
    missing = np.isnan(cells)
    if missing.any():
        row, column = (int(i) for i in np.argwhere(missing)[0])
        raise BadData(
            f"Site {site!r}, column {fitted.raw_columns[column]!r}, row {row + 1}: expected a value, came an empty "
            f"cell ({int(missing.sum())} such cells). Sites learn no medians from each other: fill gaps by a rule that "
            "all share, or leave the rows out."
        )
    unseen = fitted.unseen(cells)
    if unseen:
        name, count = next(iter(unseen.items()))
        raise BadData(
            f"Site {site!r}: {counted(count, 'cell')} of column {name!r} with a category that data.columns does not "
            f"list ({', '.join(fitted.spelling[name])}). List it, or correct the cells."
        )
    return np.asarray(fitted.apply(cells))


def horizontal_from_tables(
    tables: Mapping[str, Table], columns: Holds | None, test_fraction: float, seed: int, advice: str = ADVICE
) -> HorizontalData:
    """Each site's table with labels; a part of every site's rows is kept for testing, by id and seed. `advice`: what
    to do about columns that dwarf others."""
    first = next(iter(tables.values()))
    for site, table in tables.items():
        _check_alike(site, table, first)
    fitted = said_in_advance(columns, first.columns)
    labels = np.concatenate([table.labels for table in tables.values() if table.labels is not None])
    task = settled_task(labels, "classification", "the sites' label column")
    coded, classes = encode_labels(labels, task, "the sites' label column")
    coded = np.maximum(coded, 0.0)  # two classes come as -1 and 1, and edges count from 0
    edges, test_rows, test_labels, start = {}, [], [], 0
    for site, table in tables.items():
        rows, mine = site_rows(site, table, fitted), coded[start : start + len(table)]
        test = held_out(table.ids, seed=seed, fraction=test_fraction)
        edges[site] = (take_rows(rows, ~test), mine[~test])
        test_rows.append(rows[test])
        test_labels.append(mine[test])
        start += len(table)
    everything = np.concatenate([np.asarray(x) for x, _ in edges.values()])
    notes = [] if columns is not None else _about_scales(everything, fitted.columns, advice)
    return HorizontalData(
        edges=edges,
        x_test=np.concatenate(test_rows),
        y_test=np.concatenate(test_labels),
        task="multiclass",
        classes=classes,
        source=f"{len(tables)} sites with files of their own ({', '.join(t.name for t in tables.values())}).",
        notes=tuple(notes),
        fitted=fitted,
    )


def _check_alike(site: str, table: Table, first: Table) -> None:
    """The same columns, and labels of the same kind, as the first site's."""
    odd = sorted({*first.columns} ^ {*table.columns})
    if odd:
        raise BadData(
            f"Site {site!r}: all sites bring the same columns, and {odd[0]!r} is in one of {first.name} and "
            f"{table.name} only. List the columns to use, and what each can hold, in data.columns."
        )
    assert table.labels is not None and first.labels is not None
    if (table.labels.dtype == object) != (first.labels.dtype == object):
        kinds = [f"{one.name} has {'text' if one.labels.dtype == object else 'numbers'}" for one in (first, table)]  # type: ignore[union-attr]
        raise BadData(f"Site {site!r}: labels are of two kinds: {' and '.join(kinds)}. Spell them alike everywhere.")


def _about_scales(values: Floats, columns: Sequence[str], advice: str) -> list[str]:
    """Rows that are scaled to one length keep hardly anything of columns that are small beside others."""
    sizes = np.sqrt(np.mean(np.square(values), axis=0))
    large, usual = int(np.argmax(sizes)), float(np.median(sizes[sizes > 0.0])) if sizes.any() else 1.0
    if sizes[large] <= SCALES_APART * usual:
        return []
    return [
        f"Column {columns[large]!r} is about {sizes[large] / usual:.0f} times as large as most, and every row is "
        f"scaled to one length: little is left of the others. {advice}"
    ]
