"""The colours of every chart, on screen and on paper.

Eight hues after Okabe and Ito, told apart under the common colour-vision deficiencies, each in a darker tone for
light pages and a lighter one for dark pages. Every tone has a contrast of at least 4.5 to 1 with its page, so that
labels may be written in the colour of their line; a test measures it.
"""

from typing import NamedTuple


class Tone(NamedTuple):
    """One colour, for light and for dark pages."""

    light: str
    dark: str


PAGE = Tone("#ffffff", "#14181d")
PANEL = Tone("#f6f7f9", "#1c2128")
INK = Tone("#1a1f26", "#e9ecf0")
QUIET = Tone("#57606b", "#a7b0bb")
RULE = Tone("#d5dae0", "#343c46")
GOOD = Tone("#00704f", "#4fd1a5")
BAD = Tone("#a61b2b", "#ff8f98")
CAUTION = Tone("#7d5700", "#e9c04a")

SERIES = (
    Tone("#0063a6", "#6fb8f2"),  # blue
    Tone("#b4450b", "#ff9d61"),  # vermilion
    Tone("#00704f", "#4fd1a5"),  # green
    Tone("#97397a", "#f1a5d2"),  # purple
    Tone("#7d5700", "#e9c04a"),  # amber
    Tone("#12727f", "#7bdcec"),  # teal
    Tone("#5a626c", "#b7bec8"),  # grey
    Tone("#8c1d2c", "#ff8f98"),  # crimson
)

DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "1 3", "5 2 5 6", "10 2 2 2 2 2")
"""Each series has its own stroke as well: a print in black still tells eight lines apart."""

_NAMED = {
    "page": PAGE,
    "panel": PANEL,
    "ink": INK,
    "quiet": QUIET,
    "rule": RULE,
    "good": GOOD,
    "bad": BAD,
    "caution": CAUTION,
}


def css_variables() -> str:
    """The palette as custom properties that follow the reader's light or dark setting."""
    tones = {**_NAMED, **{f"s{index}": tone for index, tone in enumerate(SERIES)}}
    lines = (f"--{name}:light-dark({tone.light},{tone.dark})" for name, tone in tones.items())
    return ":root{" + ";".join(lines) + "}"
