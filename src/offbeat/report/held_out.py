"""What a model is like, as pictures: on held-out rows ROC and calibration curves, the confusion table, predicted
against true numbers; its largest coefficients; and what each party is worth."""

from collections.abc import Sequence

from offbeat.metrics.held_out import HeldOut
from offbeat.metrics.record import RunRecord
from offbeat.report import numbers
from offbeat.report.charts import ChartLine, against_diagonal, value_bars
from offbeat.report.html import Markup, figure, folded, section, table, tag

SCORES = {"auc": "AUC", "accuracy": "accuracy", "explained": "share of the loss that is explained"}
CLASSES_SHOWN = 12
COALITIONS_SHOWN = 8
PARTIES_SHOWN = 12


def tested(record: RunRecord) -> list[Markup]:
    """The section on held-out rows, where the record has them."""
    seen = record.held_out
    if seen is None:
        return []
    pictures = [_roc(record, seen), _calibration(record, seen), _confusion(record, seen), _fit(seen)]
    only_a_table = not seen.roc and not seen.fit  # which may be wide
    body = tag("div", *filter(None, pictures), class_=None if only_a_table else "three fill")
    return [section("unseen", f"On {numbers.count(seen.rows)} held-out rows", body)]


def _roc(record: RunRecord, seen: HeldOut) -> Markup:
    if not seen.roc:
        return Markup("")
    auc = record.metrics.get("test_auc")
    told = f"ROC curve: AUC {numbers.short(auc)}, KS {numbers.short(seen.ks)}"
    line = ChartLine("true positive rate", seen.roc)
    return figure(told, against_diagonal(line, "false positive rate", "true positive rate", within=(0.0, 1.0)))


def _calibration(record: RunRecord, seen: HeldOut) -> Markup:
    if not seen.calibration:
        return Markup("")
    most = max(max(chance, share) for chance, share, _ in seen.calibration)
    name = str(record.data.classes[1]) if len(record.data.classes) == 2 else "the positive class"
    line = ChartLine("share", [(chance, share) for chance, share, _ in seen.calibration])
    about = f"Calibration: how often it was {name}, against the predicted chance, by tenths of the rows"
    return figure(
        about, against_diagonal(line, "predicted chance", "share of rows", within=(0.0, min(1.0, 1.05 * most)))
    )


def _confusion(record: RunRecord, seen: HeldOut) -> Markup:
    if not seen.confusion:
        return Markup("")
    names = [str(name) for name in record.data.classes] or [f"class {i}" for i in range(len(seen.confusion))]
    if len(names) > CLASSES_SHOWN:
        return tag("figure", _worst_pairs(names, seen.confusion))
    head = ("True class", *(f"as {name}" for name in names), "Right")
    rows = []
    for place, (name, counts) in enumerate(zip(names, seen.confusion, strict=True)):
        cells = [
            tag("span", numbers.count(count), class_="hit") if place == at else numbers.count(count)
            for at, count in enumerate(counts)
        ]
        rows.append((name, *cells, numbers.percent(counts[place], sum(counts))))
    about = "Confusion table: rows by true and predicted class"
    return tag("figure", table(head, rows, about, numeric=range(1, len(head))), class_="confusion")


def _worst_pairs(names: Sequence[str], confusion: Sequence[Sequence[int]]) -> Markup:
    pairs = [
        (count, names[i], names[j])
        for i, counts in enumerate(confusion)
        for j, count in enumerate(counts)
        if i != j and count
    ]
    pairs.sort(key=lambda pair: (-pair[0], pair[1:]))
    rows = [(true, taken, numbers.count(count)) for count, true, taken in pairs[:CLASSES_SHOWN]]
    return table(("True class", "Taken for", "Rows"), rows, "The most frequent mistakes", numeric=(2,))


def _fit(seen: HeldOut) -> Markup:
    if not seen.fit:
        return Markup("")
    line = ChartLine("median of the true numbers", [(told, middle) for told, _, middle, _, _ in seen.fit])
    spans = [(told, low, high) for told, low, _, high, _ in seen.fit]
    about = "True against predicted numbers: medians, and where 80 % of them lie"
    return figure(about, against_diagonal(line, "predicted", "true", spans))


def coefficients(record: RunRecord) -> list[Markup]:
    """The section on the largest coefficients of each party, where the record has them."""
    charts = [
        figure(name, value_bars([(column, value, 0.0, f"{value:+.3g}") for column, value in told.items()], name))
        for name, told in list(record.coefficients.items())[:PARTIES_SHOWN]
        if told
    ]
    lead = "The largest of each party, on its columns as it prepared them: above 0 they speak for the positive class."
    if record.data.task == "regression":
        lead = "The largest of each party, on its columns as it prepared them."
    body = tag("div", *charts, class_="three fill")
    return [section("coefficients", "Coefficients", tag("p", lead), body)] if charts else []


def worth(record: RunRecord) -> list[Markup]:
    """The section on what each party is worth, where that was computed."""
    found = record.worth
    if found is None:
        return []
    score = SCORES.get(found.score, found.score)
    rows = [
        (name, value, found.errors[name], f"{value:+.4f} ± {found.errors[name]:.4f}")
        for name, value in found.values.items()
    ]
    lead = (
        f"The score is the {score} on {numbers.count(found.rows)} held-out rows: {found.joint:.4f} with all parties, "
        f"{found.empty:.4f} without any column. The difference is shared out by Shapley values: what a party adds on "
        "average, over all orders in which the parties could join, the model trained anew for each coalition. Strokes "
        "are one standard error over the held-out rows."
    )
    shown = [(name, f"{value:.4f}") for name, value in found.coalitions.items()]
    title = "The score of each coalition"
    listed = table(("Coalition", "Score"), shown, title, numeric=(1,))
    body = tag(
        "div",
        figure("Shapley values", value_bars(rows, "What each party is worth")),
        listed if len(shown) <= COALITIONS_SHOWN else folded(title, listed),
        class_="three fill",
    )
    return [section("worth", "What each party is worth", tag("p", lead), body)]
