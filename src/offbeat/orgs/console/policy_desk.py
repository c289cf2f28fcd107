"""One change of the policy, step by step: typed, looked at, written."""

from pathlib import Path

from offbeat.errors import BadInput, OffbeatError
from offbeat.jobs.methods import METHODS
from offbeat.orgs.console.policy_form import Fields, difference, form, typed, wanted
from offbeat.orgs.party_config import read_home
from offbeat.orgs.policy_file import changed, doubts, write_change
from offbeat.report.html import Markup

STEPS = ("look", "edit", "write")
FORM, DIFFERENCE = "Change the policy", "The difference"


def answer(file: Path, fields: Fields) -> tuple[str, Markup | None]:
    """A title and the body of the next page; no body: it is written. Nothing is kept between two steps: the form brings
    all that was typed, and the mark of the file as it was."""
    home = read_home(file)
    parties = home.roster().names
    if not fields:
        return FORM, form(typed(home.config.policy), parties)
    step, mark, by = ("".join(fields.get(name, ())[:1]) for name in ("step", "mark", "by"))
    if step not in STEPS:
        raise BadInput(f"expected a step: {', '.join(STEPS)}.")
    if step == "edit":
        return FORM, form(fields, parties)
    try:
        change = changed(home, wanted(fields))
    except OffbeatError as problem:
        return FORM, form(fields, parties, f"{problem} Nothing was written.")
    wrong = ""
    if step == "write":
        try:
            write_change(home, change, mark, by)
            return "", None
        except OffbeatError as problem:
            wrong = str(problem)
    old, found = home.config, doubts(change.config.policy, parties, list(METHODS))
    return DIFFERENCE, difference(change, old.policy, old.data.label is not None, fields, found, wrong)
