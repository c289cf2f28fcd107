"""A trained model in one process: read from a run folder, or as a run has just left it; it scores new rows.

    model = offbeat.load("runs/20260105-credit")
    model.predict({"bank": frame, "shop": frame, "telecom": frame})

Every party's rows are prepared as its training rows were, with what is kept beside its part of the model. Missing
values and categories that training never saw are no trouble where the preparation knows what to do with them.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.data.align import align
from offbeat.data.columns import NumberedColumns
from offbeat.data.matrix import Floats, Matrix, scale_party_rows, take_rows
from offbeat.data.prepare import Fitted
from offbeat.data.table import Table, read_table, table_from_arrays
from offbeat.errors import BadData, BadInput
from offbeat.families.contract import Part
from offbeat.families.networks import networks_of, weights_from
from offbeat.jobs.vertical import SERVER, Job
from offbeat.learning.embeddings import Embedding, Head
from offbeat.learning.scores import class_probabilities, log_link, probabilities
from offbeat.metrics.record import RunRecord
from offbeat.names import counted, did_you_mean
from offbeat.run.folder import job_of, read_parts
from offbeat.run.result import Result

if TYPE_CHECKING:
    from offbeat.run.scorecard import Scorecard

Array = NDArray[Any]


@dataclass(frozen=True)
class Explanation:
    """Products of rows in parts: the base, and what each party adds to it. `total` is the decision function."""

    base: float | Floats
    parts: Mapping[str, Floats]

    @property
    def total(self) -> Floats:
        return np.asarray(self.base + sum(self.parts.values()))


@dataclass(frozen=True)
class TrainedModel:
    """A model with every party's part in one process. VAFL's head is the part called `server`.

    job      the job of its run
    names    the parties in the order of the run
    parts    each party's arrays and how it prepares its columns
    task     "classification", "multiclass" or "regression"
    classes  the classes in the order of probabilities; None for numbers
    offset   what is added to scores: the mean that was taken from the numbers to learn
    scale    what scores are multiplied by before that: the spread that those were divided by
    networks  VAFL's embeddings and head; None: as the job says
    """

    job: Job
    names: tuple[str, ...]
    parts: Mapping[str, Part]
    task: str
    classes: tuple[Any, ...] | None = None
    offset: float = 0.0
    scale: float = 1.0
    networks: tuple[Mapping[str, Embedding], Head] | None = None

    @property
    def loss(self) -> str:
        """What it was trained by; "auto": logistic or softmax for classes, squared for numbers."""
        private = self.job.loss == "auto" and self.job.product_epsilon is not None
        return "ls_svm" if private and self.task == "classification" else self.job.loss

    # -- what it says of rows

    def decision_function(self, rows: Mapping[str, Any]) -> Floats:
        """The product of every row with a linear model; above 0 is for the second of two classes. Of several classes,
        one product for each. `rows`: each party's new rows by its name, in arrays or frames."""
        return self.scores(self.tables(rows))

    def predict_proba(self, rows: Mapping[str, Any]) -> Floats:
        """The probabilities of `rows`: one column a class, in the order of `classes`."""
        return self.probabilities(self.scores(self.tables(rows)))

    def predict(self, rows: Mapping[str, Any]) -> Array:
        """The class, or the number, of each of `rows`."""
        return self.answers(self.scores(self.tables(rows)))

    def scores(self, tables: Mapping[str, Table]) -> Array:
        """One number a row of `tables`; one for each of several classes, which are probabilities in VAFL."""
        blocks = self.blocks(tables)
        if self.job.embeds:
            return self._embedded(blocks)
        total: Floats = np.zeros(1)
        for name, block in blocks.items():
            total = total + np.asarray(block @ self.parts[name].arrays["weights"].T)
        return total + self.intercept + self.offset

    def blocks(self, tables: Mapping[str, Table]) -> dict[str, Matrix]:
        """Every party's rows (`tables`), prepared as its training rows were."""
        found = {name: self.fitted(name).apply_table(table) for name, table in tables.items()}
        return scale_party_rows(found, self.fitted(self.names[0]).preparation.rows)

    def answers(self, scores: Array) -> Array:
        """The classes, or the numbers, that `scores` stand for."""
        if self.classes is None:
            return log_link(scores) if self.loss in ("poisson", "gamma") else scores
        classes = np.asarray(self.classes)
        chosen = scores >= 0 if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(classes[chosen.astype(np.intp)])

    def probabilities(self, scores: Array) -> Floats:
        """What `scores` make of each class: one column a class."""
        if self.classes is None:
            raise BadData("This model predicts numbers; there are no classes to have probabilities. Use predict.")
        if scores.ndim == 2:
            return scores if self.job.embeds else class_probabilities(scores)
        positive = probabilities(scores, self.loss)
        return np.column_stack([1.0 - positive, positive])

    @property
    def intercept(self) -> float | Floats:
        """One number, or one for each of several classes."""
        found = np.array(sum(part.arrays["intercept"] for part in self.parts.values() if "intercept" in part.arrays))
        return found if found.size > 1 else float(found.sum())

    # -- what it is made of

    @property
    def coefficients(self) -> dict[str, dict[str, Any]]:
        """The coefficient of every prepared column, by party and name; of several classes, those by class."""
        self._check_linear("Coefficients by name")
        return {name: self._coefficients_of(name) for name in self.names}

    def _coefficients_of(self, party: str) -> dict[str, Any]:
        columns, found = self.fitted(party).columns, self.parts[party].arrays["weights"]
        if found.ndim == 1:
            return dict(zip(columns, found.tolist(), strict=True))
        classes = self.classes or ()
        return {name: dict(zip(classes, row, strict=True)) for name, row in zip(columns, found.T.tolist(), strict=True)}

    def explain(self, rows: Mapping[str, Any]) -> Explanation:
        """What each party adds to the product of each of the `rows`, which come as for `predict`; the base is that of a
        row like the mean training row."""
        self._check_linear("Parts of a prediction by party")
        base, parts = np.asarray(self.offset, dtype=np.float64), {}
        for name, block in self.blocks(self.tables(rows)).items():
            arrays = self.parts[name].arrays
            intercept = arrays.get("intercept", np.zeros(1))
            constant = arrays.get("constant", intercept)
            part = np.asarray(block @ arrays["weights"].T)
            parts[name] = part + (intercept - constant if part.ndim == 2 else float((intercept - constant)[0]))
            base = base + constant
        return Explanation(base if base.size > 1 else float(base.sum()), parts)

    def scorecard(self, rows: Mapping[str, Any] | None = None, y: Any = None, **options: Any) -> "Scorecard":
        """Points for every bin and category, of a logistic model with prepare = "bins". `rows`: what shares are counted
        on, as for `predict`; `y`: their labels, for weights of evidence, information values and KS. `options`:
        points=600 at odds=50 to 1 for the class good (None: the first), double=20 points to double the odds,
        digits=0."""
        from offbeat.run.scorecard import scorecard_of

        return scorecard_of(self, None if rows is None else self.blocks(self.tables(rows)), y, **options)

    def to_sklearn(self) -> Any:
        """A scikit-learn pipeline that predicts the same from one frame or matrix of all parties' columns."""
        from offbeat.run.to_sklearn import to_sklearn

        return to_sklearn(self)

    def to_onnx(self, party: str) -> Any:
        """The part of the party `party` of a linear model as an `onnx.ModelProto`, from its raw columns on; see
        run/to_onnx.py. Needs the extra `onnx`."""
        from offbeat.run.to_onnx import to_onnx

        return to_onnx(self, party)

    def _check_linear(self, what: str) -> None:
        if self.job.embeds:
            raise BadInput(
                f"{what} are for linear models, whose parts add up. This model is {self.job.algorithm}, and its head "
                "mixes what the parties' networks give."
            )

    # -- rows as each party prepares them

    def tables(self, rows: Mapping[str, Any]) -> dict[str, Table]:
        """Every party's `rows`, all of them in one order; a party that lacks is told of."""
        self._check_names(rows)
        tables = {name: self._table(name, rows[name]) for name in self.names}
        sizes = {name: len(table) for name, table in tables.items()}
        if len(set(sizes.values())) > 1:
            raise BadData(f"All parties need the same number of rows; came {sizes}.")
        return tables

    def files(self, files: Mapping[str, str | Path]) -> tuple[Array, dict[str, Table]]:
        """Each party's file (`files`), joined by the id columns of the job: the ids, and the rows in their order."""
        self._check_names(files)
        ids = {entry.name: entry.id for entry in self.job.party}
        tables = {name: self._read(name, files[name], ids.get(name)) for name in self.names}
        joined = align(tables)
        for note in joined.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        return joined.ids, {
            name: replace(table, ids=joined.ids, features=take_rows(table.features, joined.rows[name]))
            for name, table in tables.items()
        }

    def _check_names(self, given: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping):
            raise BadData(f"Rows come by party, as in {{{self.names[0]!r}: frame, ...}}; got {type(given).__name__}.")
        unknown = [name for name in given if name not in self.names]
        if unknown:
            raise BadData(f"{unknown[0]!r} is no party of this model. {did_you_mean(str(unknown[0]), self.names)}")
        lacking = [name for name in self.names if name not in given]
        if lacking:
            raise BadData(
                f"The columns of party {lacking[0]!r} are missing; this model needs {', '.join(self.names)}. Add them; "
                f"on the command line: --data {lacking[0]}=FILE."
            )

    def fitted(self, name: str) -> Fitted:
        """How the party `name` prepares its rows."""
        found = self.parts[name].fitted
        if found is None:
            raise BadData(
                f"How {name} prepares its rows is not kept: the columns were shared out after they had been encoded "
                "(split_after_one_hot), or the run is of an earlier version. Train anew to score new rows."
            )
        return found

    def _table(self, name: str, rows: Any) -> Table:
        fitted = self.fitted(name)
        if isinstance(rows, Table):
            return rows
        strict = fitted.preparation.strict and not fitted.preparation.columns
        missing: Literal["refuse", "keep"] = "refuse" if strict else "keep"
        table = table_from_arrays(
            rows, name=f"party {name!r}", text=list(fitted.spelling), missing=missing, forms=fitted.forms
        )
        return _in_its_order(table, fitted, name)

    def _read(self, name: str, file: str | Path, id: str | None) -> Table:
        fitted = self.fitted(name)
        named = None if isinstance(fitted.raw_columns, NumberedColumns) else list(fitted.raw_columns)
        return read_table(
            file,
            id,
            None,
            named,
            text=list(fitted.spelling),
            missing="keep",
            forms=fitted.forms,
            duplicates=self.job.data.duplicates,
        )

    # -- VAFL

    @property
    def widths(self) -> dict[str, int]:
        """How many prepared columns each party has."""
        return {name: len(self.fitted(name).columns) for name in self.names}

    def _embedded(self, blocks: Mapping[str, Matrix]) -> Array:
        embeddings, head = networks_of(self.job, self) if self.networks is None else self.networks
        parts = []
        for name, block in blocks.items():
            embedding, weights = embeddings[name], weights_from(name, embeddings[name], self.parts[name].arrays)
            parts.append(embedding.infer(weights, embedding.place(block), np.arange(block.shape[0])))
        weights = weights_from("the head", head, self.parts[SERVER].arrays)
        found = np.asarray(head.scores(weights, parts), dtype=np.float64)
        if self.classes is None:
            return self.scale * found[:, 0] + self.offset
        return np.column_stack([1.0 - found[:, 0], found[:, 0]]) if found.shape[1] == 1 else found


