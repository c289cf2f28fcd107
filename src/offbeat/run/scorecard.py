"""A logistic model over bins and categories as a scorecard: points that a person can add up.

    card = offbeat.load("run").scorecard()                      # points alone
    card = model.scorecard(rows, y, points=600, odds=50, double=20)
    print(card); card.table(); card.score(new_rows); card.stability(new_rows)

A score of `points` means that the chances are `odds` to 1 for the good class, and `double` more points double them.
With rows, shares of bins are counted; with their labels too, weights of evidence and information values. Label counts
by bin tell about labels: where labels were answered at random (label_dp_epsilon) they are given for the label holder's
own columns alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from numbers import Integral, Real
from typing import Any

import msgspec
import numpy as np

from offbeat.data.matrix import Floats, Matrix
from offbeat.data.prepare import Fitted
from offbeat.errors import BadData, BadInput
from offbeat.learning.scores import area_under_curve, largest_distance
from offbeat.names import did_you_mean
from offbeat.run.model import TrainedModel

SHARE_LEAST = 1e-4
"""A share of 0 counts as this much in a stability index, so that one empty bin does not make it infinite."""
SCORE_BINS = 10


class CardLine(msgspec.Struct, frozen=True):
    """One bin or category. `good` and `bad` count rows by class, where that is allowed."""

    party: str
    column: str
    bin: str
    points: float
    rows: int | None = None
    good: int | None = None
    bad: int | None = None
    weight_of_evidence: float | None = None
    information_value: float | None = None


@dataclass(frozen=True)
class Scorecard:
    """`base` points and one line a bin: the score of a row is the base and the points of the bins it falls into."""

    model: TrainedModel
    good: Any
    bad: Any
    base: float
    lines: tuple[CardLine, ...]
    rounding: float  # what rounding moves a score by, at most
    scale: str
    ks: float | None = None
    auc: float | None = None
    edges: Floats | None = None  # of ten bins of the scores of the rows
    shares: Floats | None = None  # of those bins
    notes: tuple[str, ...] = ()

    def score(self, rows: Mapping[str, Any]) -> Floats:
        """The points of every row."""
        return self._score(self.model.blocks(self.model.tables(rows)))

    def _score(self, blocks: Mapping[str, Matrix]) -> Floats:
        total = np.full(next(iter(blocks.values())).shape[0], self.base)
        for party, block in blocks.items():
            total += np.asarray(block @ np.array([line.points for line in self.of(party)]))
        return total

    def of(self, party: str) -> list[CardLine]:
        return [line for line in self.lines if line.party == party]

    def information_values(self) -> dict[str, dict[str, float]]:
        """By party and column; of those whose label counts are known."""
        found: dict[str, dict[str, float]] = {}
        for line in self.lines:
            if line.information_value is not None:
                mine = found.setdefault(line.party, {})
                mine[line.column] = mine.get(line.column, 0.0) + line.information_value
        return found

    def stability(self, rows: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """The population stability index of new rows against those that the card was made on: by party and column, and
        of the score as {"score": {"score": index}}. Each party can compute those of its columns by itself."""
        return self.stability_of(self.model.blocks(self.model.tables(rows)))

    def stability_of(self, blocks: Mapping[str, Matrix]) -> dict[str, dict[str, float]]:
        """The same of rows that are prepared."""
        if self.edges is None or self.shares is None:
            raise BadInput("Stability compares new rows with earlier ones: make the card with rows, scorecard(rows).")
        found: dict[str, dict[str, float]] = {}
        for party, block in blocks.items():
            now, lines = np.asarray(block.mean(axis=0)).ravel(), self.of(party)
            before = np.array([line.rows or 0 for line in lines], dtype=np.float64)
            for column, places in _by_column(lines):
                found.setdefault(party, {})[column] = stability_index(_share(before[places]), now[places])
        return found | {"score": {"score": stability_index(self.shares, _shares(self._score(blocks), self.edges))}}

    def table(self) -> list[dict[str, Any]]:
        """One dictionary a line, for a file or a data frame."""
        base = CardLine("", "", "base points", self.base)
        return [msgspec.to_builtins(line) for line in (base, *self.lines)]

    def __str__(self) -> str:
        wide = max(len(line.bin) for line in self.lines)
        head = f"{'party':<12} {'bin':<{wide}} {'points':>8} {'rows':>9} {'WoE':>7}"
        rows = [f"{'':<12} {'base points':<{wide}} {self.base:>8g}"]
        for line in self.lines:
            counted = "" if line.rows is None else f"{line.rows:,}"
            woe = "" if line.weight_of_evidence is None else f"{line.weight_of_evidence:.2f}"
            rows.append(f"{line.party:<12} {line.bin:<{wide}} {line.points:>8g} {counted:>9} {woe:>7}")
        return "\n".join([head, *(row.rstrip() for row in rows), "", *self.sentences()])

    def sentences(self) -> list[str]:
        found = [self.scale, f"Rounding moves a score by {self.rounding:.2g} points at most."]
        if self.ks is not None:
            found.append(f"On these rows: KS {self.ks:.3f}, AUC {self.auc:.3f}.")
        for party, values in self.information_values().items():
            told = ", ".join(f"{column} {value:.3f}" for column, value in sorted(values.items(), key=lambda kv: -kv[1]))
            found.append(f"Information values at {party}: {told}.")
        return [*found, *self.notes]


def scorecard_of(
    model: TrainedModel,
    blocks: Mapping[str, Matrix] | None = None,
    y: Any = None,
    *,
    points: float = 600.0,
    odds: float = 50.0,
    double: float = 20.0,
    good: Any = None,
    digits: int = 0,
) -> Scorecard:
    """`blocks`: prepared rows to count shares on, `y` their labels. `good`: the class that points count for; None: the
    first, as the second is the event (a default, say)."""
    _check(model, points, odds, double, digits)
    classes = model.classes or ()
    good = classes[0] if good is None else good
    if good not in classes:
        raise BadInput(f"good names {good!r}, which is no class. {did_you_mean(str(good), list(map(str, classes)))}")
    bad = next(name for name in classes if name != good)
    factor = double / log(2.0)
    upwards = factor if good == classes[1] else -factor
    base = points - factor * log(odds) + upwards * (float(np.sum(model.intercept)) + model.offset)
    lines, moved = [], abs(round(base, digits) - base)
    for party in model.names:
        exact = upwards * model.parts[party].arrays["weights"]
        rounded = np.round(exact, digits) + 0.0  # no -0
        mine = _lines(model.fitted(party), party, rounded)
        off = np.abs(rounded - exact)
        moved += sum(float(off[places].max()) for _, places in _by_column(mine))
        lines += mine
    scale = (
        f"{points:g} points are {odds:g} to 1 for {good} against {bad}; {double:g} points more double that. A row's "
        "score is the base and the points of the bins it falls into."
    )
    card = Scorecard(model, good, bad, round(base, digits), tuple(lines), moved, scale)
    return card if blocks is None else _counted(card, blocks, y)


def _check(model: TrainedModel, points: float, odds: float, double: float, digits: int) -> None:
    if model.job.embeds or model.classes is None or len(model.classes) != 2:
        raise BadInput("A scorecard is for a linear model of two classes, whose log odds are sums of points.")
    if model.loss not in ("auto", "logistic"):
        raise BadInput(f"A scorecard needs the logistic loss, which knows odds; this model has {model.loss}.")
    given: dict[str, Any] = {"points": points, "odds": odds, "double": double, "digits": digits}
    for name, value in given.items():
        whole = name == "digits"
        if not isinstance(value, Integral if whole else Real):
            raise BadInput(f"{name} must be a {'whole ' if whole else ''}number; got {value!r}.")
    if not (odds > 0 and double > 0 and np.isfinite(points)):
        raise BadInput(f"odds and double must be above 0; got odds = {odds:g}, double = {double:g}, points {points:g}.")
    for party in model.names:
        fitted = model.fitted(party)
        covered = {place for item in fitted.levels for place in range(item.span.start, item.span.stop)}
        numbers = [name for place, name in enumerate(fitted.columns) if place not in covered]
        if numbers:
            raise BadInput(
                f"A scorecard is made of bins and categories, and {numbers[0]!r} of {party} is a number "
                f'({len(numbers)} such columns). Train with prepare = "bins"; or use the coefficients by name.'
            )
        kept = fitted.preparation
        if kept.scale_indicators or kept.counts != "as-is" or kept.rows != "as-is":
            raise BadInput(f"A scorecard needs 0/1 columns, and those of {party} are scaled: {kept.sentence()}.")


def _lines(fitted: Fitted, party: str, points: Floats) -> list[CardLine]:
    owner: dict[int, str] = {}
    for item in fitted.levels:
        owner |= dict.fromkeys(range(item.span.start, item.span.stop), fitted.raw_columns[item.column])
    return [CardLine(party, owner[place], name, float(points[place])) for place, name in enumerate(fitted.columns)]


def _by_column(lines: Sequence[CardLine]) -> Iterator[tuple[str, list[int]]]:
    """The places of each raw column's bins."""
    found: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        found.setdefault(line.column, []).append(place)
    yield from found.items()


