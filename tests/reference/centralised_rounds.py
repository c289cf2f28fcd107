"""Rounds of a synchronous method, watched step by step and held against the centralised method on the same batches."""

from functools import partial

import numpy as np
import scipy.sparse

from offbeat.algorithms.vfb2 import Backward
from offbeat.learning import central
from offbeat.learning.sampling import BlockSampler
from offbeat.learning.steps import decayed
from offbeat.party.contract import Broadcast
from offbeat.party.masked_sum import SumOptions
from offbeat.party.member import LinearOptions
from offbeat.randomness import stream
from offbeat.runtime.simulator import CostModel, Simulator
from offbeat.testing.linear_checkers import linear_checkers
from offbeat.testing.small_problem import build_parties, method_named

SEED, BATCH, PASSES = 5, 16, 4


class Trajectory:
    """Every block's weights after each of its steps, and every derivative that was sent."""

    def __init__(self):
        self.blocks, self.derivatives = {}, []

    def handled(self, now_s, party, event, effects):
        block = party.member.block
        steps = self.blocks.setdefault(party.name, [])
        if block.version > len(steps):
            steps.append(block.weights())
        for effect in effects:
            if isinstance(effect, Broadcast) and isinstance(effect.body, Backward):
                self.derivatives.append(effect.body)

    def ended(self, outcome, parties):
        pass

    def after(self, problem, steps):
        if not steps:
            return np.zeros(problem.X.shape[1])
        return problem.pooled({name: blocks[steps - 1] for name, blocks in self.blocks.items()})


def run_rounds(method, problem, *, scheme="pairwise", by_curvature=False):
    """The trajectory, the step size and the outcome of a run in which two parties are slow."""
    options = LinearOptions(
        method=method_named(method).direction,
        passes=float(PASSES),
        batch=BATCH,
        by_curvature=by_curvature,
        sums=SumOptions(scheme=scheme),
    )
    seen, parties = Trajectory(), build_parties(method, problem, options, SEED)
    slow = {problem.names[1]: 7.0, problem.names[0]: 2.0}
    checkers = [seen, *linear_checkers(method, problem, options)]
    outcome = Simulator(seed=SEED, costs=CostModel(slow=slow), checkers=checkers).run(parties)
    return seen, parties[0].member.conduct.eta, outcome


def order_of_play(problem, outcome):
    """The batches of all rounds, and a None before the batch at which a survey was taken (but the first, at zero)."""
    rows = problem.X.shape[0]
    sampler = BlockSampler(rows, BATCH, stream(SEED, "rounds"))
    looks = [round(v["passes"] * rows) for _, _, name, v in outcome.observations if name == "certificate"]
    plan, done = [], 0
    while done < looks[-1]:
        if done and done in looks:
            plan.append(None)
        start, stop = sampler.next()
        plan.append((start, stop))
        done += stop - start
    return plan


def inverse_curvature(problem, second, w):
    """Every party's curvature within its columns, inverted: all of it where they are dense, else its diagonal."""
    metric, sparse = np.zeros((len(w), len(w))), scipy.sparse.issparse(problem.X)
    for columns in problem.columns.values():
        X = problem.dense()[:, columns]
        held = np.maximum(problem.penalty.curvature_beyond(w[columns] / 2), 1e-3)
        hessian = (X.T * second) @ X / len(X)
        hessian = np.diag(np.diag(hessian)) if sparse else hessian
        curvature = hessian + problem.strength * np.diag(held)
        ridge = 0.0 if sparse else 1e-6 * np.diag(curvature).max()
        metric[np.ix_(columns, columns)] = np.linalg.inv(curvature + ridge * np.eye(len(columns)))
    return metric


def check_rounds(method, problem, *, scheme="pairwise", by_curvature=False):
    """Every step is the centralised method's; returns the step size."""
    seen, eta, outcome = run_rounds(method, problem, scheme=scheme, by_curvature=by_curvature)
    direction = method_named(method).direction
    plan = order_of_play(problem, outcome)
    steps = sum(batch is not None for batch in plan)
    assert steps == len(seen.blocks[problem.names[0]]) >= PASSES * problem.X.shape[0] // BATCH
    assert direction != "svrg" or plan.count(None) == PASSES - 1
    plan = plan if direction == "svrg" else [batch for batch in plan if batch is not None]
    sizes = (lambda t: decayed(eta, problem.strength, t)) if direction == "sgd" else eta
    for upto in {1, 2, steps // 3, steps}:
        done, cut = 0, 0
        while done < upto:
            done += plan[cut] is not None
            cut += 1
        terms = (problem.loss, problem.penalty, problem.strength)
        metric_at = partial(inverse_curvature, problem) if by_curvature else None
        expected = central.run(problem.X, problem.y, *terms, direction, sizes, plan[:cut], metric_at=metric_at)
        assert np.abs(seen.after(problem, upto) - expected).max() < 1e-9
    return eta
