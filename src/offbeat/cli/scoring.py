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
    from offbeat.jobs.horizontal import EdgeJob
    from offbeat.run.folder import job_of

    if out is not None and out.exists() and any(Path(file).exists() and out.samefile(file) for _, file in _pairs(data)):
        raise BadInput(f"--out {out} is one of the files to score, and would replace it. Give another path.")
    over_rows = isinstance(job_of(run), EdgeJob)
    rows, classes, task = _of_sites(run, data, parts) if over_rows else _of_parties(run, data, parts)
    say(f"{counted(len(rows), 'row')} scored.")
    if as_json:
        print_json({"rows": rows, "classes": list(classes), "task": task})
        return
    write_csv(rows, out)
    if out is not None:
        say(f"wrote {counted(len(rows), 'row')} to {out}.")


Scored = tuple[list[dict[str, Any]], Sequence[Any], str]
"""The rows of the answer, the classes, and the task."""


def _of_parties(run: Path, data: Sequence[str], parts: bool) -> Scored:
    from offbeat.run.model import load

    model = load(run)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ids, tables = model.files(dict(_pairs(data)))
    for warning in caught:
        say(f"{warning.message}")
    for party, table in tables.items():
        for note in table.notes:
            say(f"{party}: {note}")
        fitted = model.fitted(party)
        unseen = fitted.unseen(fitted.recoded(table)) if isinstance(table.features, np.ndarray) else {}
        for column, count in unseen.items():
            cells = counted(count, "cell")
            say(f"{party}: {cells} of column {column!r} with a category that the training rows never had.")
    scores = model.scores(tables)
    logistic = model.classes is not None and (scores.ndim == 2 or model.loss in ("auto", "logistic"))
    rows = list(_rows(model, ids, scores, logistic))
    if parts:
        _add_parts(rows, model.explain(tables), model.classes)
    return rows, model.classes or (), model.task


def _of_sites(run: Path, data: Sequence[str], parts: bool) -> Scored:
    """Every site's rows by the one model, with the site's name beside them."""
    from offbeat.run.site_model import load_sites

    if parts:
        raise BadInput("--parts tells what each party's columns add; sites hold rows, and one model scores them all.")
    model, found = load_sites(run), []
    ids = {entry.name: entry.id for entry in model.job.site}
    usual = next(iter(ids.values())) if len(set(ids.values())) == 1 else None  # of a site that was not in the run
    for site, file in _pairs(data):
        table = model.read(file, ids.get(site, usual))
        scores = model.decision_function(table)
        found += [{"site": site, **row} for row in _rows(model, table.ids, scores, model.has_probabilities)]
    return found, model.classes, "classification"


def _pairs(data: Sequence[str]) -> Iterator[tuple[str, str]]:
    named = set()
    for one in data:
        party, equals, file = one.partition("=")
        if not equals or not party or not file:
            raise BadInput(
                "--data expects PARTY=FILE, as in --data bank=new/bank.csv, or a table's address in place of the file; "
                f"got {one.partition('://')[0]!r}."
            )
        if party in named:
            raise BadInput(
                f"--data names {party!r} more than once. Give one file for each; put the rows into one file."
            )
        named.add(party)
        yield party, file


def _rows(model: Any, ids: Any, scores: Any, likely: bool) -> Iterator[dict[str, Any]]:
    """One row of the answer for each id: the prediction, and the probability of every class where there is one."""
    answers = model.answers(scores).tolist()
    chances = model.probabilities(scores).tolist() if likely else [()] * len(answers)
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
