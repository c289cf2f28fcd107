"""One party's part of a linear model as an ONNX graph: from its raw columns to its part of the score.

    graph = model.to_onnx("bank")                     # onnx.ModelProto; the extra `onnx`
    onnx.save(graph, "bank.onnx")

Inputs: `numbers` (double, rows x number columns, NaN where missing, dates as days since 1970-01-01) and, where the
party has columns of text or of numbers that are categories, `texts` (string, spelled as in training, "" where missing).
The metadata `numbers` and `texts` name their columns, in order. Output: `part` (double, rows x outputs), this party's
part of the intercept included. The parts of all parties add up to the score. Where the preparation refuses missing
values, the part is NaN.

Preparation is linear but for filling, cutting, bins and categories. So scales and means go into the weights, and of a
bin or category the graph looks the weight up: no column of zeros and ones is made.
"""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.encode import Levels
from offbeat.data.matrix import Floats
from offbeat.data.prepare import Fitted
from offbeat.errors import BadInput, NotInstalled
from offbeat.run.model import TrainedModel

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
UNSEEN = -1.0  # the code of a text that training never had


def to_onnx(model: TrainedModel, party: str) -> Any:
    """An `onnx.ModelProto` of this party's part."""
    if model.job.embeds:
        raise BadInput(
            f"to_onnx is for linear models; {model.job.algorithm} trains networks. Use torch.onnx for those."
        )
    if party not in model.names:
        raise BadInput(f"{party!r} is no party of this model; expected one of {', '.join(model.names)}.")
    fitted, arrays = model.fitted(party), model.parts[party].arrays
    _refuse(fitted, party)
    weights = np.atleast_2d(arrays["weights"]).T
    intercept = np.broadcast_to(arrays.get("intercept", np.zeros(1)), weights.shape[1])
    return _Graph(fitted).model(*_unscaled(fitted, weights, np.array(intercept, dtype=np.float64)), party)


def _refuse(fitted: Fitted, party: str) -> None:
    preparation = fitted.preparation
    if preparation.rows != "as-is" or preparation.counts == "log1p":
        raise BadInput(
            f"to_onnx exports columns that are prepared one by one and linearly; {party} has rows = "
            f'"{preparation.rows}" and counts = "{preparation.counts}". Use to_sklearn, or offbeat.load and predict.'
        )


def _unscaled(fitted: Fitted, weights: Floats, intercept: Floats) -> tuple[Floats, Floats]:
    """Weights and intercept of columns before they are scaled and centred: columns x outputs, outputs."""
    if fitted.centre is not None and fitted.scale is not None:
        everything = fitted.preparation.scale_indicators or fitted.idf is not None
        scaled = np.full(len(weights), everything)
        scaled[fitted.numbers.at] = True
        weights = weights * np.where(scaled, fitted.scale, 1.0)[:, None]
        intercept = intercept - np.where(scaled, fitted.centre, 0.0) @ weights
    return (weights if fitted.idf is None else weights * fitted.idf[:, None]), intercept


