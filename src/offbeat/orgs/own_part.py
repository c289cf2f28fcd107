"""This party's own part of a model between organisations, for its owner to read: nobody else is asked, and no label."""

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Any

import numpy as np

from offbeat.data.holdout import id_text
from offbeat.errors import BadInput
from offbeat.jobs.organisations import OrgJob, read_job
from offbeat.jobs.vertical import Job
from offbeat.metrics.record import JOB_FILE
from offbeat.orgs.party_config import Home
from offbeat.orgs.rows import OwnModel, load_table, read_model
from offbeat.run.model import TrainedModel
from offbeat.run.scorecard import Scorecard, scorecard_of

UNNAMED = ("the negative class", "the positive class")
"""Who holds no labels does not know what the classes are called."""


def own_part(home: Home, run: str) -> TrainedModel:
    """This party's coefficients and preparation, as a model of one party."""
    job, own = _job(home, run), _linear(home, run)
    unnamed = UNNAMED if job.model.classes is None else tuple(f"class {at + 1}" for at in range(job.model.classes))
    classes = None if job.model.task == "regression" else own.classes or unnamed
    loss: Any = job.model.loss.replace("-", "_")
    known = Job(algorithm=job.method.algorithm, label_dp_epsilon=job.method.label_dp_epsilon, loss=loss)
    return TrainedModel(known, (home.name,), {home.name: own.part}, job.model.task, classes)


def _job(home: Home, run: str) -> OrgJob:
    return read_job(home.runs / run / JOB_FILE)


def _linear(home: Home, run: str) -> OwnModel:
    own = read_model(home.private / run, "model")
    if own.network is not None:
        raise BadInput(f"the part of '{home.name}' in {run} is a network: it has no coefficients by name.")
    return own


def own_scorecard(home: Home, run: str, *, points: float, odds: float, double: float, good: str | None) -> Scorecard:
    """This party's points. The bases of all parties add up to that of the whole card: the first label holder's has the
    scale's start in it."""
    model, job = own_part(home, run), _job(home, run)
    if job.model.loss != "logistic":
        raise BadInput(f"A scorecard needs the logistic loss, which knows odds; this model has {job.model.loss}.")
    classes = model.classes or ()
    chosen = classes[0] if good is None else next((one for one in classes if str(one) == good), good)
    card = scorecard_of(model, points=points, odds=odds, double=double, good=chosen)
    start = points - double / log(2.0) * log(odds)
    base = card.base if home.name == job.labels_at[0] else float(round(card.base - start))
    note = (
        f"These are the points of '{home.name}' alone; a score is the sum of all parties' points and bases. Weights of "
        "evidence need label counts by bin, which organisations do not exchange."
    )
    return replace(card, base=base, notes=(note,))


def own_parts(home: Home, run: str, ids: Sequence[str]) -> list[float | None]:
    """This party's part of the scores of these rows, its part of the constant included; None of rows it lacks."""
    own, table = _linear(home, run), load_table(home)
    place = {id_text(one): at for at, one in enumerate(table.ids.tolist())}
    found = [place.get(id_text(one)) for one in ids]
    rows = np.array([at for at in found if at is not None], dtype=np.int64)
    parts = iter(own.shares(table, rows).tolist() if rows.size else ())
    return [None if at is None else next(parts) for at in found]
