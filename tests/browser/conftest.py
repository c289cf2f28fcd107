import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "report"), str(HERE.parent / "transport")]


@pytest.fixture(scope="session")
def chromium_opened(tmp_path_factory):
    from chromium import Chromium

    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def browser(chromium_opened):
    yield chromium_opened
    # a page that asks on after its server has gone would complain in the next test
    chromium_opened.command("Page.navigate", url="about:blank")
    chromium_opened.complaints.clear()
