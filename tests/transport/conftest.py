"""Parties on loopback with keys of their own, in this process or in others."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def town(tmp_path: Path) -> Iterator[object]:
    from town import Town

    town = Town(tmp_path)
    yield town
    town.close()
