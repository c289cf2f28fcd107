"""The model of a finished run over sites with files: one for all of them, which scores any site's rows.

model = offbeat.load_sites("runs/20260105-readmission")
model.predict(frame), model.predict_proba(frame)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms.mapa import CLOUD
from offbeat.data.matrix import Floats
from offbeat.data.prepare import Fitted
from offbeat.data.sites import site_rows
from offbeat.data.table import Table, read_table, table_from_arrays
from offbeat.errors import BadInput, BadJob
from offbeat.families.contract import Part
from offbeat.families.horizontal import rows_for
from offbeat.jobs.horizontal import EdgeJob, sized
from offbeat.jobs.rules import model_of
from offbeat.learning.horizontal import LinearModel
from offbeat.learning.scores import class_probabilities
from offbeat.metrics.record import RunRecord
from offbeat.run.folder import job_of, read_parts


@dataclass(frozen=True)
class SiteModel:
    """A linear model of columns that all sites have.

    job         the job of its run
    classes     the classes in the order of probabilities
    fitted      how rows are prepared
    parameters  of the model; under noise, the mean of the last ones
    """

    job: EdgeJob
    classes: tuple[Any, ...]
    fitted: Fitted
    parameters: Floats

    def read(self, source: str | Path, id: str | None = None) -> Table:
        """Rows of the `source`, a file or a table's address. `id`: the column of their names; None: their numbers."""
        return read_table(source, id, None, self.fitted.raw_columns, text=list(self.fitted.spelling), missing="keep")

    def decision_function(self, rows: Any) -> Floats:
        """One score for each of the `rows` under the logistic model, above 0 for the second class; else one a class."""
        table = rows if isinstance(rows, Table) else table_from_arrays(rows, text=list(self.fitted.spelling))
        values = site_rows(table.name, table, self.fitted)
        model = model_of(self.job)
        assert isinstance(model, LinearModel)
        scores = model.scores(self.parameters, rows_for(self.job, values, np.zeros(len(values))))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, rows: Any) -> NDArray[Any]:
        """The class of each of the `rows`: a data frame, or what `read` gave."""
        return self.answers(self.decision_function(rows))

    def answers(self, scores: Floats) -> NDArray[Any]:
        """The class for each of the `scores`."""
        chosen = scores > 0 if scores.ndim == 1 else scores.argmax(axis=1)
        return np.array(self.classes)[chosen.astype(np.intp)]

    def predict_proba(self, rows: Any) -> Floats:
        """The probabilities of the `rows`: one column per class."""
        return self.probabilities(self.decision_function(rows))

    @property
    def has_probabilities(self) -> bool:
        """Whether its loss is of probabilities: logistic and softmax are."""
        return "hinge" not in self.job.model.kind

    def probabilities(self, scores: Floats) -> Floats:
        """One column per class, for each of the `scores`."""
        if not self.has_probabilities:
            raise BadJob(
                f"Probabilities need the kind logistic or softmax; this is {self.job.model.kind}. Use predict."
            )
        two = np.column_stack([np.zeros(len(scores)), scores]) if scores.ndim == 1 else scores
        return class_probabilities(two)


def load_sites(run: str | Path) -> SiteModel:
    """The model of a finished run over [[site]]s. `run`: its folder, as `offbeat run` printed it."""
    folder = Path(run)
    record, job = RunRecord.read(folder), job_of(folder)
    part = read_parts(folder, [CLOUD])[CLOUD] if isinstance(job, EdgeJob) else None
    if not isinstance(job, EdgeJob) or part is None or part.fitted is None:
        raise BadInput(
            f"{folder} is no run over [[site]] files. offbeat.load reads runs over columns; the model of a named set "
            "of pictures is in checkpoints/cloud.safetensors."
        )
    classes = record.data.classes
    return site_model(sized(job, len(part.fitted.columns), len(classes)), part, classes)


def site_model(job: EdgeJob, part: Part, classes: tuple[Any, ...]) -> SiteModel:
    """Under noise the mean of the last models is nearer to the best one than the last model is."""
    assert part.fitted is not None
    kind = "parameters" if job.privacy.mode == "none" else "averaged"
    return SiteModel(job, classes, part.fitted, np.asarray(part.arrays[kind], dtype=np.float64))
