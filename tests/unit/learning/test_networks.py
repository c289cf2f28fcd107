"""Networks as embeddings and heads: gradients against plain autograd, noise, buffers, weights on disk."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="networks need the deep extra")

from offbeat.algorithms import vafl  # noqa: E402
from offbeat.errors import BadJob  # noqa: E402
from offbeat.learning.embedding_table import HostShelf  # noqa: E402
from offbeat.learning.embeddings import Adam, AdditiveHead, Disturbance, LinearEmbedding, Sgd, Weights  # noqa: E402
from offbeat.learning.grid import Grid, round_rows  # noqa: E402
from offbeat.learning.networks import (  # noqa: E402
    DeviceShelf,
    Perturb,
    TorchEmbedding,
    TorchHead,
    cnn,
    lstm,
    mlp,
    module_with,
    step_together,
)

QUIET = Disturbance()
ROWS = np.array([2, 0, 3])
EMBEDDINGS = {
    "mlp": lambda: TorchEmbedding(mlp(5, 3, (4,)), (5,), final="tanh"),
    "cnn": lambda: TorchEmbedding(cnn(2, 8, width=3, channels=2), (2, 8, 8)),
    "lstm": lambda: TorchEmbedding(lstm(2, 3, hidden=4), (6, 2)),
}


def grid_of(clip):
    return Grid(clip / 2**20, 2**20)


def drawn(embedding, rows=4, seed=0):
    rng = np.random.default_rng(seed)
    return embedding.place(rng.normal(size=(rows, *embedding.example)).astype(np.float32)), rng


@pytest.mark.parametrize("kind", EMBEDDINGS)
@pytest.mark.parametrize("clip", [None, 0.3])
def test_row_gradients_add_up_to_autograd(kind, clip):
    embedding = EMBEDDINGS[kind]()
    features, rng = drawn(embedding)
    weights = embedding.initial(rng)
    derivative = rng.normal(size=(3, 3))
    grid = None if clip is None else grid_of(clip)
    noise = rng.normal(size=(3, 3)) if clip is None else rng.integers(-9999, 9999, size=(3, 3))
    disturbance = Disturbance(grid, noise)
    forward = embedding.forward(weights, features, ROWS, disturbance)
    mean = embedding.to_arrays(embedding.gradient(forward, derivative))
    each = embedding.to_arrays(embedding.row_gradients(forward, derivative))
    for name, value in mean.items():
        np.testing.assert_allclose(each[name].mean(axis=0), value, atol=1e-5)
    for row in range(3):  # the slow, obvious way: one row at a time
        alone = Disturbance(grid, noise[row : row + 1])
        single = embedding.forward(weights, features, ROWS[row : row + 1], alone)
        for name, value in embedding.to_arrays(embedding.gradient(single, derivative[row : row + 1])).items():
            np.testing.assert_allclose(each[name][row], value, atol=1e-5)


@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_grid_sum_bounds_every_row(kind):
    embedding = EMBEDDINGS[kind]()
    features, rng = drawn(embedding)
    forward = embedding.forward(embedding.initial(rng), features, ROWS, QUIET)
    derivative = 100 * rng.normal(size=(3, 3))
    each = embedding.to_arrays(embedding.row_gradients(forward, derivative))
    norms = np.sqrt(sum((value.reshape(3, -1) ** 2).sum(axis=1) for value in each.values()))
    assert norms.min() > 0.5
    grid = grid_of(0.5)
    for name, value in embedding.grid_sum(forward, derivative, grid).items():
        assert value.dtype == np.int64
        np.testing.assert_allclose(value * grid.step, np.tensordot(0.5 / norms, each[name], 1), atol=1e-3)


@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_an_embedding_on_a_grid_has_no_other_bits(kind):
    """What leaves must be a function of whole numbers: equal where they are, whatever the network's own last bits."""
    embedding = EMBEDDINGS[kind]()
    features, rng = drawn(embedding)
    grid, noise = grid_of(0.3), rng.integers(-(2**22), 2**22, size=(3, 3))
    forward = embedding.forward(embedding.initial(rng), features, ROWS, Disturbance(grid, noise))
    with torch.no_grad():
        whole = round_rows(embedding.module(features[torch.as_tensor(ROWS)]).numpy(), grid)
        expected = embedding.final(torch.as_tensor((whole + noise) * grid.step, dtype=torch.float32))
    assert np.array_equal(forward.embedding, expected.numpy())