# -- counted on rows -------------------------------------------------------------------------------------------------


def _counted(card: Scorecard, blocks: Mapping[str, Matrix], y: Any) -> Scorecard:
    scores = card._score(blocks)
    is_good = None if y is None else _is_good(card, np.asarray(y), len(scores))
    lines: list[CardLine] = []
    for party, block in blocks.items():
        told = is_good if labels_may_be_counted(card.model, party) else None
        lines += _counted_lines(card.of(party), block, told)
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, SCORE_BINS + 1)[1:-1]))
    card = replace(card, lines=tuple(lines), edges=edges, shares=_shares(scores, edges))
    if is_good is None:
        return card
    hidden = [party for party in blocks if not labels_may_be_counted(card.model, party)]
    return replace(
        card,
        ks=largest_distance(scores, is_good),
        auc=area_under_curve(scores, is_good),
        notes=(_why_hidden(card.model, hidden),) if hidden else (),
    )


def _is_good(card: Scorecard, labels: Any, rows: int) -> Any:
    if labels.shape != (rows,):
        raise BadData(f"y must be one label for each of the {rows:,} rows; came an array of shape {labels.shape}.")
    strange = [label for label in np.unique(labels).tolist() if label not in (card.good, card.bad)]
    if strange:
        raise BadData(f"y holds {strange[0]!r}; the classes of this model are {card.good!r} and {card.bad!r}.")
    return labels == card.good


