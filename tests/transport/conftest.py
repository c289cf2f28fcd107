"""Parties on loopback with keys of their own, in this process or in others."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("grpc", reason="the transport tests need the extra 'grpc'")
