"""`offbeat bench lanes`: rows stepped in a second of wall time, with one lane a party and with two, on real threads.

A lane is a job that reads older values and runs outside of the interpreter lock; a party with one lane does the same
arithmetic in place, on its own thread. Lanes can pay only where a batch has about as many non-zeros as the block has
columns: jobs then make gradients on all columns, and applying one streams over the block and leaves the weights that
the next jobs read. On a smaller batch the party's own thread gathers and scatters as much as a step in place would.
And they pay only where there are cores for them: three parties on two cores keep both busy with one lane each
already, as soon as their steps overlap. What is compared is therefore also the case of one busy party, in which the
others hold next to nothing.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse

from offbeat.algorithms import vfb2
from offbeat.data.places import find_set
from offbeat.data.vertical import vertical_from_dataset
from offbeat.families.setting import Setting, prepare
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.learning.blocks import Block
from offbeat.learning.losses import LOGISTIC
from offbeat.learning.penalties import L2
from offbeat.party.contract import Party
from offbeat.party.linear_options import LinearOptions
from offbeat.runtime.simulator import CostModel, Link
from offbeat.runtime.threads import Threads

STRENGTH = 1e-4
BATCHES = (512, 4096)
LANES = (1, 2)
REPEATS = 5
SPAN = 2.0  # seconds of wall time in which rows are counted
TARGET = 1e-4
PASSES_MOST = 1000.0
IN_FLIGHT = 3  # one product more than lanes, so that none idles while a message is on its way
COSTED = 9


@dataclass(frozen=True)
class LanesRow:
    """One number of lanes on one problem. `times_one_lane`: the median over rounds of its rate to that of one lane;
    `at_most`: what two free cores could make of it."""

    data: str
    batch: int
    lanes: int
    rows_per_s: float
    times_one_lane: float
    spread: str
    at_most: float
    lag_mean: float
    certificate: float
    seconds_to_certificate: float


def lanes(options: LabOptions) -> LabResult:
    """Throughput and certificate of VFB2-SVRG with one lane and with two."""
    from threadpoolctl import threadpool_limits

    rows: list[LanesRow] = []
    repeats, batches = (1, BATCHES[1:]) if options.quick else (REPEATS, BATCHES)
    with threadpool_limits(1):
        for title, setting in _settings(options):
            for batch in batches:
                rows += _compare(title, setting, batch, repeats, options.quick, options.say)
    return LabResult([asdict(row) for row in rows], notes=NOTES)


NOTES = (
    "VFB2-SVRG on threads, three parties, labels at the first, pairwise masks, three products in flight, one BLAS "
    "thread. "
    f"rows_per_s: rows of one block stepped per second of wall time, counted over {SPAN:g} s after the first snapshot; "
    "rounds of one lane and two lanes alternate, and times_one_lane is the median of their ratios.",
    "certificate: the duality gap at which a run of its own ended (its target is 1e-4), and how long that took.",
    "at_most: from the CPU time of the pieces, measured one after the other: a lane's gradient is made apart and "
    "applied later, which is more arithmetic than a step in place; gathering and applying stay on the party's thread.",
    "Wall time depends on what else the machine does: compare within one row pair only.",
)


def _settings(options: LabOptions) -> list[tuple[str, Setting]]:
    name = "news20_ngrams" if find_set("news20_ngrams", options.data_dir) is not None else "news20-shaped@0.1"
    if options.quick and name == "news20_ngrams":
        name = "news20_ngrams_47k"
    data = vertical_from_dataset(name, 3, "mod", rows="pooled-unit", data_dir=options.data_dir, seed=options.seed)
    even = prepare(data, loss=LOGISTIC, penalty=L2, strength=STRENGTH, intercept=False, seed=options.seed)
    return [(f"{name}, an equal part each", even), (f"{name}, nearly all at one party", _uneven(even))]


def _uneven(setting: Setting) -> Setting:
    """The same columns, nearly all of them with the last party: one busy party."""
    first, second, last = setting.names
    train: dict[str, Any] = {name: scipy.sparse.csr_matrix(block) for name, block in setting.train.items()}
    few = 64
    moved = scipy.sparse.csr_matrix(
        scipy.sparse.hstack([train[last], train[first][:, few:], train[second][:, few:]], format="csr")
    )
    return replace(setting, train={first: train[first][:, :few], second: train[second][:, :few], last: moved}, test={})


def _compare(
    title: str, setting: Setting, batch: int, repeats: int, quick: bool, say: Callable[[str], None]
) -> list[LanesRow]:
    rates: dict[int, list[float]] = {count: [] for count in LANES}
    lags: dict[int, float] = {}
    for turn in range(repeats):
        say(f"{title}, batch {batch}: round {turn + 1} of {repeats}")
        for count in LANES if turn % 2 == 0 else LANES[::-1]:
            rate, lags[count] = _rate(setting, batch, count, SPAN / 2 if quick else SPAN)
            rates[count].append(rate)
    return [_row(title, setting, batch, count, rates, lags[count]) for count in LANES]


def _row(title: str, setting: Setting, batch: int, count: int, rates: dict[int, list[float]], lag: float) -> LanesRow:
    ratios = [rate / one for rate, one in zip(rates[count], rates[1], strict=True)]
    gap, seconds = _certified(setting, batch, count)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    at_most = 1.0 if count == 1 else _bound(setting.new_blocks()[setting.names[-1]], batch)
    return LanesRow(title, batch, count, median(rates[count]), median(ratios), spread, at_most, lag, gap, seconds)


def _bound(block: Block, batch: int) -> float:
    """The arithmetic of a share and a step in place, against what two lanes on two free cores need for the same: the
    party's own thread copies and applies, jobs share and differentiate. In CPU time of this thread, so that it does
    not depend on what else the machine does."""
    theta = np.full(batch, 0.1)
    spent: dict[str, list[float]] = {}

    def timed(part: str, work: Callable[[], Any]) -> Any:
        begin = time.thread_time()
        result = work()
        spent.setdefault(part, []).append(time.thread_time() - begin)
        return result

    starts = [at * (block.rows - batch) // COSTED for at in range(COSTED)]
    for start in starts:
        rows = (start, start + batch)
        timed("place", partial(block.share, *rows))
        timed("step", partial(block.step, *rows, theta, 0.1))
    for start in starts:
        rows = (start, start + batch)
        timed("job", timed("copy", partial(block.share_job, *rows)))
        gradient = timed("gradient", block.gradient_job(*rows, theta))
        timed("apply", partial(block.apply_gradient, gradient, batch, 0.1))
    cost = {part: median(times) for part, times in spent.items()}
    own, handed = cost["copy"] + cost["apply"], cost["job"] + cost["gradient"]
    return (cost["place"] + cost["step"]) / max(own, (own + handed) / 2)


def _rate(setting: Setting, batch: int, count: int, span_s: float) -> tuple[float, float]:
    """(rows stepped by the last party per second, its mean lag), counted from the first step on."""
    parties: list[Any] = _parties(setting, batch, count, target=None)
    busy = parties[-1]
    seen: list[tuple[float, int]] = []

    def look(now_s: float) -> float | None:
        if busy.block.version and (not seen or now_s < seen[0][0] + span_s):
            seen.append((now_s, busy.block.version * batch))
            return span_s / 20
        return None if seen and now_s >= seen[0][0] + span_s else 0.01

    gc.collect()
    Threads(messages=vfb2.MESSAGES, costs=_costs(count), timeline_max=0).run(parties, look)
    (begin_s, before), (end_s, after) = seen[0], seen[-1]
    lags = busy.party.lags
    return (after - before) / max(end_s - begin_s, 1e-9), lags.total / max(lags.count, 1)


def _certified(setting: Setting, batch: int, count: int) -> tuple[float, float]:
    parties: list[Any] = _parties(setting, batch, count, target=TARGET)
    outcome = Threads(messages=vfb2.MESSAGES, costs=_costs(count), timeline_max=0).run(parties)
    gaps = [value["gap"] for _, _, name, value in outcome.observations if name == "certificate"]
    return float(np.min(gaps)), outcome.time_s


def _parties(setting: Setting, batch: int, count: int, target: float | None) -> list[Party]:
    options = LinearOptions(
        method="svrg",
        passes=PASSES_MOST if target is not None else 1e6,
        target=target,
        batch=batch,
        in_flight=IN_FLIGHT,
    )
    blocks, problem = setting.new_blocks(), setting.problem()
    return vfb2.build(blocks, problem, options, labels_at=setting.names[:1], lanes=count, seed=1, secrets_seed=1)


def _costs(count: int) -> CostModel:
    return CostModel(link=Link(latency_s=0.0), lanes=count)


ENTRIES = (Entry("lanes", "Threads: rows stepped per second with two lanes a party, against one", lanes),)
