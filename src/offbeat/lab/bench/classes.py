"""`offbeat bench classes`: what a pass costs with ten classes, beside two, on the same columns.

One masked sum carries all classes, so ten cost less than ten times two. The whole protocol runs in the simulator:
three parties, pairwise masks, labels at one. A pass of steps and a survey are each once over the rows. Runs end when
they are certified: passes after that search for nothing, and say nothing of what training costs.
"""

import gc
import time
from statistics import median
from typing import Any

import numpy as np

from offbeat.algorithms import vfb2
from offbeat.data.vertical import vertical_from_arrays
from offbeat.families.setting import Setting, prepare
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.learning.losses import LOGISTIC, softmax
from offbeat.learning.penalties import L2
from offbeat.party.linear_options import LinearOptions
from offbeat.runtime.simulator import CostModel, Link, Simulator

PARTIES, CLASSES, STRENGTH, PASSES, TARGET, REPEATS = 3, 10, 1e-3, 20.0, 1e-8, 5
SHAPES = ((60_000, 30), (20_000, 300))


def classes(options: LabOptions) -> LabResult:
    """CPU milliseconds of a pass, by shape and method. `times`: the median over rounds of ten classes to two."""
    from threadpoolctl import threadpool_limits

    shapes = ((5_000, 30),) if options.quick else SHAPES
    with threadpool_limits(1):
        rows = [_row(*shape, method, options) for shape in shapes for method in ("svrg", "saga")]
    return LabResult(rows, notes=NOTES)


NOTES = (
    f"VFB2 in the simulator, {PARTIES} parties, labels at one, pairwise masks, lambda {STRENGTH:g}, until the "
    f"certificate is {TARGET:g}, {PASSES:g} passes at most, at the defaults; generated columns. Process CPU over "
    "passes of steps and surveys together, medians of rounds.",
)


def _row(rows: int, columns: int, method: str, options: LabOptions) -> dict[str, Any]:
    settings = [_setting(rows, columns, count, options.seed) for count in (2, CLASSES)]
    for setting in settings:
        _pass_ms(setting, method)  # what is compiled, is
    rounds = []
    for turn in range(1 if options.quick else REPEATS):
        options.say(f"{rows:,} x {columns}, {method}: round {turn + 1}")
        rounds.append(tuple(_pass_ms(setting, method) for setting in settings))
    two, ten = map(median, zip(*rounds, strict=True))
    told = {"two_classes_ms": two, "ten_classes_ms": ten, "times": median(b / a for a, b in rounds)}
    return {"rows": rows, "columns": columns, "method": method, **told}


def _setting(rows: int, columns: int, count: int, seed: int) -> Setting:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = (x @ rng.normal(size=(columns, count)) + rng.gumbel(size=(rows, count)) * columns**0.5).argmax(axis=1)
    blocks = {f"party{i}": x[:, i::PARTIES] for i in range(PARTIES)}
    data = vertical_from_arrays(blocks, y, task="classification")
    loss = LOGISTIC if count == 2 else softmax(count)
    return prepare(data, loss=loss, penalty=L2, strength=STRENGTH, intercept=True, seed=seed)


def _pass_ms(setting: Setting, method: str) -> float:
    parties: list[Any] = vfb2.build(
        setting.new_blocks(method),
        setting.problem(),
        LinearOptions(method=method, passes=PASSES, target=TARGET),
        labels_at=setting.names[:1],
        seed=1,
        secrets_seed=1,
    )
    simulator = Simulator(costs=CostModel(link=Link(latency_s=1e-3)), timeline_max=0, digest=False)
    gc.collect()
    begin = time.process_time()
    simulator.run(parties)
    spent = time.process_time() - begin
    party = parties[0].party
    return float(1e3 * spent / (party.role.passes() + party.survey.current))


ENTRIES = (Entry("classes", "CPU of a pass: ten classes by softmax beside two", classes),)
