"""AFSGD-VP's Table 2, Figure 6 and Figure 7."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from offbeat.data.dataset import DataSet
from offbeat.data.preparation import AS_IS
from offbeat.data.table import read_table
from offbeat.data.vertical import VerticalData, vertical_from_dataset
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.lab.reproduce.measure import Course, Kept, Pair, base_job, compare_pair

SGD, SVRG, SAGA = "SGD", "SVRG", "SAGA"


def pairs(sgd_target: float) -> dict[str, Pair]:
    return {
        SGD: Pair("afsgd-vp", "fsgd-vp", sgd_target),
        SVRG: Pair("afsvrg-vp", "fsvrg-vp", 1e-4),
        SAGA: Pair("afsaga-vp", "fsaga-vp", 1e-4),
    }


@dataclass(frozen=True)
class TableRow:
    """One row of Table 2: the set as printed, what stands for it here, and the published speed-ups."""

    printed: str
    set: str
    quick_set: str
    parties: int
    published: tuple[float, float, float]
    split: str = "equal"
    preparation: str | None = None
    sgd_target: float = 10**-2.5
    note: str = "the real set"
    seeds: int = 1


_47K = "news20_ngrams_47k"
TABLE_2 = (
    TableRow("UCICreditCard", "uci_credit_card", "uci_credit_card", 4, (1.82, 1.93, 1.95), seeds=3),
    TableRow("GiveMeSomeCredit", "give_me_some_credit", "give_me_some_credit", 4, (1.89, 2.15, 2.11), seeds=3),
    TableRow("news20", "news20_ngrams", _47K, 8, (3.37, 2.84, 2.89), "mod", note="20 Newsgroups n-grams"),
    TableRow("rcv1", _47K, _47K, 8, (3.70, 2.64, 2.28), "mod", note="20 Newsgroups n-grams, first 47,236 columns"),
    TableRow("url", "url-shaped@0.005", "url-shaped@0.001", 16, (2.74, 2.51, 2.38), "mod",
             note="generated in url's shape"),
    TableRow("webspam", "webspam-shaped@0.02", "webspam-shaped@0.005", 16, (1.96, 1.97, 1.99), "mod",
             note="generated in webspam's shape"),
    TableRow("E2006-tfidf", "e2006-shaped@0.5", "e2006-shaped@0.1", 4, (3.32, 2.89, 2.51), "mod",
             note="generated in E2006-tfidf's shape"),
    TableRow("YearPredictionMSD", "sgemm_gpu", "sgemm_gpu", 4, (2.03, 2.24, 2.26),
             note="UCI SGEMM instead, a tall regression"),
)  # fmt: skip
STRAGGLERS = (1.0, 1.4, 4.0)
QUICK_ROWS = 2000


def table2(options: LabOptions) -> LabResult:
    """Asynchronous against synchronous, three methods, one straggler across the published range of 40 to 300 %."""
    kept = Kept(options.out / ("table2-quick.json" if options.quick else "table2.json"), options.say)
    rows: list[dict[str, Any]] = []
    for row in TABLE_2[:2] + TABLE_2[-1:] if options.quick else TABLE_2:  # the wide sets take minutes each
        pending: list[Course] = []
        for method, published in zip((SGD, SVRG, SAGA), row.published, strict=True):
            options.say(f"{row.printed}, {method}")
            cells = {
                f"{slow:g}x": kept.get(
                    f"{row.printed} {method} {slow:g}",
                    partial(_cell, row, method, slow, options, pending),
                )
                for slow in (STRAGGLERS[::2] if options.quick else STRAGGLERS)
            }
            rows.append(_table_row(row, method, published, cells, options.quick))
    extra = [] if options.quick else _sensitivity(options, kept)
    return LabResult([*rows, *extra], notes=NOTES)


def _cell(row: TableRow, method: str, slow: float, options: LabOptions, pending: list[Course]) -> dict[str, Any]:
    course = _course(row, options, pending)
    slow_party = course.data.names[row.parties // 2]
    ratio, detail = compare_pair(
        course,
        pairs(row.sgd_target)[method],
        seeds=range(options.seed, options.seed + (1 if options.quick else row.seeds)),
        multiples=(1.0,) if options.quick else (0.5, 1.0, 2.0),
        slow={slow_party: slow} if slow > 1 else {},
        lanes=2 if method == SVRG else 1,
    )
    return {"ratio": ratio.median, "low": ratio.low, "high": ratio.high, "detail": detail}


def _course(row: TableRow, options: LabOptions, pending: list[Course]) -> Course:
    """Loaded once for a row, and only if some cell of it is still to be measured."""
    if not pending:
        pending.append(Course(_data(row, options), base_job(options.seed)))
    return pending[0]


def _data(row: TableRow, options: LabOptions) -> VerticalData:
    source: str | DataSet = row.quick_set if options.quick else row.set
    if row.printed in options.files:
        table = read_table(options.files[row.printed])
        task: Any = "regression" if row.printed in ("E2006-tfidf", "YearPredictionMSD") else "classification"
        source = DataSet(row.printed, "the user's own file", table, task, {"plain": AS_IS}, "plain")
    return vertical_from_dataset(
        source,
        row.parties,
        row.split,
        preparation=row.preparation if isinstance(source, str) else None,
        rows="pooled-unit",
        data_dir=options.data_dir,
        seed=options.seed,
        limit_rows=QUICK_ROWS if options.quick else None,
        split_after_one_hot=row.split == "equal",
    )


def _table_row(row: TableRow, method: str, published: float, cells: dict[str, Any], quick: bool) -> dict[str, Any]:
    ours = {slow: cell["ratio"] for slow, cell in cells.items()}
    reached = [ratio for slow, ratio in ours.items() if ratio is not None and slow != "1x"]
    low, high = _band(row.parties, 0.4), _band(row.parties, 3.0)
    if not reached:
        verdict = "a side missed its target"
    elif min(reached) <= published <= max(reached):
        verdict = "the published figure lies between our 1.4x and 4x"
    else:
        verdict = "below print" if max(reached) < published else "above print"
    setting = f"{row.printed} ({row.note}{', 2,000 rows' if quick else ''}), {method}, q={row.parties}"
    band = f"update-rate band {low:.2f} (1.4x) to {high:.2f} (4x)"
    return {"setting": setting, "ours": ours, "published": published, "verdict": verdict, "band": band, "cells": cells}


def _band(parties: int, slowness: float) -> float:
    """How much more often the parties update when one of them, (1 + s) slower, no longer holds up the rest."""
    return ((parties - 1) + 1 / (1 + slowness)) / parties * (1 + slowness)


def _sensitivity(options: LabOptions, kept: Kept) -> list[dict[str, Any]]:
    """What the table's one number hides: which block is slow, jitter, who pays for serving, latency."""
    row = TABLE_2[0]
    pending: list[Course] = []
    rows = [
        _probe(f"slow block {place} of 4, 4x", {"slow_at": place, "slow": 4.0}, row, options, kept, pending)
        for place in range(row.parties)
    ]
    for jitter in ("lognormal", "exponential"):
        for slow in (1.0, 4.0):
            setting = f"{jitter} jitter, {slow:g}x"
            rows.append(_probe(setting, {"slow": slow, "jitter": jitter}, row, options, kept, pending))
    rows.append(
        _probe("serving charged at full speed, 4x", {"slow": 4.0, "serving": "full"}, row, options, kept, pending)
    )
    rows.append(_probe("the whole machine slow, 4x", {"slow": 4.0, "serving": "slow"}, row, options, kept, pending))
    rows.append(_probe("latency of one batch, 4x", {"slow": 4.0, "latency_s": 1e-3}, row, options, kept, pending))
    return rows


