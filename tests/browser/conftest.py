import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "report"), str(HERE.parent / "transport")]


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    from chromium import Chromium

    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
