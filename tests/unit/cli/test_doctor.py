"""What can be installed beside the core is used, and the doctor knows all of it."""

import re
import tomllib
from pathlib import Path

from offbeat.cli.doctor import EXTRAS, checks

REPOSITORY = Path(__file__).parents[3]
NOT_FOR_USERS = {"all", "dev", "docs"}


def test_the_doctor_asks_for_every_extra_there_is():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert EXTRAS.keys() == extras.keys() - NOT_FOR_USERS
    assert set(re.search(r"\[(.*)\]", extras["all"][0])[1].split(",")) == EXTRAS.keys() - {"align"}
    assert {check.name for check in checks() if check.name.startswith("extra ")} == {f"extra {name}" for name in EXTRAS}


def test_every_extra_is_imported_somewhere():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py"))
    unused = [
        name
        for name, (module, _) in EXTRAS.items()
        if not re.search(rf'^\s*(from|import) {module}\b|"{module}"', sources.replace(f'("{module}", "', ""), re.M)
    ]
    assert unused == []