def test_a_linear_module_is_the_linear_embedding():
    module = torch.nn.Linear(5, 3)
    ours = LinearEmbedding(5, 3, bias=True)
    theirs = TorchEmbedding(module, (5,), dtype=np.float64)
    x, rng = np.random.default_rng(1).normal(size=(4, 5)), np.random.default_rng(2)
    weights = Weights(
        {"weight": module.weight.detach().double().numpy(), "bias": module.bias.detach().double().numpy()}, {}
    )
    disturbance = Disturbance(grid_of(0.4), rng.integers(-9999, 9999, size=(3, 3)))
    a = ours.forward(weights, ours.place(x), ROWS, disturbance)
    b = theirs.forward(theirs.initial(rng), theirs.place(x), ROWS, disturbance)
    np.testing.assert_allclose(a.embedding, b.embedding, atol=1e-12)
    derivative = rng.normal(size=(3, 3))
    one, other = ours.gradient(a, derivative), theirs.gradient(b, derivative)
    sums = ours.grid_sum(a, derivative, grid_of(0.7)), theirs.grid_sum(b, derivative, grid_of(0.7))
    for name in ("weight", "bias"):
        np.testing.assert_allclose(one[name], other[name].numpy(), atol=1e-12)
        np.testing.assert_allclose(sums[0][name], sums[1][name], atol=1)
    assert theirs.work == ours.work == 15


def test_the_graph_of_an_upload_survives_a_step():
    embedding = EMBEDDINGS["mlp"]()
    features, rng = drawn(embedding)
    weights = embedding.initial(rng)
    forward = embedding.forward(weights, features, ROWS, QUIET)
    before = embedding.to_arrays(embedding.gradient(forward, np.ones((3, 3))))
    forward = embedding.forward(weights, features, ROWS, QUIET)
    moved = Weights({name: value - 0.5 for name, value in weights.trained.items()}, weights.kept)
    embedding.forward(moved, features, ROWS, QUIET)
    after = embedding.to_arrays(embedding.gradient(forward, np.ones((3, 3))))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_uniform_noise_has_the_stated_deviation_and_repeats_with_its_seed():
    embedding = TorchEmbedding(torch.nn.Sequential(torch.nn.Identity(), Perturb(0.5)), (3,))
    features = embedding.place(np.zeros((4000, 3)))
    rows = np.arange(4000)
    noisy = embedding.forward(embedding.initial(np.random.default_rng()), features, rows, Disturbance(inner_seed=7))
    again = embedding.forward(embedding.initial(np.random.default_rng()), features, rows, Disturbance(inner_seed=7))
    quiet = embedding.forward(embedding.initial(np.random.default_rng()), features, rows, QUIET)
    np.testing.assert_array_equal(noisy.embedding, again.embedding)
    assert np.all(quiet.embedding == 0)
    assert noisy.embedding.std() == pytest.approx(0.5, rel=0.03)
    assert np.abs(noisy.embedding).max() <= 0.5 * np.sqrt(3) + 1e-6


