"""Embeddings and heads as PyTorch networks (the `deep` extra). Nothing else in the package imports torch.

Any `nn.Module` is an embedding:

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(20, 64), Perturb(0.1), nn.ReLU(), nn.Linear(64, 16))
        def forward(self, x):
            return self.net(x)
    embedding = TorchEmbedding(Mine(), example=(20,))

The module is only a description: its weights travel in `Weights` and are replaced, never overwritten, so the graph of
an upload in flight stays valid while the weights move on. `Perturb` layers put the paper's uniform noise before an
activation; noise on the last layer is added by the client. Batch-norm statistics and other buffers are kept, saved
and restored beside the weights.
"""

import copy
from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offbeat.errors import BadJob, NotInstalled
from offbeat.learning.embedding_table import HostShelf, Shelf
from offbeat.learning.embeddings import (
    LOSSES,
    Disturbance,
    Forward,
    HeadPass,
    Optimiser,
    Sgd,
    Tensors,
    Weights,
    on_grid,
)
from offbeat.learning.first_weights import first_weights
from offbeat.learning.grid import Grid, Integers, sum_rounded
from offbeat.names import did_you_mean

try:
    import torch
    from torch import nn
    from torch.func import functional_call, grad, vmap
except ImportError as problem:
    raise NotInstalled("Networks need PyTorch, which is not installed: pip install 'offbeat[deep]'.") from problem

Array = NDArray[Any]
FINALS = {"identity": nn.Identity(), "relu": nn.ReLU(), "tanh": nn.Tanh()}
COMBINATIONS = ("concat", "sum")


class Perturb(nn.Module):  # type: ignore[misc]
    """Adds uniform noise of standard deviation c, fresh for every number, during noisy passes only (Eq. 20b)."""

    def __init__(self, c: float) -> None:
        super().__init__()
        self.c = c
        self.generator: Any = None

    def forward(self, x: Any) -> Any:
        if self.generator is None or self.c == 0:
            return x
        drawn = torch.rand(x.shape, generator=self.generator, device=x.device, dtype=x.dtype)
        return x + (2.0 * drawn - 1.0) * (sqrt(3.0) * self.c)


# -- embeddings -----------------------------------------------------------------------------------------------------


