"""Small problems drawn from a seed, and the linear methods that are tried on them.

Everything a run needs is drawn from its seed: how many parties, rows and columns, dense or sparse, which loss, how
sums are hidden, how many products are in flight. So a seed and a method's name replay a run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse

from offbeat.algorithms.methods import LINEAR, LinearMethod
from offbeat.errors import BadJob
from offbeat.learning import central
from offbeat.learning.blocks import Block, make_block, with_means
from offbeat.learning.losses import GAMMA, LOGISTIC, POISSON, SQUARED, Loss, huber, softmax, weighted
from offbeat.learning.penalties import L2, Penalty, elastic_net
from offbeat.party.contract import Party, PartyName
from offbeat.party.linear_options import LinearOptions
from offbeat.party.masked_sum import SumOptions
from offbeat.party.problem import Problem
from offbeat.randomness import stream


def target_of(method: LinearMethod) -> float:
    """How near to its optimum a small problem is solved; plain stochastic gradients stay further away."""
    return 5e-3 if method.direction == "sgd" else 1e-6


@dataclass(frozen=True)
class SmallProblem:
    """Pooled data, and how its columns lie with the parties."""

    X: Any
    y: np.ndarray
    loss: Loss
    strength: float
    columns: dict[PartyName, np.ndarray]
    penalty: Penalty = L2
    labels_at: tuple[PartyName, ...] = field(default=())
    intercept: bool = False
    weights: np.ndarray = field(default_factory=lambda: np.empty(0))  # of the rows, with a mean of 1; empty: all 1

    @property
    def names(self) -> tuple[PartyName, ...]:
        return tuple(self.columns)

    def block(self, name: PartyName, method: str = "svrg") -> Block:
        terms: dict[str, Any] = {"penalty": self.penalty, "strength": self.strength, "intercept": self.intercept}
        return make_block(self.X[:, self.columns[name]], method=method, outputs=self.loss.outputs, **terms)

    def problem(self) -> Problem:
        terms = (self.loss, self.penalty, self.strength)
        return Problem(self.X.shape[0], *terms, self.y, intercept=self.intercept, weights=self.weights)

    def blocks(self, method: str = "svrg") -> dict[PartyName, Block]:
        return {name: self.block(name, method) for name in self.names}

    def pooled(self, models: dict[PartyName, np.ndarray]) -> np.ndarray:
        """The parties' models as one vector over the pooled columns and, last, the constant; output by output."""
        whole = np.zeros((self.loss.outputs, self.X.shape[1] + 1))
        for name, columns in self.columns.items():
            model = models[name].reshape(self.loss.outputs, -1)
            whole[:, columns] = model[:, :-1]
            whole[:, -1] += model[:, -1]
        return whole.ravel()

    def objective(self, w: np.ndarray) -> float:
        """Of weights over the pooled columns and, last, the constant."""
        loss = weighted(self.loss, self.weights)
        ones: Any = np.ones((len(self.y), 1))
        stack: Any = scipy.sparse.hstack if scipy.sparse.issparse(self.X) else np.hstack
        return central.objective(stack([self.X, ones]), self.y, w, loss, self.penalty, self.strength, free=1)

    def with_ones(self) -> np.ndarray:
        """The pooled columns and, last, a column of ones."""
        return np.hstack([self.dense(), np.ones((len(self.y), 1))])

    def dense(self) -> np.ndarray:
        return np.asarray(scipy.sparse.csr_matrix(self.X).toarray())


def draw_problem(
    seed: int,
    *,
    parties: int | None = None,
    rows: int | None = None,
    sparse: bool | None = None,
    loss: Loss | None = None,
    strength: float = 0.02,
    intercept: bool | None = None,
) -> SmallProblem:
    """A problem whose rows have norm about one; what is not given is drawn."""
    rng = stream(seed, "small problem")
    count = int(rng.integers(3, 6)) if parties is None else parties
    rows = int(rng.integers(200, 401)) if rows is None else rows
    width = count * int(rng.integers(2, 6))
    thin = bool(rng.random() < 0.4) if sparse is None else sparse
    loss = (LOGISTIC if rng.random() < 0.7 else SQUARED) if loss is None else loss
    X = rng.standard_normal((rows, width)) / np.sqrt(width)
    if thin:
        X *= rng.random((rows, width)) < 0.3
    score = X @ (3.0 * rng.standard_normal(width))
    y = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), 1.0, -1.0) if loss is LOGISTIC else score
    if loss is not LOGISTIC:
        y = y + 0.1 * rng.standard_normal(rows)
    names = [f"party{i}" for i in range(count)]
    columns = dict(zip(names, np.array_split(rng.permutation(width), count), strict=True))
    data = scipy.sparse.csr_matrix(X) if thin else X
    labels_at = tuple(names[: int(rng.integers(1, count))])
    constant = bool(rng.random() < 0.5) if intercept is None else intercept
    return SmallProblem(data, y, loss, strength, columns, labels_at=labels_at, intercept=constant)


def draw_model(seed: int, model: str) -> SmallProblem:
    """The same with another model than two classes or a plain number: one of MODELS."""
    problem, rng = draw_problem(seed, loss=LOGISTIC), stream(seed, model)
    return MODELS[model](problem, rng)


def _softmax_problem(problem: SmallProblem, rng: np.random.Generator) -> SmallProblem:
    classes = int(rng.integers(3, 6))
    scores = problem.dense() @ (3.0 * rng.standard_normal((problem.X.shape[1], classes)))
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.float64)
    return replace(problem, y=y, loss=softmax(classes))