def test_batch_norm_statistics_are_kept_and_restored():
    embedding = TorchEmbedding(cnn(1, 8, width=3, channels=2, batch_norm=True), (1, 8, 8))
    features, rng = drawn(embedding, rows=16)
    weights = embedding.initial(rng)
    for _ in range(3):
        weights = Weights(weights.trained, embedding.forward(weights, features, np.arange(16), QUIET).kept)
    counts = [value for name, value in weights.kept.items() if "num_batches" in name]
    assert counts and all(int(count) == 3 for count in counts)
    loaded = Weights(*(embedding.from_arrays(embedding.to_arrays(part)) for part in weights))
    expected = embedding.infer(weights, features, np.arange(16))
    np.testing.assert_array_equal(embedding.infer(loaded, features, np.arange(16)), expected)
    module = module_with(embedding, loaded).eval()
    np.testing.assert_allclose(module(features).detach().numpy(), expected, atol=1e-6)
    with pytest.raises(BadJob, match="BatchNorm2d mixes the rows"):
        embedding.check_row_gradients()
    running = TorchEmbedding(torch.nn.Sequential(torch.nn.Flatten(1), Running(5)), (5,))
    with pytest.raises(BadJob, match=r"changes 1\.total"):
        running.check_row_gradients()
    for build in EMBEDDINGS.values():
        build().check_row_gradients()


class Running(torch.nn.Module):
    """Keeps a sum of all it has seen, and mixes no rows."""

    def __init__(self, inputs):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, 2)
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.total += x.square().sum()
        return self.linear(x)


@pytest.mark.parametrize("combine", ["concat", "sum"])
def test_head_derivatives_are_those_of_autograd(combine):
    rng = np.random.default_rng(0)
    head = TorchHead(mlp(4 if combine == "sum" else 8, 3, (5,)), [4, 4], 3, combine=combine, dtype=np.float64)
    embeddings = [rng.normal(size=(6, 4)) for _ in range(2)]
    targets = np.eye(3)[rng.integers(0, 3, 6)]
    weights = head.initial(rng)
    result = head.evaluate(weights, embeddings, targets, [1])
    assert list(result.derivatives) == [1]
    assert result.loss == pytest.approx(head.loss(weights, embeddings, targets))
    step = 1e-6
    for row, column in [(0, 0), (3, 2), (5, 3)]:
        moved = [embeddings[0], embeddings[1].copy()]
        moved[1][row, column] += step
        slope = 6 * (head.loss(weights, moved, targets) - result.loss) / step
        assert result.derivatives[1][row, column] == pytest.approx(slope, abs=1e-5)


def test_an_identity_module_is_the_additive_head():
    rng = np.random.default_rng(0)
    embeddings = [rng.normal(size=(5, 3)) for _ in range(2)]
    for loss, outputs in (("softmax", 3), ("logistic", 1), ("squared", 1)):
        parts = [h[:, :outputs] for h in embeddings]
        targets = np.eye(3)[[0, 1, 2, 1, 0]][:, :outputs]
        ours = AdditiveHead(outputs, loss, bias=False)
        theirs = TorchHead(torch.nn.Identity(), [outputs] * 2, outputs, loss_name=loss, combine="sum", dtype=np.float64)
        a = ours.evaluate(ours.initial(rng), parts, targets, [0])
        b = theirs.evaluate(theirs.initial(rng), parts, targets, [0])
        assert a.loss == pytest.approx(b.loss, abs=1e-12)
        np.testing.assert_allclose(a.derivatives[0], b.derivatives[0], atol=1e-12)
        np.testing.assert_allclose(ours.scores(ours.initial(rng), parts), theirs.scores(theirs.initial(rng), parts))


def test_a_module_of_ones_own_in_five_lines():
    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(20, 64), Perturb(0.1), torch.nn.ReLU(), torch.nn.Linear(64, 16)
            )

        def forward(self, x):
            return self.net(x)

    embedding = TorchEmbedding(Mine(), (20,))
    assert (embedding.width, embedding.work) == (16, 20 * 64 + 64 * 16)


@pytest.mark.parametrize("rule", [Sgd(0.1), Adam(0.05)])
def test_a_step_over_all_tensors_is_the_step_of_each(rule):
    embedding = EMBEDDINGS["mlp"]()
    trained = embedding.initial(np.random.default_rng()).trained
    one, other = (trained, rule.initial(trained)), (trained, rule.initial(trained))
    for k in range(3):
        gradient = {name: (k + 1) * torch.ones_like(value) for name, value in trained.items()}
        one, other = rule.apply(one[0], gradient, one[1]), step_together(rule, other[0], gradient, other[1])
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(np.asarray(a[name]), np.asarray(b[name]), atol=1e-6)


