"""The tests of the vertical methods share `vertical_room.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
