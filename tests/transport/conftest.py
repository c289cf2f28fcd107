"""Parties on loopback with keys of their own, in this process or in others."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