class _OnDevice:
    """What embeddings and heads do with tensors, each on a device of its own."""

    device: str
    _kind: Any

    def step(self, rule: Optimiser, trained: Tensors, gradient: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        return step_together(rule, trained, gradient, memory)

    def to_arrays(self, tensors: Tensors) -> dict[str, Array]:
        """Numpy copies, wherever the tensors lie."""
        return {name: np.array(v.detach().cpu().numpy() if hasattr(v, "detach") else v) for name, v in tensors.items()}

    def from_arrays(self, arrays: Mapping[str, Array]) -> Tensors:
        return {name: torch.as_tensor(np.array(value), device=self.device) for name, value in arrays.items()}

    def _tensor(self, values: Array) -> Any:
        return torch.as_tensor(values, dtype=self._kind, device=self.device)


class _Trace(NamedTuple):
    """What a gradient needs: the graph for the mean, the inputs for one gradient a row."""

    trained: Tensors
    kept: Tensors
    output: Any
    x: Any
    clip: float | None
    noise: Any


class TorchEmbedding(_OnDevice):
    """An embedding from any module that maps a batch (b, *example) to (b, width). One object for each party.

    `final` is the paper's last activation, behind the last layer's noise. `device` is this party's own.
    """

    begins_at_zero = False

    def __init__(
        self,
        module: Any,
        example: Sequence[int],
        *,
        final: str = "identity",
        device: str = "cpu",
        dtype: Any = np.float32,
    ) -> None:
        if final not in FINALS:
            raise BadJob(f"Unknown final activation {final!r}. {did_you_mean(final, FINALS)}")
        self.final = FINALS[final]
        self.device = checked_device(device)
        self.dtype = dtype
        self._kind = _kind_of(dtype)
        self.module = copy.deepcopy(module).to(self.device, self._kind)
        self.example = tuple(example)
        self.inputs = prod(self.example)
        self._perturbed = [layer for layer in self.module.modules() if isinstance(layer, Perturb)]
        self.width, self.work = _measure(self.module, self.example, self._kind, self.device)

    def place(self, features: Any) -> Any:
        if isinstance(features, torch.Tensor):
            return features.to(self.device, self._kind)
        dense = features.toarray() if hasattr(features, "toarray") else np.asarray(features)
        return torch.as_tensor(dense, dtype=self._kind).reshape(len(dense), *self.example).to(self.device)

    def initial(self, rng: np.random.Generator) -> Weights:
        """The module's own weights, as it was given."""
        return weights_of(self.module)

    def forward(self, weights: Weights, features: Any, rows: Array, disturbance: Disturbance) -> Forward:
        x = features[torch.as_tensor(rows, device=self.device)]
        trained = {name: value.detach().requires_grad_(True) for name, value in weights.trained.items()}
        kept = {name: value.clone() for name, value in weights.kept.items()}
        self._set_noise(disturbance.inner_seed)
        _switch(self.module, training=True)
        raw = functional_call(self.module, {**trained, **kept}, (x,))
        self._set_noise(None)
        if disturbance.grid is not None:
            return self._on_grid(raw, disturbance, trained, kept, x)
        noise = None if disturbance.noise is None else self._tensor(disturbance.noise)
        output = self.final(raw if noise is None else raw + noise)
        trace = _Trace(trained, kept, output, x, None, noise)
        return Forward(output.detach().cpu().numpy(), trace, kept, disturbance.noise)

    def _on_grid(self, raw: Any, disturbance: Disturbance, trained: Tensors, kept: Tensors, x: Any) -> Forward:
        """What leaves is computed from whole numbers alone; the gradient takes rounding and noise for a constant."""
        assert disturbance.grid is not None
        released, added = on_grid(raw.detach().cpu().numpy(), disturbance)
        sent, clip = self.final(self._tensor(released)).cpu().numpy(), disturbance.grid.reach(self.width)
        shift = self._tensor(released) - _clipped(raw, clip).detach()
        output = self.final(_clipped(raw, clip) + shift)
        return Forward(sent, _Trace(trained, kept, output, x, clip, shift), kept, added)

    def gradient(self, forward: Forward, derivative: Array) -> Tensors:
        trace: _Trace = forward.trace
        upstream = self._tensor(derivative) / len(derivative)
        found = torch.autograd.grad(trace.output, list(trace.trained.values()), grad_outputs=upstream)
        return dict(zip(trace.trained, found, strict=True))

    def grid_sum(self, forward: Forward, derivative: Array, grid: Grid) -> dict[str, Integers]:
        """One gradient for each row by `torch.func`."""
        gradients = self.row_gradients(forward, derivative)
        each = torch.cat([value.flatten(1) for value in gradients.values()], dim=1).cpu().numpy()
        total = sum_rounded(each, np.sqrt(np.einsum("ij,ij->i", each, each, dtype=np.float64)), grid)
        sizes = [value[0].numel() for value in gradients.values()]
        parts = np.split(total, np.cumsum(sizes)[:-1])
        shaped = zip(gradients.items(), parts, strict=True)
        return {name: part.reshape(value.shape[1:]) for (name, value), part in shaped}

    def row_gradients(self, forward: Forward, derivative: Array) -> Tensors:
        trace: _Trace = forward.trace
        upstream = self._tensor(derivative)
        noise = torch.zeros_like(upstream) if trace.noise is None else trace.noise

        def pulled(trained: Tensors, x: Any, upstream: Any, noise: Any) -> Any:
            raw = functional_call(self.module, {**trained, **trace.kept}, (x[None],))[0]
            return (self.final(_clipped(raw, trace.clip) + noise) * upstream).sum()

        detached = {name: value.detach() for name, value in trace.trained.items()}
        each: Tensors = vmap(grad(pulled), in_dims=(None, 0, 0, 0))(detached, trace.x, upstream, noise)
        return each

    def infer(self, weights: Weights, features: Any, rows: Array) -> Array:
        x = features[torch.as_tensor(rows, device=self.device)]
        _switch(self.module, training=False)
        with torch.no_grad():
            output = self.final(functional_call(self.module, {**weights.trained, **weights.kept}, (x,)))
        return np.asarray(output.cpu().numpy())

    def check_row_gradients(self) -> None:
        """One gradient a row has no meaning where rows of a batch influence each other, and buffers that a training
        pass changes carry rows into later releases without noise."""
        kinds = [type(la).__name__ for la in self.module.modules() if isinstance(la, nn.modules.batchnorm._BatchNorm)]
        if kinds:
            raise BadJob(
                f"Private mode needs one gradient for each row, and {kinds[0]} mixes the rows of a batch. Use "
                "GroupNorm or LayerNorm in the embedding, or leave `private` out."
            )
        changed = self._changing_buffers()
        if changed:
            raise BadJob(
                f"Private mode cannot count what a network keeps of its rows beside the weights, and a training pass "
                f"changes {', '.join(changed)}. Use layers without running statistics, or leave `private` out."
            )

    def _changing_buffers(self) -> list[str]:
        before = weights_of(self.module)
        if not before.kept:
            return []
        rows = torch.linspace(-1.0, 1.0, 2 * prod(self.example), dtype=self._kind, device=self.device)
        after = self.forward(before, rows.reshape(2, *self.example), np.arange(2), Disturbance()).kept
        return [name for name, value in after.items() if not torch.equal(value, before.kept[name])]

    def _set_noise(self, seed: int | None) -> None:
        for number, layer in enumerate(self._perturbed):
            layer.generator = None if seed is None else torch.Generator(device=self.device)
            if seed is not None:
                layer.generator.manual_seed((seed + 1_000_003 * number) % 2**63)


def _clipped(raw: Any, bound: float | None) -> Any:
    """Vectors scaled down to the norm `bound` where they are longer."""
    if bound is None:
        return raw
    norms = torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
    return raw * (bound / norms.clamp_min(bound))


# -- heads ----------------------------------------------------------------------------------------------------------


class DeviceShelf:
    """Embeddings kept on the head's device: a batch crosses once when it comes, and not again when it is used."""

    def __init__(self, values: Array, kind: Any, device: str) -> None:
        self.dtype, self.device = values.dtype, device
        self.tensor = torch.as_tensor(values, dtype=kind, device=device)

    def write(self, rows: Array, embedding: Array) -> None:
        self.tensor[self._at(rows)] = torch.as_tensor(embedding, dtype=self.tensor.dtype, device=self.device)

    def read(self, rows: Array) -> Any:
        return self.tensor[self._at(rows)]

    def to_array(self) -> Array:
        return np.asarray(self.tensor.cpu().numpy(), dtype=self.dtype)

    def _at(self, rows: Array) -> Any:
        return torch.as_tensor(rows, device=self.device)


class TorchHead(_OnDevice):
    """A head from any module over the concatenation or the sum of the clients' embeddings, with `outputs` scores."""

    def __init__(
        self,
        module: Any,
        widths: Sequence[int],
        outputs: int,
        *,
        loss_name: str = "softmax",
        combine: str = "concat",
        device: str = "cpu",
        dtype: Any = np.float32,
    ) -> None:
        if loss_name not in LOSSES:
            raise BadJob(f"Unknown loss {loss_name!r}. {did_you_mean(loss_name, LOSSES)}")
        if combine not in COMBINATIONS:
            raise BadJob(f"Unknown way to combine embeddings {combine!r}. {did_you_mean(combine, COMBINATIONS)}")
        self.outputs, self.loss_name, self.combine = outputs, loss_name, combine
        self.device = checked_device(device)
        self._kind = _kind_of(dtype)
        self.module = copy.deepcopy(module).to(self.device, self._kind)
        inputs = sum(widths) if combine == "concat" else widths[0]
        found, self.work = _measure(self.module, (inputs,), self._kind, self.device)
        if found != outputs:
            raise BadJob(f"The head's module gives {found} scores for {inputs} inputs; expected {outputs}.")

    def initial(self, rng: np.random.Generator) -> Weights:
        return weights_of(self.module)

    def evaluate(
        self, weights: Weights, embeddings: Sequence[Array], targets: Array, wanted: Sequence[int]
    ) -> HeadPass:
        inputs = [self._tensor(h) for h in embeddings]
        for i in wanted:
            inputs[i].requires_grad_(True)
        trained = {name: value.detach().requires_grad_(True) for name, value in weights.trained.items()}
        kept = {name: value.clone() for name, value in weights.kept.items()}
        _switch(self.module, training=True)
        losses = self._losses(functional_call(self.module, {**trained, **kept}, (self._join(inputs),)), targets)
        sources = [*trained.values(), *(inputs[i] for i in wanted)]
        found = torch.autograd.grad(losses.sum(), sources)
        gradient = {name: value / len(targets) for name, value in zip(trained, found, strict=False)}
        derivatives = [value.cpu().numpy() for value in found[len(trained) :]]
        return HeadPass(float(losses.detach().mean()), dict(zip(wanted, derivatives, strict=True)), gradient, kept)

    def shelf(self, values: Array) -> Shelf:
        return HostShelf(values) if self.device == "cpu" else DeviceShelf(values, self._kind, self.device)

    def scores(self, weights: Weights, embeddings: Sequence[Array]) -> Array:
        z = self._predict(weights, embeddings)
        if self.loss_name == "softmax":
            z = torch.softmax(z, dim=1)
        elif self.loss_name == "logistic":
            z = torch.sigmoid(z)
        return np.asarray(z.cpu().numpy())

    def loss(self, weights: Weights, embeddings: Sequence[Array], targets: Array) -> float:
        return float(self._losses(self._predict(weights, embeddings), targets).mean())

    def _predict(self, weights: Weights, embeddings: Sequence[Array]) -> Any:
        _switch(self.module, training=False)
        with torch.no_grad():
            joined = self._join([self._tensor(h) for h in embeddings])
            return functional_call(self.module, {**weights.trained, **weights.kept}, (joined,))

    def _join(self, inputs: Sequence[Any]) -> Any:
        return torch.cat(list(inputs), dim=1) if self.combine == "concat" else sum(inputs)

    def _losses(self, z: Any, targets: Array) -> Any:
        """One loss for each row; see `AdditiveHead` for the three."""
        t = self._tensor(targets)
        if self.loss_name == "softmax":
            return -(t * torch.log_softmax(z, dim=1)).sum(1)
        if self.loss_name == "logistic":
            return (nn.functional.softplus(z) - t * z).sum(1)
        return 0.5 * (z - t).square().sum(1)


# -- ready-made networks --------------------------------------------------------------------------------------------


def mlp(inputs: int, width: int, hidden: Sequence[int] = (64,), *, c: float = 0.0, seed: int = 0) -> Any:
    """Fully connected: linear, (uniform noise of deviation c,) ReLU, ..., linear."""
    with first_weights(seed):
        layers: list[Any] = []
        for size in hidden:
            layers += [nn.Linear(inputs, size), Perturb(c), nn.ReLU()]
            inputs = size
        return nn.Sequential(*layers, nn.Linear(inputs, width))


def cnn(
    views: int,
    side: int,
    width: int = 512,
    channels: int = 32,
    *,
    c: float = 0.0,
    batch_norm: bool = False,
    seed: int = 0,
) -> Any:
    """Seven layers for images of `views` channels: three pairs of 3x3 convolutions, each pair halved, and a linear."""
    with first_weights(seed):
        layers: list[Any] = []
        inputs = views
        for size in (channels, 2 * channels, 4 * channels):
            for source in (inputs, size):
                layers += [nn.Conv2d(source, size, 3, padding=1, bias=not batch_norm)]
                layers += [nn.BatchNorm2d(size)] if batch_norm else []
                layers += [Perturb(c), nn.ReLU()]
            layers.append(nn.MaxPool2d(2))
            inputs, side = size, side // 2
        for layer in layers:
            if isinstance(layer, nn.Conv2d):  # the library's own first weights shrink the signal at every layer
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * side * side, width))


