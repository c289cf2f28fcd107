"""How a run, or one party's part of it, can end: the one table of verdicts.

A verdict is one word for programs. `good`: what was learned is whole and may be used. `exit_code` is what it means to a
shell: 0 done, 2 bad input, 3 a party failed, 4 a bound was kept, 1 anything else. `words` and `mood` are for people.
"""

from typing import Literal, NamedTuple

Mood = Literal["good", "caution", "bad"]


class Verdict(NamedTuple):
    good: bool
    exit_code: int
    words: str
    mood: Mood


VERDICTS: dict[str, Verdict] = {
    "target": Verdict(True, 0, "Reached the target", "good"),
    "passes": Verdict(True, 0, "Used all its passes", "caution"),
    "time": Verdict(True, 0, "Used all its time", "caution"),
    "budget": Verdict(True, 4, "Stopped at the privacy budget", "caution"),
    "aligned": Verdict(True, 0, "Found the rows that all have", "good"),
    "predicted": Verdict(True, 0, "Scored the rows", "good"),
    "stopped": Verdict(False, 1, "Stopped on request", "caution"),
    "diverged": Verdict(False, 2, "Diverged", "bad"),
    "misaligned": Verdict(False, 2, "The parties' rows differ", "bad"),
    "peer-lost": Verdict(False, 3, "Lost a party", "bad"),
    "stalled": Verdict(False, 3, "Could not go on", "bad"),
    "range": Verdict(False, 4, "A share left the fixed-point range", "bad"),
    "row-cap": Verdict(False, 4, "A row was asked for too often", "bad"),
    "refused": Verdict(False, 4, "Was refused", "bad"),
}
UNKNOWN = Verdict(False, 1, "", "caution")


def verdict_named(name: str) -> Verdict:
    """What a verdict means; a word that is not in the table, as of another version, stands for itself."""
    return VERDICTS.get(name) or UNKNOWN._replace(words=name.capitalize() or "Ended")


def ended_well(name: str) -> bool:
    return verdict_named(name).good


def exit_code_of(name: str) -> int:
    return verdict_named(name).exit_code