def test_mistakes_are_named():
    with pytest.raises(BadJob, match=r"rows of shape \(7,\)"):
        TorchEmbedding(mlp(5, 3), (7,))
    with pytest.raises(BadJob, match="final activation"):
        TorchEmbedding(mlp(5, 3), (5,), final="sigmoid")
    with pytest.raises(BadJob, match="gives 3 scores"):
        TorchHead(mlp(8, 3), [4, 4], 2)
    if not torch.cuda.is_available():
        with pytest.raises(BadJob, match="no CUDA device"):
            TorchEmbedding(mlp(5, 3), (5,), device="cuda")


@pytest.mark.parametrize("device", ["cuda:2", "gpu", ""])
def test_a_device_that_is_not_there_is_named_with_those_that_are(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadJob, match="PyTorch sees cpu, cuda, cuda:0, cuda:1 here"):
        TorchEmbedding(mlp(5, 3), (5,), device=device)


class Pair(torch.nn.Module):
    def forward(self, x, y=None):
        return x, x


class Two(torch.nn.Linear):
    def forward(self, x, y):
        return super().forward(x + y)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (torch.nn.Sequential(torch.nn.Linear(4, 2), Pair()), "Sequential returned a tuple"),
        (Two(4, 2), r"rows of shape \(4,\).*argument"),
    ],
)
def test_a_module_that_maps_no_batch_to_a_tensor_is_refused(module, words):
    with pytest.raises(BadJob, match=words):
        TorchEmbedding(module, (4,))


def test_an_embedding_without_parameters_is_refused_before_training():
    features, embeddings = {"ana": np.ones((3, 4))}, {"ana": TorchEmbedding(torch.nn.Flatten(), (4,))}
    with pytest.raises(BadJob, match="embedding of ana has no parameters"):
        vafl.build(features, np.ones(3), embeddings, TorchHead(mlp(4, 1), [4], 1, loss_name="squared"), vafl.Vafl())


def test_a_head_without_parameters_takes_no_steps():
    head = TorchHead(torch.nn.Identity(), [2, 2], 2, combine="sum")
    for rule in (Sgd(0.1), Adam(0.1)):
        trained, memory = head.step(rule, {}, {}, rule.initial({}))
        assert trained == {} and memory.keys() == rule.initial({}).keys()
    with pytest.raises(BadJob, match="returned a tuple"):
        TorchHead(Pair(), [2, 2], 4)


def test_initial_weights_come_from_the_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    first = torch.rand(1)
    torch.manual_seed(5)
    a, b = mlp(4, 2, seed=3), mlp(4, 2, seed=3)
    assert torch.equal(torch.rand(1), first)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_a_shelf_on_a_device_keeps_what_a_shelf_in_memory_keeps():
    rng = np.random.default_rng(4)
    start = np.zeros((6, 3), dtype=np.float32)
    shelves = [HostShelf(start.copy()), DeviceShelf(start, torch.float32, "cpu")]
    for rows in (np.array([4, 1]), np.array([1, 5])):
        embedding = rng.normal(size=(2, 3)).astype(np.float32)
        for shelf in shelves:
            shelf.write(rows, embedding)
    read = [np.asarray(shelf.read(np.array([5, 1, 0]))) for shelf in shelves]
    np.testing.assert_array_equal(read[0], read[1])
    np.testing.assert_array_equal(shelves[0].to_array(), shelves[1].to_array())
    assert shelves[1].to_array().dtype == np.float32


def test_networks_made_at_the_same_time_have_the_weights_of_their_seeds():
    def made(seed):
        return [value.detach().numpy() for value in mlp(20, 4, (30, 30), seed=seed).parameters()]

    seeds = [k % 5 for k in range(200)]
    alone = {seed: made(seed) for seed in set(seeds)}
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(made, seeds))
    for seed, weights in zip(seeds, together, strict=True):
        assert all((one == two).all() for one, two in zip(weights, alone[seed], strict=True))
