"""Private products: the area under the curve against epsilon, on two sets of loans (generated rows without them).

Rounds, step and clip are chosen on training rows of UCI credit that are held out for it. Test rows, and the second set
as a whole, are looked at with that setting alone.
"""

from collections.abc import Sequence
from itertools import product
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from offbeat.data.places import at_hand
from offbeat.data.vertical import VerticalData, vertical_from_dataset
from offbeat.jobs.vertical import vertical_job_from
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.lab.reproduce.bar import Bar
from offbeat.run.experiment import run_experiment


class NoisyRounds(NamedTuple):
    """One setting."""

    rounds: int
    step: float
    clip: float

    def __str__(self) -> str:
        return f"{self.rounds} rounds, a step of {self.step:g}, a clip of {self.clip:g}"


PARTIES, DELTA = 3, 1e-6
EPSILONS, NO_NOISE = (0.3, 1.0, 3.0, 10.0, 30.0), 1e6
SETS = {"UCI credit": "uci_credit_card", "GiveMeSomeCredit": "give_me_some_credit"}
GRID = tuple(NoisyRounds(*values) for values in product((3, 6, 10), (0.5, 1.0, 2.0), (0.05, 0.1, 0.25)))
CHOICE_EPSILONS, FOLDS = EPSILONS[:4], 2
CHOSEN = NoisyRounds(10, 2.0, 0.25)  # by the whole run; the quick one does not choose
QUICK_ROWS = 6000
NOTES = (
    "Unit: the features of one row at one party, replace-one, over the whole run, against any one other party. The "
    "way through the weights is counted. Labels are not covered.",
    f"One setting for all epsilons, the best of {len(GRID)} on average over epsilon 0.3, 1, 3 and 10, on a fifth of "
    f"UCI credit's training rows that was held out for it, {FOLDS} times. Test rows had no part in this choice. They "
    "did have one in the form of the method (decision 0114), so UCI credit may still look somewhat too good; no row of "
    "GiveMeSomeCredit had a part in anything. A choice on a party's own rows costs budget; on other rows, as for the "
    "second set, it is free. Noise is seeded.",
    'The row "no noise to speak of" is the same method at epsilon 1,000,000: what is lost there is lost by the steps, '
    "and not by noise. The row vfb2-saga is the default method, with its certificate and exact products.",
)


def product_privacy(options: LabOptions) -> LabResult:
    sets = {title: _data(name, options) for title, name in SETS.items()}
    seeds = range(options.seed, options.seed + (1 if options.quick else 5))
    wanted = (*(EPSILONS[1:4] if options.quick else EPSILONS), NO_NOISE)
    with Bar((len(wanted) + 1) * len(sets) + 1, options.say) as bar:
        bar.begin("choosing the setting")
        tried = CHOSEN if options.quick else chosen(sets["UCI credit"][0])
        rows = [row for title in sets for row in _rows(title, *sets[title], tried, wanted, seeds, bar)]
    smaller = f"{QUICK_ROWS:,} rows, one seed" if options.quick else ""
    return LabResult(rows, _figure(rows, options), (f"The setting: {tried}.", *NOTES), smaller=smaller)


def chosen(data: VerticalData) -> NoisyRounds:
    """The best setting on held-out training rows, on average over epsilons and folds."""
    folds = [held_out_fold(data, seed) for seed in range(FOLDS)]
    return max(
        GRID,
        key=lambda tried: mean(
            _area(_run(fold, epsilon, seed, tried)) for epsilon in CHOICE_EPSILONS for seed, fold in enumerate(folds)
        ),
    )


def held_out_fold(data: VerticalData, seed: int) -> VerticalData:
    """The training rows alone, a fifth of them in the place of the test rows."""
    test = np.random.default_rng([seed, data.rows]).permutation(data.rows) < data.rows // 5
    return data.holding_out(test)


