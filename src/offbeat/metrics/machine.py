"""What a figure was measured on: library versions and the machine, written into every run record."""

import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from offbeat.runtime.processes import usable_cores

LIBRARIES = ("numpy", "scipy", "numba", "scikit-learn", "pandas", "msgspec", "cryptography", "dp-accounting", "torch")


def offbeat_version() -> str:
    return _version("offbeat") or "0+unknown"


def library_versions() -> dict[str, str]:
    """Python and the numerical libraries that are installed; nothing is imported to find out."""
    found = {name: _version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), **{name: text for name, text in found.items() if text}}


def this_machine() -> dict[str, str | int]:
    """The processor and the cores this process may use; the threads of PyTorch, where it computed."""
    torch = sys.modules.get("torch")
    threads = {} if torch is None else {"torch_threads": int(torch.get_num_threads())}
    return {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.release()}",
        **threads,
    }


BITS_DEPEND_ON = ("numpy", "scipy", "numba", "torch")


def made_elsewhere(machine: Mapping[str, str | int], versions: Mapping[str, str]) -> str:
    """Why the last bits of a record may not be those of this machine, as a sentence; empty if nothing speaks for it."""
    names = [name for name in BITS_DEPEND_ON if name in versions]
    there = [str(machine.get("cpu", "")), *(f"{name} {versions[name]}" for name in names)]
    here = [str(this_machine()["cpu"]), *(f"{name} {_version(name)}" for name in names)]
    differ = [pair for pair in zip(there, here, strict=True) if pair[0] != pair[1]]
    if not differ:
        return ""
    then, now = (", ".join(side) for side in zip(*differ, strict=True))
    return f"The run was made on {then}; this is {now}. The last bits of a sum depend on that, and so do digests."


@contextmanager
def computing_as_on(machine: Mapping[str, str | int]) -> Iterator[None]:
    """With as many threads of PyTorch as a record's machine had: the last bits of a product depend on their number."""
    wanted = machine.get("torch_threads")
    if wanted is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(int(wanted))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def _cpu_name() -> str:
    """As its maker calls it, and as compilers do: of machines with one name, some give other last bits."""
    from llvmlite.binding import get_host_cpu_name

    return f"{_model_name()} ({get_host_cpu_name()})"


def _model_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
