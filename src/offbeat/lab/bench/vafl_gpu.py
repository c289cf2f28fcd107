"""`offbeat bench vafl-gpu`: samples a second of asynchronous VAFL on CUDA, beside the same network in one piece.

Four clients with three views each, seven-layer networks, 512 numbers a row, a two-layer head, Adam: all parties on one
device. A *sample* is one row through all four networks and the head, forward and backward: in VAFL four uploads of one
row, each with its own head pass. Ours goes through the whole protocol, every message a numpy array on the host, in two
drivers: the simulator's loop (one thread; its virtual clock does not matter here) and real threads, one a party, every
message encoded. The reference is plain PyTorch: one graph, `torch.optim.Adam`, the rows already on the device. All
in one process, alternating, medians; pictures are generated, since only the speed is asked for.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.algorithms import vafl
from offbeat.algorithms.vafl import Vafl, one_hot
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.learning.embeddings import Adam

Array = NDArray[Any]
CLIENTS = 4
VIEWS, SIDE, WIDTH, CLASSES = 3, 30, 512, 10
STEP = 1e-3
NO_CUDA = "no CUDA device"


def vafl_gpu(options: LabOptions) -> LabResult:
    """On the first CUDA device, or a plain sentence where there is none."""
    import torch

    if not torch.cuda.is_available():
        options.say(NO_CUDA)
        return LabResult((), notes=(NO_CUDA,))
    quick = options.quick
    rows = measure(
        "cuda", rows=2048 if quick else 16_384, batches=(256,) if quick else (128, 512, 2048), channels=32,
        repeats=3 if quick else 5, say=options.say,
    )  # fmt: skip
    name = torch.cuda.get_device_name(0)
    notes = (
        f"Device: {name}; PyTorch {torch.__version__}; 32-bit floats, TF32 as PyTorch sets it by default.",
        "One pass over the rows each time, after a warm-up pass; medians; CUDA is synchronised before the clock is "
        "read.",
    )
    return LabResult(rows, notes=notes)


def measure(
    device: str, *, rows: int, batches: tuple[int, ...], channels: int, repeats: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Rows of the benchmark; on any device, so that it can be tried without a GPU."""
    pictures, labels = _pictures(rows)
    table = []
    for batch in batches:
        made = (pictures, labels, batch, channels, device)
        ways: dict[str, Callable[[], None]] = {
            "centralised PyTorch": _Central(*made).one_pass,
            "vafl, one thread": _Ours(*made, _in_one_thread).one_pass,
            "vafl, a thread for each party": _Ours(*made, _in_threads).one_pass,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(repeats + 1):
            for name, one_pass in ways.items():
                say(f"batch {batch}, {'warm-up' if turn == 0 else f'round {turn} of {repeats}'}: {name}")
                seconds = _seconds(one_pass, device)
                if turn:
                    times[name].append(seconds)
        table += _rows(batch, rows, times)
    return table


def _rows(batch: int, rows: int, times: dict[str, list[float]]) -> list[dict[str, Any]]:
    central = median(times["centralised PyTorch"])
    return [
        {
            "batch": batch,
            "way": name,
            "samples_per_s": round(rows / median(measured)),
            "of_centralised": round(central / median(measured), 3),
            "slowest_s": round(max(measured), 3),
            "fastest_s": round(min(measured), 3),
        }
        for name, measured in times.items()
    ]


def _pictures(rows: int) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, rows)
    shape = (rows, VIEWS, SIDE, SIDE)
    return {f"client{k}": rng.random(shape, dtype=np.float32) for k in range(CLIENTS)}, labels


def _seconds(work: Callable[[], None], device: str) -> float:
    import torch

    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


class _Central:
    """One graph over all four networks and the head."""

    def __init__(self, pictures: dict[str, Array], labels: Array, batch: int, channels: int, device: str) -> None:
        import torch

        from offbeat.learning.networks import cnn, mlp

        self.batch, self.device = batch, device
        self.rows = [torch.as_tensor(part, device=device) for part in pictures.values()]
        self.labels = torch.as_tensor(labels, device=device)
        self.modules = [cnn(VIEWS, SIDE, WIDTH, channels, seed=k).to(device) for k in range(CLIENTS)]
        self.top = mlp(CLIENTS * WIDTH, CLASSES, (128,), seed=99).to(device)
        weights = [p for module in (*self.modules, self.top) for p in module.parameters()]
        self.rule = torch.optim.Adam(weights, STEP)

    def one_pass(self) -> None:
        import torch

        order = torch.randperm(len(self.labels), device=self.device)
        for chosen in order.split(self.batch):
            joined = torch.cat([m(part[chosen]) for m, part in zip(self.modules, self.rows, strict=True)], dim=1)
            loss = torch.nn.functional.cross_entropy(self.top(joined), self.labels[chosen])
            self.rule.zero_grad(set_to_none=True)
            loss.backward()
            self.rule.step()


class _Ours:
    """Server and clients, built anew for each pass (not timed apart: the networks are small)."""

    def __init__(
        self,
        pictures: dict[str, Array],
        labels: Array,
        batch: int,
        channels: int,
        device: str,
        drive: Callable[[list[Any]], None],
    ) -> None:
        from offbeat.learning.networks import TorchEmbedding, TorchHead, cnn, mlp

        self.drive = drive
        self.targets = one_hot(labels, CLASSES)
        self.embeddings = {
            name: TorchEmbedding(cnn(VIEWS, SIDE, WIDTH, channels, seed=k), (VIEWS, SIDE, SIDE), device=device)
            for k, name in enumerate(pictures)
        }
        self.placed = {name: self.embeddings[name].place(part) for name, part in pictures.items()}
        self.head = TorchHead(mlp(CLIENTS * WIDTH, CLASSES, (128,), seed=99), [WIDTH] * CLIENTS, CLASSES, device=device)
        self.options = Vafl(
            batch=batch, passes=1.0, optimiser=Adam(STEP), head_optimiser=Adam(STEP), initial_upload=False,
            delay_bound=None, retry_s=600.0, in_flight=2,
        )  # fmt: skip

    def one_pass(self) -> None:
        """Training alone: the table starts cold, as one that has long been filled would cost the same."""
        server, clients = vafl.build(self.placed, self.targets, self.embeddings, self.head, self.options)
        self.drive([server, *clients])
        assert server.verdict == "passes", f"the run ended with {server.verdict!r}: {server.reason}"


def _in_one_thread(parties: list[Any]) -> None:
    from offbeat.runtime.simulator import Simulator

    Simulator(digest=False, timeline_max=0).run(parties)


def _in_threads(parties: list[Any]) -> None:
    from offbeat.runtime.threads import Threads

    Threads(messages=vafl.MESSAGES, timeline_max=0).run(parties)


ENTRIES = (
    Entry("vafl-gpu", "VAFL on CUDA: four convolutional clients beside the same network in one piece", vafl_gpu),
)


if __name__ == "__main__":  # python -m offbeat.lab.bench.vafl_gpu: needs numpy, scipy, msgspec and torch alone
    import json
    import sys

    result = vafl_gpu(
        LabOptions(quick="--quick" in sys.argv, say=lambda line: print(line, file=sys.stderr, flush=True))
    )
    print(json.dumps({"rows": list(result.rows), "notes": list(result.notes)}, indent=2))