def _probe(
    setting: str, how: dict[str, Any], row: TableRow, options: LabOptions, kept: Kept, pending: list[Course]
) -> dict[str, Any]:
    options.say(f"{row.printed}, SAGA, {setting}")

    def measure() -> dict[str, Any]:
        course = _course(row, options, pending)
        changes = {key: value for key, value in how.items() if key not in ("slow", "slow_at")}
        party = course.data.names[how.get("slow_at", row.parties // 2)]
        ratio, _ = compare_pair(
            course,
            pairs(row.sgd_target)[SAGA],
            seeds=range(options.seed, options.seed + 3),
            multiples=(0.5, 1.0, 2.0),
            slow={party: how["slow"]} if how["slow"] > 1 else {},
            **changes,
        )
        return {"ratio": ratio.median, "low": ratio.low, "high": ratio.high}

    cell = kept.get(f"sensitivity {setting}", measure)
    return {
        "setting": f"UCICreditCard, SAGA: {setting}",
        "ours": cell["ratio"],
        "published": None,
        "verdict": f"over three seeds {_number(cell['low'])} to {_number(cell['high'])}",
    }


def _number(value: float | None) -> str:
    return "fail" if value is None else f"{value:.2f}"


NOTES = (
    "Speed-up = virtual time of the synchronous twin / of the asynchronous method to the same sub-optimality (1e-4 for "
    "SVRG and SAGA, 10^-2.5 for SGD), both tuned over the same step grid on the first seed, looked at equally often.",
    "Read the 1x column first: it is what asynchrony gains or costs when nobody is slow.",
    "One straggler, the party in the middle of the roster; only its updating thread is slow and answering peers is "
    "free, as in the published experiments. SVRG has a spare lane for its background surveys on both sides.",
    "The print does not say which block was slow, nor how much its cluster's run times varied; both change the figure "
    "as much as the straggler does (last rows of the full table).",
)


# -- figure 6 --------------------------------------------------------------------------------------------------------


def figure6(options: LabOptions) -> LabResult:
    """Scaling with the number of workers, url."""
    from offbeat.report.figures import Curve, Panel, draw_panels

    name = "url-shaped@0.001" if options.quick else "url-shaped@0.005"
    counts = (3, 4, 8) if options.quick else (3, 4, 8, 16)
    kept = Kept(options.out / ("fig6-quick.json" if options.quick else "fig6.json"), options.say)
    times: dict[str, list[tuple[int, float | None]]] = {"afsvrg-vp": [], "fsvrg-vp": []}
    for count in counts:
        for algorithm in times:
            options.say(f"{algorithm} with {count} parties")
            time_s = kept.get(
                f"{algorithm} {count}",
                partial(_scaling_time, name, count, algorithm, options),
            )
            times[algorithm].append((count, time_s))
    rows, curves = [], []
    for tone, (algorithm, measured) in enumerate(times.items()):
        base = measured[0][1]
        gains = [(count, base / t * counts[0] if t and base else None) for count, t in measured]
        for count, gain in gains:
            published = "near the diagonal, then bends" if algorithm == "afsvrg-vp" else "clearly below"
            verdict = "not reached" if gain is None else f"{gain / count:.0%} of ideal"
            rows.append(
                {"setting": f"{algorithm}, q={count}", "ours": gain, "published": published, "verdict": verdict}
            )
        curves.append(Curve(algorithm, [(c, g) for c, g in gains if g is not None], tone))
    ideal = Curve("ideal", [(c, float(c)) for c in counts], 2)
    panel = Panel(f"{name}: q-party speed-up, SVRG", "parties q", "speed-up", [*curves, ideal])
    figures = draw_panels([panel], options.out / "afsgd-fig6", columns=1)
    notes = (
        "Anchored at q=3, the fewest parties that can hide a share; the work is split over the parties, so that a "
        "party's time per batch falls as 1/q while latency and the fixed cost of a batch stay. One party is 40 % slow.",
    )
    return LabResult(rows, figures, notes)


def _scaling_time(name: str, count: int, algorithm: str, options: LabOptions) -> float | None:
    data = vertical_from_dataset(name, count, "mod", rows="pooled-unit", seed=options.seed)
    job = base_job(options.seed)
    runtime = msgspec.structs.replace(job.runtime, per_sample_s=0.0, per_nonzero_s=2e-6, overhead_s=2e-4, lanes=2)
    course = Course(data, msgspec.structs.replace(job, runtime=runtime))
    slow = {data.names[count // 2]: 1.4}
    return course.time(algorithm, 1e-4, seed=options.seed, slow=slow).time_s


# -- figure 7 --------------------------------------------------------------------------------------------------------


def figure7(options: LabOptions) -> LabResult:
    """Where the time goes: compute, communicate, wait; and how often each party updates. Eight workers, url."""
    from offbeat.report.figures import draw_time_split

    name = "url-shaped@0.001" if options.quick else "url-shaped@0.005"
    data = vertical_from_dataset(name, 8, "mod", rows="pooled-unit", seed=options.seed)
    course = Course(data, base_job(options.seed))
    splits: dict[str, dict[str, tuple[float, float, float]]] = {}
    rows: list[dict[str, Any]] = []
    frequency_of_straggler: float | None = None
    for algorithm in ("fsaga-vp", "afsaga-vp"):
        options.say(algorithm)
        timed = course.time(algorithm, 1e-4, seed=options.seed, slow={data.names[4]: 1.4})
        record = timed.record
        splits[algorithm] = {
            name: (party.compute_s, party.communicate_s, party.wait_s) for name, party in record.parties.items()
        }
        frequencies = {name: party.updates / record.seconds for name, party in record.parties.items()}
        frequency_of_straggler = frequency_of_straggler or frequencies[data.names[4]]
        rows += _split_rows(algorithm, record, frequencies, frequency_of_straggler, data.names[4])
    figures = draw_time_split(splits, options.out / "afsgd-fig7")
    notes = ("Update frequencies are scaled by that of the synchronous straggler, as in print.",)
    return LabResult(rows, figures, notes)


def _split_rows(
    algorithm: str, record: Any, frequencies: dict[str, float], scale: float, slow: str
) -> Sequence[dict[str, Any]]:
    rows = []
    for name, party in record.parties.items():
        total = party.compute_s + party.communicate_s + party.wait_s
        ours = {
            "compute": party.compute_s / total,
            "communicate": party.communicate_s / total,
            "wait": party.wait_s / total,
            "update frequency": frequencies[name] / scale,
        }
        rounds = algorithm.startswith("fs")
        published = "the fast ones wait for the straggler" if rounds else "hardly any waiting, more communication"
        waits = ours["wait"] > 0.05
        as_printed = waits == (rounds and name != slow)
        verdict = "as printed" if as_printed else ("waits" if waits else "does not wait")
        setting = f"{algorithm}, {name}{' (slow)' if name == slow else ''}"
        rows.append({"setting": setting, "ours": ours, "published": published, "verdict": verdict})
    return rows


ENTRIES = (
    Entry("afsgd-table2", "AFSGD-VP Table 2: speed-ups of the asynchronous methods, eight sets", table2),
    Entry("afsgd-fig6", "AFSGD-VP Figure 6: speed-up with the number of workers", figure6),
    Entry("afsgd-fig7", "AFSGD-VP Figure 7: compute, communicate, wait; update frequency", figure7),
)