def _rows(
    title: str, data: VerticalData, real: bool, tried: NoisyRounds, wanted: Sequence[float], seeds: range, bar: Bar
) -> list[dict[str, Any]]:
    bar.begin(f"{title}, exact products")
    exact = _area(run_experiment(data, vertical_job_from({"target": 1e-4, "optimum": False})).record)
    one = _area(_run(data, EPSILONS[0], 0, tried._replace(rounds=1)))
    rows = [
        _plain_row(f"{title}, vfb2-saga, exact products, {_size(data, real)}", exact, "features can be solved for"),
        _plain_row(f"{title}, one step from zero", one, "the first products are zero: no row is asked for"),
    ]
    for epsilon in wanted:
        bar.begin(f"{title}, epsilon {epsilon:g}")
        rows.append(_private_row(title, data, epsilon, seeds, exact, tried))
    return [{**row, "set": title} for row in rows]


def _data(name: str, options: LabOptions) -> tuple[VerticalData, bool]:
    found, limit = at_hand(name, options.data_dir), QUICK_ROWS if options.quick else None
    terms: dict[str, Any] = {"labels_at": ["bank"], "limit_rows": limit, "seed": 0, "data_dir": options.data_dir}
    return vertical_from_dataset(found, PARTIES, **terms), found == name


def _size(data: VerticalData, real: bool) -> str:
    return f"{data.rows:,} rows{'' if real else ' (generated)'}"


def _plain_row(setting: str, area: float, verdict: str) -> dict[str, Any]:
    return {"setting": setting, "ours": round(area, 4), "published": "none", "verdict": verdict, "epsilon": None}


def _private_row(
    title: str, data: VerticalData, epsilon: float, seeds: range, exact: float, tried: NoisyRounds
) -> dict[str, Any]:
    found = [_run(data, epsilon, seed, tried) for seed in seeds]
    areas = [_area(record) for record in found]
    said = next(iter(found[0].privacy.values()))
    name = "no noise to speak of" if epsilon == NO_NOISE else f"epsilon {epsilon:g}, delta {DELTA:g}"
    return {
        "setting": f"{title}, private products, {name}",
        "ours": round(mean(areas), 4),
        "published": "none",
        "verdict": f"{mean(areas) - exact:+.3f} against exact products; {min(areas):.3f} to {max(areas):.3f}",
        "epsilon": epsilon,
        "deviation": round(said["deviation"], 2),
        "seeds": len(areas),
    }


def _run(data: VerticalData, epsilon: float, seed: int, tried: NoisyRounds) -> Any:
    job = {"algorithm": "vfb-sgd", "product_epsilon": epsilon, "product_delta": DELTA, "step": tried.step, "seed": seed}
    products = {"rounds": tried.rounds, "clip": tried.clip}
    return run_experiment(data, vertical_job_from({**job, "products": products, "optimum": False})).record


def _area(record: Any) -> float:
    return float(record.metrics["test_auc"])


def _figure(rows: list[dict[str, Any]], options: LabOptions) -> Any:
    from offbeat.report import figures

    panels = []
    for title in SETS:
        of_set = [row for row in rows if row["set"] == title]
        noisy = [row for row in of_set if row["epsilon"] is not None and row["epsilon"] < NO_NOISE]
        private = figures.Curve("private products", [(row["epsilon"], row["ours"]) for row in noisy], 0)
        plain = figures.Curve("the same without noise", [(row["epsilon"], of_set[-1]["ours"]) for row in noisy], 1)
        axes, level = (f"epsilon (delta {DELTA:g})", "area under the curve"), ("exact products", of_set[0]["ours"])
        panels.append(figures.Panel(title, *axes, [private, plain], log_x=True, level=level))
    return list(figures.draw_panels(panels, options.out / "product-privacy", columns=2, title="Private products"))


ENTRIES = (
    Entry(
        "product-privacy",
        "Private products: area under the curve against epsilon, on two sets of loans",
        product_privacy,
    ),
)
