"""`offbeat predict RUN --data PARTY=FILE`: new rows scored in one place by a finished run."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.cli.output import print_json, say, write_csv
from offbeat.errors import BadInput
from offbeat.names import counted


def score_files(run: Path, data: Sequence[str], out: Path | None, as_json: bool, parts: bool = False) -> None:
    from offbeat.run.model import load

    model = load(run)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ids, tables = model.files(dict(_pairs(data)))
    for warning in caught:
        say(f"{warning.message}")
    for party, table in tables.items():
        fitted = model.fitted(party)
        unseen = fitted.unseen(fitted.recoded(table)) if isinstance(table.features, np.ndarray) else {}
        for column, count in unseen.items():
            cells = counted(count, "cell")
            say(f"{party}: {cells} of column {column!r} with a category that the training rows never had.")
    rows = list(_rows(model, ids, model.scores(tables)))
    if parts:
        _add_parts(rows, model.explain(tables), model.classes)
    say(f"{counted(len(rows), 'row')} scored.")
    if as_json:
        print_json({"rows": rows, "classes": list(model.classes or ()), "task": model.task})
        return
    write_csv(rows, out)
    if out is not None:
        say(f"wrote {len(rows):,} rows to {out}.")


def _pairs(data: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for one in data:
        party, equals, file = one.partition("=")
        if not equals or not party or not file:
            raise BadInput(f"--data expects PARTY=FILE, as in --data bank=new/bank.csv; got {one!r}.")
        yield party, Path(file)


def _rows(model: Any, ids: Any, scores: Any) -> Iterator[dict[str, Any]]:
    """One row of the answer for each id: the prediction, and the probability of every class where there is one."""
    answers = model.answers(scores).tolist()
    logistic = model.classes is not None and (scores.ndim == 2 or model.job.loss in ("auto", "logistic"))
    chances = model.probabilities(scores).tolist() if logistic else [()] * len(answers)
    for i, answer, chance in zip(ids.tolist(), answers, chances, strict=True):
        named = {f"probability of {name}": value for name, value in zip(model.classes or (), chance, strict=False)}
        yield {"id": i, "prediction": answer, **named}


def _add_parts(rows: Sequence[dict[str, Any]], told: Any, classes: Any) -> None:
    """What each party adds to the product of a row, and what they add it to."""
    base = np.broadcast_to(told.base, np.shape(told.total))
    for name, values in [("base", base), *((f"part of {party}", part) for party, part in told.parts.items())]:
        for place, row in enumerate(rows):
            several = zip(classes, values[place].tolist(), strict=True) if values.ndim == 2 else ()
            row |= {f"{name} for {one}": value for one, value in several} or {name: float(values[place])}
