"""With everyone in step VAFL is the pooled model's stochastic gradient method, number for number."""

import numpy as np
import pytest

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Vafl, one_hot
from offbeat.algorithms.vafl.messages import Gradient, Upload
from offbeat.learning.embeddings import Adam, AdditiveHead, ClientPenalty, LinearEmbedding, Sgd
from offbeat.learning.row_order import RowOrder
from offbeat.party.contract import Received, Send
from offbeat.randomness import stream
from offbeat.runtime.simulator import CostModel, Jitter, Simulator

COLUMNS = {"ana": slice(0, 3), "bo": slice(3, 8), "cem": slice(8, 10)}
UNEVEN = CostModel(slow={"bo": 5.0}, jitter=Jitter("exponential"))


def problem(rows=90, classes=4):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 10))
    y = np.argmax(x @ rng.normal(size=(10, classes)) + rng.gumbel(size=(rows, classes)), axis=1)
    return x, y


def blocks(x):
    return {name: x[:, columns] for name, columns in COLUMNS.items()}


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def pooled_softmax_regression(x, targets, order, steps, step, ridge):
    """The slow, obvious loop: gradient step on weights and intercept, then the ridge's proximal step on the weights."""
    w, b = np.zeros((targets.shape[1], x.shape[1])), np.zeros(targets.shape[1])
    for _ in range(steps):
        rows = order.next()
        error = (softmax(x[rows] @ w.T + b) - targets[rows]) / len(rows)
        w = (w - step * error.T @ x[rows]) / (1 + step * ridge)
        b = b - step * error.sum(axis=0)
    return w, b


def test_synchronous_linear_equals_pooled_softmax_regression():
    x, y = problem()
    targets = one_hot(y, 4)
    options = Vafl(
        variant="vafl-sync",
        batch=16,
        passes=25,
        optimiser=Sgd(0.2),
        head_optimiser=Sgd(0.2),
        penalty=ClientPenalty("l2", 0.01),
    )
    embeddings = {name: LinearEmbedding(block.shape[1], 4) for name, block in blocks(x).items()}
    server, clients = vafl.build(blocks(x), targets, embeddings, AdditiveHead(4), options, seed=11)
    outcome = Simulator(seed=1, costs=UNEVEN).run([server, *clients])
    order = RowOrder(len(x), 16, "shuffled", stream(11, "server", "rows"))
    w, b = pooled_softmax_regression(x, targets, order, server.iteration, 0.2, 0.01)
    assert outcome.finished["server"].verdict == "passes"
    assert server.iteration == 150  # six batches cover ninety rows
    learned = np.concatenate([client.weights.trained["weight"] for client in clients], axis=1)
    np.testing.assert_allclose(learned, w, atol=1e-9, rtol=0)
    np.testing.assert_allclose(server.weights.trained["bias"], b, atol=1e-9, rtol=0)


def test_asynchronous_updates_equal_the_papers_loop():
    """Algorithm 1 transcribed, in the order of events that the simulator produced: every number must agree."""
    x, y = problem(rows=40, classes=3)
    targets = one_hot(y, 3)
    options = Vafl(batch=8, passes=3, optimiser=Sgd(0.1), head_optimiser=Sgd(0.1), delay_bound=None)
    features = {"ana": x[:, :5], "bo": x[:, 5:]}
    embeddings = {name: LinearEmbedding(5, 3) for name in features}
    server, clients = vafl.build(features, targets, embeddings, AdditiveHead(3), options, seed=5)
    turns = []
    outcome = Simulator(seed=2, costs=UNEVEN, checkers=[_Turns(turns)]).run([server, *clients])
    w = {name: np.zeros((3, 5)) for name in features}
    b, table = np.zeros(3), {name: np.zeros((40, 3)) for name in features}
    sent, answer = {}, {}
    for kind, name, rows in turns:
        if kind == "embed":
            sent[name] = features[name][rows] @ w[name].T
        elif kind == "write":
            table[name][rows] = sent[name]
        elif kind == "answer":
            derivative = softmax(table["ana"][rows] + table["bo"][rows] + b) - targets[rows]
            answer[name] = derivative.T @ features[name][rows] / len(rows)
            b = b - 0.1 * derivative.mean(axis=0)
        else:
            w[name] = w[name] - 0.1 * answer.pop(name)
    assert not outcome.stalled
    assert sum(kind == "step" for kind, _, _ in turns) == server.iteration == 30
    np.testing.assert_allclose(server.weights.trained["bias"], b, atol=1e-12, rtol=0)
    for client in clients:
        np.testing.assert_allclose(client.weights.trained["weight"], w[client.name], atol=1e-12, rtol=0)


class _Turns:
    """Writes down who did what, in the order in which it happened."""

    def __init__(self, turns):
        self.turns, self.rows, self.versions = turns, {}, {}

    def handled(self, now_s, party, event, effects):
        if isinstance(event, Received) and isinstance(event.body, Upload) and event.body.wanted:
            self.turns.append(("write", event.sender, event.body.rows))
        if party.name != "server" and party.version > self.versions.get(party.name, 0):
            self.versions[party.name] = party.version
            self.turns.append(("step", party.name, None))
        for effect in effects:
            body = effect.body if isinstance(effect, Send) else None
            if isinstance(body, Upload) and body.wanted:
                self.rows[party.name] = body.rows
                self.turns.append(("embed", party.name, body.rows))
            elif isinstance(body, Gradient):
                self.turns.append(("answer", effect.to, self.rows[effect.to]))

    def ended(self, outcome, parties):
        pass


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_synchronous_mlp_equals_the_same_network_trained_centrally(optimiser):
    torch = pytest.importorskip("torch", reason="networks need the deep extra")
    from offbeat.learning.networks import TorchEmbedding, TorchHead, mlp, module_with

    x, y = problem(rows=120)
    x = x.astype(np.float32)
    targets = one_hot(y, 4)
    modules = {name: mlp(b.shape[1], 6, (8,), seed=i) for i, (name, b) in enumerate(blocks(x).items())}
    top = mlp(18, 4, (10,), seed=9)
    ours = Sgd(0.1) if optimiser == "sgd" else Adam(0.01)
    options = Vafl(variant="vafl-sync", batch=30, passes=12.5, optimiser=ours, head_optimiser=ours)
    embeddings = {name: TorchEmbedding(modules[name], (b.shape[1],)) for name, b in blocks(x).items()}
    server, clients = vafl.build(blocks(x), targets, embeddings, TorchHead(top, [6, 6, 6], 4), options, seed=4)
    Simulator(seed=1, costs=UNEVEN).run([server, *clients])
    assert server.iteration == 50

    parameters = [p for module in (*modules.values(), top) for p in module.parameters()]
    rule = torch.optim.SGD(parameters, 0.1) if optimiser == "sgd" else torch.optim.Adam(parameters, 0.01)
    order = RowOrder(120, 30, "shuffled", stream(4, "server", "rows"))
    for _ in range(50):
        rows = order.next()
        joined = torch.cat([modules[name](torch.tensor(b[rows])) for name, b in blocks(x).items()], dim=1)
        loss = torch.nn.functional.cross_entropy(top(joined), torch.tensor(y[rows]))
        rule.zero_grad()
        loss.backward()
        rule.step()
    for client in clients:
        _same(module_with(client.embedding, client.weights), modules[client.name])
    _same(module_with(server.head, server.weights), top)


def _same(module, other):
    for (name, a), (_, b) in zip(module.named_parameters(), other.named_parameters(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=1e-5, rtol=0, err_msg=name)
