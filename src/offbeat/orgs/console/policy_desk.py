"""One change of the policy, step by step: typed, looked at, written."""

from offbeat.errors import BadInput, OffbeatError
from offbeat.jobs.methods import METHODS
from offbeat.orgs.console.policy_form import Fields, difference, form, typed, wanted
from offbeat.orgs.party_config import Home, read_home
from offbeat.orgs.policy_file import Change, changed, doubts, write_change
from offbeat.report.html import Markup

STEPS = ("look", "edit", "write")
FORM, DIFFERENCE = "Change the policy", "The difference"


class PolicyDesk:
    """Keeps nothing between two steps: the form brings all that was typed, and the mark of the file as it was."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def answer(self, fields: Fields) -> tuple[str, Markup | None]:
        """A title and the body of the next page; no body: it is written."""
        home = read_home(self.home.file)
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
        if step == "look":
            return DIFFERENCE, self._difference(home, change, fields)
        try:
            write_change(home, change, mark, by)
        except OffbeatError as problem:
            return DIFFERENCE, self._difference(home, change, fields, str(problem))
        return "", None

    @staticmethod
    def _difference(home: Home, change: Change, fields: Fields, problem: str = "") -> Markup:
        found = doubts(change.config.policy, home.roster().names, list(METHODS))
        return difference(change, home.config.policy, home.config.data.label is not None, fields, found, problem)
