"""Names of parties and edges, where nobody chose any; the known name nearest to a wrong one; how many of what; what
somebody else may have written, as it may stand on a screen."""

import difflib
import re
from collections.abc import Iterable

from offbeat.errors import BadJob

PARTY_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?")
UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""What moves a cursor, turns the direction of text or is not seen; tabs and new lines are not among it."""
FRIENDLY = ("bank", "shop", "telecom", "insurer")


def visible(text: str) -> str:
    return UNSEEN.sub("?", text)


def party_names(count: int) -> tuple[str, ...]:
    """bank, shop, telecom, insurer, then party5, party6, ..."""
    return tuple(FRIENDLY[i] if i < len(FRIENDLY) else f"party{i + 1}" for i in range(count))


def edge_names(count: int) -> tuple[str, ...]:
    """edge1, edge2, ..."""
    return tuple(f"edge{i + 1}" for i in range(count))


def check_party_names(names: Iterable[object], where: str) -> None:
    """Models and logs are written to files named after the parties, so not every text is a name."""
    for name in names:
        if not isinstance(name, str) or not PARTY_NAME.fullmatch(name):
            shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:77]}..."
            raise BadJob(
                f"{where}: {shown} cannot be a party's name. Expected a text of letters a to z, digits, '-' and '_', "
                "perhaps '.' inside, 64 characters at most, as in 'bank-2'. Rename the party."
            )


def nearest(wanted: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that look most like the wanted one, best first; capitals do not count."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wanted.lower(), list(by_lower), n=count, cutoff=0.6)
    return [by_lower[name] for name in close]


def counted(number: int, noun: str) -> str:
    """`1 column`, `1,200 columns`."""
    plural = noun.removesuffix("y") + "ies" if noun == "party" else noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?`, or the first few known names when nothing is near."""
    names = list(known)
    close = nearest(wanted, names)
    if close:
        return "Did you mean " + " or ".join(repr(name) for name in close) + "?"
    if not names:
        return "There are none."
    shown = ", ".join(repr(name) for name in names[:8])
    return f"There are: {shown}{' and more' if len(names) > 8 else ''}."