class LastState(nn.Module):  # type: ignore[misc]
    """An LSTM over (batch, time, inputs), its last state, and one linear layer.

    Written out step by step: the library's fused kernels give no gradients of single rows.
    """

    def __init__(self, inputs: int, width: int, hidden: int, c: float) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)
        self.perturb = Perturb(c)
        self.linear = nn.Linear(hidden, width)

    def forward(self, x: Any) -> Any:
        arriving = self.from_input(x)
        state = cell = x.new_zeros((*x.shape[:-2], self.hidden))
        for step in range(x.shape[-2]):
            gates = arriving[..., step, :] + self.from_state(state)
            keep, forget, new, show = gates.chunk(4, dim=-1)
            cell = torch.sigmoid(forget + 1.0) * cell + torch.sigmoid(keep) * torch.tanh(new)
            state = torch.sigmoid(show) * torch.tanh(cell)
        return self.linear(self.perturb(state))


def lstm(inputs: int, width: int, hidden: int = 32, *, c: float = 0.0, seed: int = 0) -> Any:
    with first_weights(seed):
        return LastState(inputs, width, hidden, c)


# -- weights, as tensors and arrays -----------------------------------------------------------------------------------


def weights_of(module: Any) -> Weights:
    trained = {name: value.detach().clone() for name, value in module.named_parameters()}
    return Weights(trained, {name: value.detach().clone() for name, value in module.named_buffers()})