def _weighted_problem(problem: SmallProblem, rng: np.random.Generator) -> SmallProblem:
    """Some rows count for nothing, some for ten times as much as others."""
    weights = rng.choice([0.0, 0.3, 1.0, 3.0], len(problem.y))
    return replace(problem, weights=weights / weights.mean())


def _rate_of(problem: SmallProblem, rng: np.random.Generator) -> np.ndarray:
    scores: np.ndarray = problem.dense() @ (1.5 * rng.standard_normal(problem.X.shape[1])) + rng.uniform(-2.0, 4.0)
    return np.asarray(np.exp(scores))


def _poisson_problem(problem: SmallProblem, rng: np.random.Generator) -> SmallProblem:
    """Counts over exposures of different length: rates, weighted by exposure."""
    exposure = rng.uniform(0.2, 2.0, len(problem.y))
    y = rng.poisson(exposure * _rate_of(problem, rng)) / exposure
    y[0] = max(y[0], 1.0)
    return replace(problem, y=y, loss=POISSON, weights=exposure / exposure.mean())


def _gamma_problem(problem: SmallProblem, rng: np.random.Generator) -> SmallProblem:
    return replace(problem, y=_rate_of(problem, rng) * rng.gamma(2.0, 0.5, len(problem.y)) + 1e-3, loss=GAMMA)


def _elastic_problem(problem: SmallProblem, rng: np.random.Generator) -> SmallProblem:
    return replace(problem, penalty=elastic_net(float(rng.uniform(0.1, 0.9))), weights=np.empty(0))


def _huber_problem(problem: SmallProblem, rng: np.random.Generator) -> SmallProblem:
    """Some labels are far from all others, and delta is about an error or more."""
    y = problem.dense() @ (rng.standard_normal(problem.X.shape[1])) + 0.2 * rng.standard_normal(len(problem.y))
    far = rng.random(len(y)) < 0.1
    return replace(problem, y=np.where(far, 3.0 + y, y), loss=huber(float(rng.choice([0.15, 0.3, 0.7]))))


MODELS: dict[str, Callable[[SmallProblem, np.random.Generator], SmallProblem]] = {
    "softmax": _softmax_problem,
    "weighted": _weighted_problem,
    "poisson": _poisson_problem,
    "gamma": _gamma_problem,
    "elastic-net": _elastic_problem,
    "huber": _huber_problem,
}


def methods_for(model: str) -> list[str]:
    """The linear methods that know this model: stochastic gradients alone are none for a loss that grows."""
    return [name for name, method in LINEAR.items() if model not in ("poisson", "gamma") or method.direction != "sgd"]


def draw_options(seed: int, direction: str, **changes: Any) -> LinearOptions:
    """Options as varied as users' are; `changes` win."""
    rng = stream(seed, "options")
    scheme = str(rng.choice(["pairwise", "pairwise", "pairwise", "two-tree"]))
    options = LinearOptions(
        method=direction,
        passes=400.0,
        batch=int(rng.choice([16, 32, 64])),
        in_flight=int(rng.integers(1, 4)),
        lag_max=int(rng.choice([0, 0, 40])),
        survey_passes=[None, 0.25, 1.0, 2.0][int(rng.integers(4))],
        leap=bool(rng.random() < 0.75),
        sums=SumOptions(scheme=scheme),
        by_curvature=None if direction == "sgd" else [None, True, False][int(rng.integers(3))],
    )
    if options.survey_passes == 2.0 and options.leap and direction != "sgd":
        options = replace(options, survey_passes=0.0)  # surveys alone, which overlap
    options = replace(options, sums=replace(options.sums, in_step=bool(rng.random() < 0.3)))
    return replace(options, **changes)


def build_parties(
    method: str, problem: SmallProblem, options: LinearOptions, seed: int = 0, only: PartyName | None = None
) -> list[Party]:
    """The parties of one run, with keys from the seed: the same call gives the same parties."""
    kind = method_named(method)
    options = replace(options, asynchronous=not kind.synchronous)
    labels_at = problem.names if kind.labels_everywhere else problem.labels_at or problem.names[:1]
    more = {} if kind.labels_everywhere else {"lanes": lanes_of(method, seed)}
    return list(
        kind.build(
            problem.blocks(kind.direction) if only is None else _blocks_for(problem, only, kind.direction),
            problem.problem(),
            options,
            synchronous=kind.synchronous,
            labels_at=labels_at,
            seed=seed,
            run=f"run-{seed}",
            secrets_seed=seed,
            only=only,
            **more,
        )
    )


def lanes_of(method: str, seed: int) -> int:
    """Every fourth seed gives the parties of VFB2 two lanes each."""
    kind = method_named(method)
    return 2 if not kind.labels_everywhere and not kind.synchronous and seed % 4 == 3 else 1


def _blocks_for(problem: SmallProblem, only: PartyName, method: str) -> dict[PartyName, Block]:
    block = problem.block(only, method)
    return dict.fromkeys(problem.names, block)


def method_named(name: str) -> LinearMethod:
    if name not in LINEAR:
        raise BadJob(f"Unknown method {name!r}; one of {', '.join(LINEAR)} is expected.")
    return LINEAR[name]


def weights_of(parties: Sequence[Party]) -> dict[PartyName, np.ndarray]:
    return {party.name: weights(party) for party in parties}


def weights(party: Party) -> np.ndarray:
    """A party's part of the model: for each of its columns, as they are, and the constant last; output by output."""
    block: Block = party.block  # type: ignore[attr-defined]
    found: np.ndarray = with_means(block.means, block.weights()).ravel()
    return found
