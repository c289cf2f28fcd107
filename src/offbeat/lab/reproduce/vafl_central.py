"""The same model in one piece: what training with all columns in one place gives, by the same rule."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms import vafl
from offbeat.lab.reproduce.vafl_problems import VaflProblem
from offbeat.learning.embeddings import Adam, Disturbance, LinearEmbedding, Weights
from offbeat.learning.row_order import RowOrder

Array = NDArray[Any]
Look = tuple[float, float, float]
"""(passes, training loss, test metric)."""


def pooled_linear(problem: VaflProblem, batch: int, passes: float, seed: int, looks: int = 1) -> list[Look]:
    """One linear model over all columns, looked at so many times on the way."""
    x, test = (np.hstack([part[n] for n in problem.clients]) for part in (problem.features, problem.test_features))
    head, model = problem.head(), LinearEmbedding(x.shape[1], problem.targets.shape[1])
    rng = np.random.default_rng(seed)
    weights, top, rule = model.initial(rng), head.initial(rng), problem.optimiser
    order, seen = RowOrder(problem.rows, batch, "shuffled", rng), []
    steps = max(1, round(passes * problem.rows / batch))
    for number in range(1, steps + 1):
        rows = order.next()
        forward = model.forward(weights, x, rows, Disturbance())
        found = head.evaluate(top, [forward.embedding], problem.targets[rows], [0])
        trained, _ = model.step(rule, weights.trained, model.gradient(forward, found.derivatives[0]), {})
        weights = Weights(problem.penalty.proximal(trained, rule.step), {})
        top = Weights(head.step(rule, top.trained, found.gradient, {})[0], {})
        if _due(number, steps, looks):
            loss = head.loss(top, [model.infer(weights, x, np.arange(problem.rows))], problem.targets)
            scores = head.scores(top, [model.infer(weights, test, np.arange(len(test)))])
            judged = vafl.score(head, scores, problem.test_targets)[problem.metric]
            seen.append((number * batch / problem.rows, loss + problem.penalty.value(weights.trained), judged))
    return seen


def _due(number: int, steps: int, looks: int) -> bool:
    """At the end of each of so many equal parts."""
    return number * looks // steps > (number - 1) * looks // steps


def trained_centrally(problem: VaflProblem, batch: int, passes: float, seed: int, looks: int = 1) -> list[Look]:
    """The same networks in one piece by the same rule, written as plain PyTorch."""
    import torch

    embeddings, head = problem.embeddings(), problem.head()
    modules = [embeddings[name].module for name in problem.clients]  # type: ignore[attr-defined]
    top = head.module  # type: ignore[attr-defined]
    assert isinstance(problem.optimiser, Adam)
    parameters = [p for module in (*modules, top) for p in module.parameters()]
    rule = torch.optim.Adam(parameters, problem.optimiser.step)
    data = [embeddings[name].place(problem.features[name]) for name in problem.clients]
    order, seen = RowOrder(problem.rows, batch, "shuffled", np.random.default_rng(seed)), []
    steps = max(1, round(passes * problem.rows / batch))
    for number in range(1, steps + 1):
        rows = order.next()
        joined = torch.cat([module(x[torch.as_tensor(rows)]) for module, x in zip(modules, data, strict=True)], dim=1)
        loss = head._losses(top(joined), problem.targets[rows]).mean()  # type: ignore[attr-defined]
        rule.zero_grad()
        loss.backward()
        rule.step()
        if _due(number, steps, looks):
            seen.append((number * batch / problem.rows, *_judged(problem, embeddings, head)))
    return seen


def _judged(problem: VaflProblem, embeddings: dict, head: object) -> tuple[float, float]:  # type: ignore[type-arg]
    from offbeat.learning.networks import weights_of

    looked = np.random.default_rng(7).permutation(problem.rows)[: problem.looked_at]
    weights = weights_of(head.module)  # type: ignore[attr-defined]

    def embedded(features: object, rows: np.ndarray) -> list[np.ndarray]:
        return [
            embeddings[n].infer(weights_of(embeddings[n].module), embeddings[n].place(features[n]), rows)  # type: ignore[index]
            for n in problem.clients
        ]

    loss = head.loss(weights, embedded(problem.features, looked), problem.targets[looked])  # type: ignore[attr-defined]
    scores = head.scores(weights, embedded(problem.test_features, np.arange(len(problem.test_targets))))  # type: ignore[attr-defined]
    return loss, vafl.score(head, scores, problem.test_targets)[problem.metric]  # type: ignore[arg-type]