class _Graph:
    """Nodes as they are made; every name is used once."""

    def __init__(self, fitted: Fitted) -> None:
        try:
            import onnx
        except ImportError:
            raise NotInstalled("to_onnx needs the package onnx: pip install 'offbeat[onnx]'.") from None
        self.onnx, self.fitted = onnx, fitted
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        raw = list(fitted.raw_columns)
        self.texts = [name for name in raw if name in fitted.spelling]
        self.numbers = [name for name in raw if name not in fitted.spelling]

    def model(self, weights: Floats, intercept: Floats, party: str) -> Any:
        helper, double, text = self.onnx.helper, self.onnx.TensorProto.DOUBLE, self.onnx.TensorProto.STRING
        parts = [self._of_numbers(weights), *(self._of_levels(item, weights) for item in self.fitted.levels)]
        total = self.constant(intercept[None, :])
        for part in (part for part in parts if part):
            total = self.node("Add", part, total)
        self.nodes.append(helper.make_node("Identity", [total], ["part"]))
        given = [("numbers", double, self.numbers), ("texts", text, self.texts)]
        inputs = [helper.make_tensor_value_info(name, kind, ["rows", len(of)]) for name, kind, of in given if of]
        output = helper.make_tensor_value_info("part", double, ["rows", len(intercept)])
        graph = helper.make_graph(self.nodes, f"the part of {party}", inputs, [output], self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        found = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="offbeat")
        helper.set_model_props(found, {"party": party, **{name: json.dumps(of) for name, _, of in given}})
        self.onnx.checker.check_model(found, full_check=True)
        return found

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, values: NDArray[Any]) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def cast(self, what: str) -> str:
        return self.node("Cast", what, to=self.onnx.TensorProto.DOUBLE)

    # -- columns

    def _column(self, at: int) -> str:
        """One raw column, rows x 1: numbers as they are, texts by their codes, NaN where missing."""
        name = self.fitted.raw_columns[at]
        if name in self.numbers:
            return self.node("Gather", "numbers", self.constant(np.array([self.numbers.index(name)])), axis=1)
        texts = self.node("Gather", "texts", self.constant(np.array([self.texts.index(name)])), axis=1)
        known = self.fitted.spelling[name]
        codes = self.node(
            "LabelEncoder", texts, domain="ai.onnx.ml", default_float=UNSEEN,
            keys_strings=[*known, ""], values_floats=[*map(float, range(len(known))), float("nan")],
        )  # fmt: skip
        return self.cast(codes)

    def _of_numbers(self, weights: Floats) -> str:
        numbers = self.fitted.numbers
        if not numbers.column.size:
            return ""
        places = [self.numbers.index(self.fitted.raw_columns[int(at)]) for at in numbers.column]
        values = self.node("Gather", "numbers", self.constant(np.array(places)), axis=1)
        missing = self.node("IsNaN", values)
        if numbers.fill.size and not self.fitted.preparation.strict:
            values = self.node("Where", missing, self.constant(numbers.fill[None, :]), values)
        if numbers.fill.size and numbers.cut:
            values = self.node("Min", values, self.constant(numbers.high[None, :]))
            values = self.node("Max", values, self.constant(numbers.low[None, :]))
        part = self.node("MatMul", values, self.constant(weights[numbers.at]))
        if not numbers.marked.size:
            return part
        marks = self.node("Gather", self.cast(missing), self.constant(numbers.marked), axis=1)
        return self.node("Add", part, self.node("MatMul", marks, self.constant(weights[numbers.marks_at])))

    def _of_levels(self, item: Levels, weights: Floats) -> str:
        """The weight of the bin or category of each row. The last row of the table, of zeros, is that of none; the one
        before it that of a missing value where none is taken."""
        values, outputs = self._column(item.column), weights.shape[1]
        table = np.vstack([weights[item.span], np.full((1, outputs), np.nan), np.zeros((1, outputs))])
        place = self._bin(item, values) if item.is_bins else self._category(item, values)
        without = item.width if self.fitted.preparation.strict else int(item.places(np.array([np.nan]))[0])
        place = self.node("Where", self.node("IsNaN", values), self.constant(np.array([[without]])), place)
        rows = self.node("Squeeze", place, self.constant(np.array([1])))
        return self.node("Gather", self.constant(table), rows, axis=0)

    def _bin(self, item: Levels, values: str) -> str:
        """How many lower edges are at or below each value."""
        above = self.cast(self.node("GreaterOrEqual", values, self.constant(item.values[None, :])))
        return self._whole(self.node("ReduceSum", above, self.constant(np.array([1])), keepdims=1))

    def _category(self, item: Levels, values: str) -> str:
        elsewhere = self.constant(np.array([[int(item.places(np.array([np.inf]))[0])]]))
        if not item.values.size:
            return elsewhere
        same = self.cast(self.node("Equal", values, self.constant(item.values[None, :])))
        known = self.node("Cast", self.node("ReduceMax", same, axes=[1], keepdims=1), to=self.onnx.TensorProto.BOOL)
        return self.node("Where", known, self.node("ArgMax", same, axis=1, keepdims=1), elsewhere)

    def _whole(self, what: str) -> str:
        return self.node("Cast", what, to=self.onnx.TensorProto.INT64)
