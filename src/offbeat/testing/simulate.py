"""Many seeds under every fault profile: safety while the world is broken, an end with a certificate once it is healed.

    python -m offbeat.testing.simulate --seeds 200                       a table, one line per profile
    python -m offbeat.testing.simulate --seed 17 --profile loss --method afsvrg-vp      one run again

A seed draws everything: the problem, the options, the costs and, unless named, the method. Faults last until a virtual
time; then the run must reach its target (VAFL: end after its passes or at its cap, and have learned). A failure prints
the line that replays it.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np

from offbeat.algorithms.methods import LINEAR
from offbeat.algorithms.vafl import VARIANTS
from offbeat.party.contract import Party
from offbeat.party.masked_sum import EPOCH_STRIDE
from offbeat.randomness import stream
from offbeat.runtime.contract import Outcome
from offbeat.runtime.simulator import PROFILES, CostModel, Jitter, Link
from offbeat.runtime.simulator.checkers import Violation
from offbeat.testing.algorithm_checks import Trial, run_trial
from offbeat.testing.embedding_cases import run_embedding_case
from offbeat.testing.linear_checkers import linear_checkers
from offbeat.testing.small_problem import (
    MODELS,
    SmallProblem,
    build_parties,
    draw_model,
    draw_options,
    draw_problem,
    lanes_of,
    method_named,
    methods_for,
    target_of,
    weights_of,
)

HEALED_AFTER_S = 0.3
LIMIT_S = 60.0
CHECKPOINT_EVENTS = (0, 1, 40, 300)  # a crashed party comes back from its whole log, from just before, from earlier
WORKERS = 2
CHUNK = 8
KEPT_WITHIN = 1e-8
"""Sums are rounded, and a leap multiplies the rounding of its moves by its coefficients."""


@dataclass(frozen=True)
class Case:
    """One run: with the code, all that is needed to see it again."""

    seed: int
    profile: str
    method: str
    model: str = ""  # one of MODELS; empty: two classes, or a number, as the seed draws it

    def __str__(self) -> str:
        model = f" MODEL={self.model}" if self.model else ""
        return f"make replay SEED={self.seed} PROFILE={self.profile} METHOD={self.method}{model}"


@dataclass(frozen=True)
class CaseResult:
    """How a case went; `failure` is empty where all was well."""

    case: Case
    failure: str = ""
    events: int = 0
    time_s: float = 0.0
    retried: int = 0
    abandoned: int = 0
    refused: int = 0


def run_case(case: Case) -> CaseResult:
    """Run it, and say what went wrong, if anything."""
    try:
        if case.method not in VARIANTS:
            return _run(case)
        outcome, failure, counts = run_embedding_case(case.seed, case.profile, case.method)
        return CaseResult(case, failure, outcome.events, outcome.time_s, *counts)
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        place = "" if isinstance(problem, Violation) else f" ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        return CaseResult(case, failure=f"{type(problem).__name__}: {problem}{place}")


def trial_of(case: Case) -> Trial:
    """What this seed draws for a linear method."""
    kind = method_named(case.method)
    problem = draw_model(case.seed, case.model) if case.model else draw_problem(case.seed)
    options = draw_options(case.seed, kind.direction, target=target_of(kind))
    if problem.loss.grows:
        options = replace(options, by_curvature=options.by_curvature or None)
    may_lose = not kind.synchronous and len(problem.names) > 3
    if may_lose and (case.seed % 3 == 0 or case.profile == "suspicion"):
        options = replace(options, on_loss="continue")  # one may be lost, and enough are left to hide a share
    return Trial(
        build=lambda: build_parties(case.method, problem, options, case.seed),
        messages=kind.messages,
        checkers=lambda: linear_checkers(case.method, problem, options),
        converged=lambda outcome, parties: _judge(problem, parties, outcome),
        costs=_draw_costs(case, problem),
        healed_after_s=HEALED_AFTER_S,
        limit_s=LIMIT_S,
        checkpoint_events=CHECKPOINT_EVENTS[case.seed % len(CHECKPOINT_EVENTS)],
    )


def _run(case: Case) -> CaseResult:
    trial = trial_of(case)
    outcome, parties = run_trial(trial, case.profile, case.seed)
    refused = sum(party.party.sums.refused for party in parties)  # type: ignore[attr-defined]
    return CaseResult(case, trial.converged(outcome, parties), outcome.events, outcome.time_s, refused=refused)


def _draw_costs(case: Case, problem: SmallProblem) -> CostModel:
    rng = stream(case.seed, "costs")
    slow = {str(rng.choice(problem.names)): float(rng.uniform(1.0, 5.0))}
    jitter = Jitter(str(rng.choice(["none", "lognormal", "exponential"])))
    serving = str(rng.choice(["free", "full", "slow"]))
    lanes = lanes_of(case.method, case.seed)
    return CostModel(slow=slow, jitter=jitter, serving=serving, link=Link(2e-4), lanes=lanes)


def _judge(problem: SmallProblem, parties: Sequence[Party], outcome: Outcome) -> str:
    """The run reached its target, and the model that was kept is the best one it certified, or none: with the last
    roster, for a party that returns when all is over has no part in it."""
    ended = [party for party in parties if outcome.finished[party.name].verdict == "target"]
    rosters = {party.name: party.party.roster for party in ended}  # type: ignore[attr-defined]
    verdicts = {finish.verdict for name, finish in outcome.finished.items()}
    if not ended or set(rosters) != set(next(iter(rosters.values())).names):
        return f"ended with {sorted(verdicts)}: {next(iter(outcome.finished.values())).reason}"
    looks = [value for _, _, name, value in outcome.observations if name == "certificate"]
    epoch = next(iter(rosters.values())).epoch  # who was thought lost may certify an older one later
    best = min(value["objective"] for value in looks if value["snapshot"] // EPOCH_STRIDE == epoch)
    outputs = problem.loss.outputs
    nothing = {name: np.zeros(outputs * (len(columns) + 1)) for name, columns in problem.columns.items()}
    best = min(best, problem.objective(problem.pooled(nothing)))  # a model that is worse than none is not kept
    kept = problem.objective(problem.pooled(nothing | weights_of(ended)))
    if not abs(kept - best) <= KEPT_WITHIN * max(1.0, abs(kept)):
        return f"the model that was kept has objective {kept!r}, the best certified one {best!r}"
    return ""


# -- many ------------------------------------------------------------------------------------------------------------


def cases(seeds: Sequence[int], profiles: Sequence[str], methods: Sequence[str], model: str = "") -> Iterator[Case]:
    """Every seed under every profile; the methods take turns over the seeds, from another one in each profile."""
    for at, name in enumerate(profiles):
        for seed in seeds:
            yield Case(seed, name, methods[(seed + at) % len(methods)], model)


def table(results: Sequence[CaseResult], profiles: Sequence[str]) -> str:
    head = f"{'profile':<10} {'runs':>5} {'failed':>6} {'events':>9} {'retried':>8} {'abandoned':>9} {'refused':>8}"
    lines = [head]
    for name in profiles:
        rows = [r for r in results if r.case.profile == name]
        failed = sum(bool(r.failure) for r in rows)
        numbers = [sum(getattr(r, key) for r in rows) for key in ("events", "retried", "abandoned", "refused")]
        lines.append(
            f"{name:<10} {len(rows):>5} {failed:>6} {numbers[0]:>9} {numbers[1]:>8} {numbers[2]:>9} {numbers[3]:>8}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    profiles = [asked.profile] if asked.profile else list(PROFILES)
    every = methods_for(asked.model) if asked.model else [*LINEAR, *VARIANTS]
    methods = [asked.method] if asked.method else every
    seeds = [asked.seed] if asked.seed is not None else list(range(asked.seeds))
    if asked.seed is not None and not asked.method:
        wanted = [Case(asked.seed, name, method, asked.model) for name in profiles for method in methods]
    else:
        wanted = list(cases(seeds, profiles, methods, asked.model))
    began = time.monotonic()
    results = _run_all(wanted)
    print(table(results, profiles))
    failures = [result for result in results if result.failure]
    for result in failures:
        print(f"{result.case}    # {result.failure}")
    print(f"{len(results)} runs, {len(failures)} failed, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if failures else 0


def _run_all(wanted: Sequence[Case]) -> list[CaseResult]:
    if len(wanted) <= CHUNK:
        return [run_case(case) for case in wanted]
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run_case, wanted, chunksize=CHUNK))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m offbeat.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from 0 up (200)")
    parser.add_argument("--seed", type=int, help="this seed alone")
    parser.add_argument("--profile", choices=PROFILES, help="this fault profile alone")
    parser.add_argument("--model", choices=MODELS, default="", help="this model, with a linear method")
    parser.add_argument("--method", choices=[*sorted(LINEAR), *VARIANTS], help="this method alone")
    return parser


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    sys.exit(main())