def _in_its_order(table: Table, fitted: Fitted, name: str) -> Table:
    """Named columns are found by their names. Where names are known on one side alone, positions count."""
    expected, came = len(fitted.raw_columns), len(table.columns)
    numbered = isinstance(table.columns, NumberedColumns), isinstance(fitted.raw_columns, NumberedColumns)
    if any(numbered) and came != expected:
        raise BadData(f"Party {name!r} had {counted(expected, 'column')} when fitted; came {came}.")
    if numbered[0] == numbered[1]:
        return table
    names = dict(zip(table.columns, fitted.raw_columns, strict=True))
    levels = {names[column]: texts for column, texts in table.levels.items()}
    forms = {names[column]: form for column, form in table.forms.items()}
    return replace(table, columns=fitted.raw_columns, levels=levels, forms=forms)


# -- where models come from ------------------------------------------------------------------------------------------


def model_of(job: Job, result: Result) -> TrainedModel:
    """The model that a run has just left."""
    return _model(job, result.record, result.models)


def load(run: str | Path) -> TrainedModel:
    """The model of a finished run. `run`: its folder, as `offbeat run` printed it, or one that `save` wrote."""
    folder = Path(run)
    record, job = RunRecord.read(folder), job_of(folder)
    if record.runtime == "grpc":
        raise BadInput(
            f"{folder} is one organisation's side of a run, and each party has its own part of the model: ask them "
            "together, with `offbeat predict RUN --ids FILE`."
        )
    if not isinstance(job, Job):
        raise BadInput(f"{folder} holds one model of rows at sites: read it by offbeat.load_sites.")
    names = [*record.data.columns, *([SERVER] if job.embeds else [])]
    return _model(job, record, read_parts(folder, names))


def _model(job: Job, record: RunRecord, parts: Mapping[str, Part]) -> TrainedModel:
    data = record.data
    units = data.label_offset, data.label_scale
    return TrainedModel(job, tuple(data.columns), parts, data.task, data.classes or None, *units)