def _counted_lines(lines: Sequence[CardLine], block: Matrix, is_good: Any) -> list[CardLine]:
    rows = np.asarray(block.sum(axis=0)).ravel()
    if is_good is None:
        return [msgspec.structs.replace(line, rows=round(n)) for line, n in zip(lines, rows.tolist(), strict=True)]
    good = np.asarray(block.T @ is_good.astype(np.float64))
    bad, found = rows - good, list(lines)
    for _, places in _by_column(lines):
        evidence, value = weights_of_evidence(good[places], bad[places])
        for at, place in enumerate(places):
            found[place] = msgspec.structs.replace(
                lines[place],
                rows=round(rows[place]),
                good=round(good[place]),
                bad=round(bad[place]),
                weight_of_evidence=float(evidence[at]),
                information_value=float(value[at]),
            )
    return found


def weights_of_evidence(good: Floats, bad: Floats) -> tuple[Floats, Floats]:
    """ln(share of the good / share of the bad) by bin, and each bin's part of the information value. A bin that lacks
    one of the two counts half a row of each more."""
    lacking = np.where((good == 0) | (bad == 0), 0.5, 0.0)
    of_good, of_bad = (good + lacking) / max(good.sum(), 1.0), (bad + lacking) / max(bad.sum(), 1.0)
    evidence = np.log(of_good / of_bad)
    return evidence, (of_good - of_bad) * evidence


def stability_index(before: Floats, now: Floats) -> float:
    """sum (now - before) ln(now / before) over the shares of bins."""
    before, now = np.maximum(before, SHARE_LEAST), np.maximum(now, SHARE_LEAST)
    return float(np.sum((now - before) * np.log(now / before)))


def _share(counts: Floats) -> Floats:
    return counts / max(float(counts.sum()), 1.0)


def _shares(scores: Floats, edges: Floats) -> Floats:
    return _share(np.bincount(np.searchsorted(edges, scores, side="right"), minlength=len(edges) + 1).astype(float))


# -- whose labels may be counted -------------------------------------------------------------------------------------


def labels_may_be_counted(model: TrainedModel, party: str) -> bool:
    """Derivatives told every party the labels of its rows anyway, unless they were answered at random."""
    return model.job.label_dp_epsilon is None or party in label_holders(model)


def label_holders(model: TrainedModel) -> tuple[str, ...]:
    """Who brought the labels."""
    job = model.job
    brought = tuple(entry.name for entry in job.party if entry.label is not None)
    return tuple(job.labels_at) if job.labels_at is not None else brought or model.names[:1]


def _why_hidden(model: TrainedModel, parties: Sequence[str]) -> str:
    return (
        f"No weights of evidence and no information values for {', '.join(parties)}: the labels are protected by "
        f"label_dp_epsilon = {model.job.label_dp_epsilon:g}, and label counts by bin would tell more of them."
    )