def module_with(embedding: TorchEmbedding | TorchHead, weights: Weights) -> Any:
    """An ordinary module of its own with these weights, to use outside."""
    module = copy.deepcopy(embedding.module)
    module.load_state_dict({**weights.trained, **weights.kept})
    return module


# -- steps over all tensors at once ---------------------------------------------------------------------------------


def step_together(rule: Optimiser, trained: Tensors, gradient: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
    """`rule.apply` with one kernel for all tensors where there would be one for each: on a GPU starting them costs."""
    if not trained:
        return trained, memory  # a head that only combines
    names = list(trained)
    weights, slopes = list(trained.values()), [gradient[name] for name in names]
    if isinstance(rule, Sgd):
        return dict(zip(names, torch._foreach_add(weights, slopes, alpha=-rule.step), strict=True)), memory
    count = float(memory["count"][0]) + 1.0
    first = torch._foreach_mul([memory[f"first.{name}"] for name in names], rule.beta1)
    torch._foreach_add_(first, slopes, alpha=1.0 - rule.beta1)
    second = torch._foreach_mul([memory[f"second.{name}"] for name in names], rule.beta2)
    torch._foreach_addcmul_(second, slopes, slopes, value=1.0 - rule.beta2)
    sizes = torch._foreach_sqrt(torch._foreach_div(second, 1.0 - rule.beta2**count))
    torch._foreach_add_(sizes, rule.floor)
    moved = torch._foreach_addcdiv(weights, first, sizes, value=-rule.step / (1.0 - rule.beta1**count))
    kept = {f"first.{name}": value for name, value in zip(names, first, strict=True)}
    kept |= {f"second.{name}": value for name, value in zip(names, second, strict=True)}
    return dict(zip(names, moved, strict=True)), kept | {"count": np.full(1, count)}


# -- devices and sizes ----------------------------------------------------------------------------------------------


def _switch(module: Any, *, training: bool) -> None:
    """`train()` and `eval()` walk through all layers; most calls find them as they should be."""
    if module.training is not training:
        module.train(training)


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def checked_device(device: str) -> str:
    if device != "cpu" and not torch.cuda.is_available():
        raise BadJob(f"device = {device!r} was asked for, and PyTorch sees no CUDA device here. Use device = 'cpu'.")
    seen = ["cpu", "cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if device not in seen:
        raise BadJob(f"device = {device!r} was asked for, and PyTorch sees {', '.join(seen)} here. Use one of these.")
    return device


def _kind_of(dtype: Any) -> Any:
    return torch.float64 if np.dtype(dtype) == np.float64 else torch.float32


def _measure(module: Any, example: tuple[int, ...], kind: Any, device: str) -> tuple[int, int]:
    """(width of the output, multiplications for one row), from one row of zeros."""
    counted: list[int] = []
    hooks = [layer.register_forward_hook(_counter(counted)) for layer in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            output = module(torch.zeros((1, *example), dtype=kind, device=device))
    except (RuntimeError, TypeError, ValueError, IndexError) as problem:
        raise BadJob(f"The network does not accept rows of shape {example}: {problem}") from problem
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(output, torch.Tensor):
        raise BadJob(
            f"A network must map a batch to one tensor of (rows, width); {type(module).__name__} returned a "
            f"{type(output).__name__}. Wrap it in a module whose forward picks the tensor to use."
        )
    if output.ndim != 2:
        raise BadJob(f"A network must map a batch to (rows, width); one row of {example} gave {tuple(output.shape)}.")
    return int(output.shape[1]), sum(counted)


def outputs_of(module: Any, inputs: int) -> int:
    """How many numbers a module gives for so many inputs."""
    trial = copy.deepcopy(module).to("cpu", torch.float32)
    return _measure(trial, (inputs,), torch.float32, "cpu")[0]


def _counter(counted: list[int]) -> Any:
    def count(layer: Any, inputs: Any, output: Any) -> None:
        if isinstance(layer, nn.Linear):
            counted.append(output.numel() * layer.in_features)
        elif isinstance(layer, nn.Conv2d):
            counted.append(layer.weight.numel() * prod(output.shape[-2:]))
        elif isinstance(layer, nn.LSTM):
            counted.append(inputs[0].shape[1] * sum(p.numel() for n, p in layer.named_parameters() if "weight" in n))

    return count
