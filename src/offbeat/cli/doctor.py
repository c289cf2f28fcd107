"""Is this machine ready, and if not, what would mend it?"""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from offbeat.data.load import describe_datasets
from offbeat.data.places import VARIABLE
from offbeat.metrics.machine import library_versions, offbeat_version
from offbeat.runtime.processes import usable_cores

EXTRAS = {
    "align": ("ipp-crypto", "matching millions of ids, twice as fast on processors with AVX-512 IFMA"),
    "deep": ("torch", "networks as embeddings (VAFL)"),
    "grpc": ("grpc", "organisations over gRPC, and the runtime 'processes'"),
    "mlflow": ("mlflow", "offbeat export --to mlflow"),
    "mqtt": ("paho", "edge sites over a broker"),
    "onnx": ("onnx", "a party's part of a model for other runtimes (offbeat export --onnx)"),
    "ray": ("ray", "the runtime 'ray': parties as actors of a cluster"),
    "sql": ("sqlalchemy", 'tables of databases (table = "postgresql://...")'),
    "web": ("starlette", "watching a run in the browser (offbeat watch)"),
}
NEEDED = ("numpy", "scipy", "numba", "scikit-learn", "pandas", "msgspec", "cryptography", "dp-accounting")
MEMORY_LEAST_GB = 2.0


@dataclass(frozen=True)
class Check:
    """One question. `ok` is None where an answer of no is fine; `mend`: what helps where it is not yes."""

    name: str
    ok: bool | None
    found: str
    mend: str = ""


def checks(data_dir: Path | None = None) -> list[Check]:
    asked = [*_software(), *_machine(), *_extras(), *_data(data_dir), *_places()]
    return [replace(check, mend="") if check.ok else check for check in asked]


def _software() -> Iterator[Check]:
    yield Check("offbeat", True, offbeat_version())
    yield Check("python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11 or newer")
    versions = library_versions()
    for name in NEEDED:
        found = versions.get(name, "")
        yield Check(name, bool(found), found or "not installed", "pip install --upgrade offbeat")


def _machine() -> Iterator[Check]:
    yield Check("cores", True, str(usable_cores()))
    memory = _memory_gb()
    if memory is not None:
        mend = "close other programs, or use data.limit_rows"
        yield Check("memory", memory >= MEMORY_LEAST_GB, f"{memory:.1f} GB free", mend)


def _memory_gb() -> float | None:
    info = Path("/proc/meminfo")
    if not info.is_file():
        return None
    for line in info.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1e6
    return None


def _extras() -> Iterator[Check]:
    for extra, (module, use) in EXTRAS.items():
        there, mend = _installed(module), f"for {use}: pip install 'offbeat[{extra}]'"
        yield Check(f"extra {extra}", there or None, "installed" if there else "not installed", mend)


def _installed(name: str) -> bool:
    """As a module, or as a package that has none."""
    try:
        return find_spec(name) is not None or bool(version(name))
    except PackageNotFoundError:
        return False


def _data(data_dir: Path | None) -> Iterator[Check]:
    sets = [row for row in describe_datasets(data_dir) if row.where != "generated"]
    found = [row.name for row in sets if row.where != "not found"]
    mend = f"point --data or {VARIABLE} to the folder that holds them; generated stand-ins work without"
    yield Check("real data sets", bool(found) or None, f"{len(found)} of {len(sets)} found", mend)


def _places() -> Iterator[Check]:
    yield _writable("run folders", Path("runs") if Path("runs").is_dir() else Path("."), "give --out DIR")
    yield _numba_cache()
    free = shutil.disk_usage(".").free / 1e9
    yield Check("disk", free > 1, f"{free:.1f} GB free", "free some space, or give --out DIR elsewhere")


def _writable(name: str, folder: Path, mend: str) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        return Check(name, False, f"{folder.resolve()} cannot be written to ({problem.strerror})", mend)
    return Check(name, True, f"{folder.resolve()} can be written to")


def _numba_cache() -> Check:
    """Compiled loops are kept beside the package, or where NUMBA_CACHE_DIR says; else they are compiled each time."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(given) if given else Path(__file__).parents[1] / "learning"
    mend = "set NUMBA_CACHE_DIR to a folder that can be written to; else every start compiles for some seconds"
    if not folder.is_dir():
        return Check("numba cache", True, f"{folder} will be made")
    return _writable("numba cache", folder, mend)
