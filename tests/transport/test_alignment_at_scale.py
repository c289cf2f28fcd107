"""Alignment of three parties in three processes over gRPC, small in every test and with a million ids in slow ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

from town import NAMES, Town


@pytest.mark.parametrize("count", [5_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_three_processes_find_the_ids_they_share(tmp_path: Path, count: int) -> None:
    Town(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    script = Path(__file__).parent / "aligning_process.py"
    children = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), name, str(count)], stdout=subprocess.PIPE, env=environment
        )
        for name in NAMES
    ]
    told = [json.loads(child.communicate()[0]) for child in children]
    assert {(one["verdict"], one["rows"]) for one in told} == {("aligned", count * 9 // 10)}
    assert len({one["digest"] for one in told}) == 1
    wall, cpu = max(one["wall_s"] for one in told), sum(one["cpu_s"] for one in told)
    memory = max(one["memory_mb"] for one in told)
    print(f"{count} ids at each of three: {wall:.1f} s, {cpu:.1f} s of processors in all, {memory} MB at most")
