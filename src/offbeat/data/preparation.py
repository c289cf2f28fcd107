"""How a party's columns are prepared: one word, the same in Python, in job files and in party.toml.

    prepare = "auto"
    prepare = { how = "bins", bins = 10, columns = { town = "category", note = "leave-out" } }

    auto      numbers are standardised, values far out are cut, missing ones are filled with the median and marked in a
              column of their own; text and true/false become one 0/1 column a category, rare ones together; dates
              become days; columns with one value are left out; columns that look like ids are refused
    bins      as auto, but a number becomes one 0/1 column for each of its quantile bins, with a bin for missing ones
    scaled    numbers are standardised, and that is all: text and missing values are refused
    none      numbers are taken as they are: text and missing values are refused

`columns` names columns that are treated otherwise. What is learned from the training rows is in prepare.py.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from offbeat.data.encode import Counts
from offbeat.data.matrix import Rows
from offbeat.errors import BadJob
from offbeat.names import counted
from offbeat.settings import Settings, settings_from

How = Literal["auto", "bins", "scaled", "none"]
Treatment = Literal["scaled", "bins", "rising", "falling", "category", "none", "leave-out"]

UNIT_ROWS = "each party's part of a row scaled to norm 1/sqrt(q)"


class Preparation(Settings, frozen=True):
    """How one party's columns are prepared.

    how               the word that fits most columns
    columns           the columns that are treated otherwise: `scaled`, `bins`, `category`, `none`, `leave-out`;
                      `rising` and `falling` are bins whose weights must rise or fall from each to the next
    bins              how many quantile bins a number gets at most
    counts            sparse columns: `as-is`, `log1p`, or `tf-idf` (idf = ln((1+n)/(1+df)) + 1 over the training rows)
    scale_indicators  standardise the 0/1 columns of categories and bins too, as some publications do
    rows              `as-is`, `party-unit`, `pooled-unit`: what is done to whole rows at the end (matrix.py)
    """

    how: How = "auto"
    columns: dict[str, Treatment] = {}
    bins: Annotated[int, Meta(ge=2, le=1000)] = 20
    counts: Counts = "as-is"
    scale_indicators: bool = False
    rows: Rows = "as-is"

    @property
    def strict(self) -> bool:
        """Whether text and missing values are refused, and every column is kept."""
        return self.how in ("scaled", "none")

    @property
    def as_text(self) -> list[str]:
        """Columns that are read as text, whatever they look like: nobody asks what one that is left out holds."""
        return [column for column, treatment in self.columns.items() if treatment in ("category", "leave-out")]

    def sentence(self) -> str:
        """How the columns were prepared, in words, for a record's source line."""
        return ", ".join(part for part in self._parts() if part)

    def _parts(self) -> tuple[str, ...]:
        by_word = {
            "auto": "numbers standardised with missing values filled and marked, categories as 0/1 columns",
            "bins": f"numbers in up to {self.bins} quantile bins, categories as 0/1 columns",
            "scaled": "numbers standardised",
            "none": "columns as they are",
        }
        categories = sum(treatment == "category" for treatment in self.columns.values())
        return (
            by_word[self.how],
            f"{counted(categories, 'column')} as categories" if categories else "",
            {"as-is": "", "log1p": "log(1 + count)", "tf-idf": "tf-idf from training rows"}[self.counts],
            "0/1 columns standardised too" if self.scale_indicators else "",
            {
                "as-is": "",
                "party-unit": UNIT_ROWS,
                "pooled-unit": "whole rows scaled to norm 1 (row norms pooled)",
            }[self.rows],
        )


AS_IS = Preparation(how="none")

Prepare = How | Preparation
"""What a job file or party.toml may say behind `prepare =`: the word, or the word with more."""


def preparation_from(wanted: Any, where: str = "prepare") -> Preparation:
    """A preparation from a word, a table of settings, or a preparation; what has no meaning is refused."""
    if isinstance(wanted, Preparation):
        tree: Mapping[str, Any] = msgspec.to_builtins(wanted)
    elif isinstance(wanted, Mapping):
        tree = wanted
    elif isinstance(wanted, str):
        tree = {"how": wanted}
    else:
        raise BadJob(
            f"{where}: expected a word (auto, bins, scaled or none), or a table with `how`, `columns` and `bins`; got "
            f"{wanted!r}."
        )
    return settings_from(tree, Preparation, where, BadJob)
