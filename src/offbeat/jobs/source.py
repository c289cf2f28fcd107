"""Where a party or a site of a job has its rows: in a file, or in a table of a database."""

from pathlib import Path
from typing import TypeVar

import msgspec

from offbeat.data.sql import beside, check_source
from offbeat.settings import Settings


class SourceEntry(Settings, frozen=True):
    """One of them by its name; `id` is the column that names rows."""

    name: str
    file: str | None = None
    table: str | None = None
    id: str | None = None

    @property
    def source(self) -> str:
        """The file's path, or the table's address."""
        return str(self.file if self.table is None else self.table)

    def check(self, where: str) -> None:
        check_source(self.file, self.table, where)


Entry = TypeVar("Entry", bound=SourceEntry)


def from_folder(entries: list[Entry], folder: Path) -> list[Entry]:
    """The same entries, their files found from `folder` on."""
    found = []
    for entry in entries:
        key = "file" if entry.table is None else "table"
        found.append(msgspec.structs.replace(entry, **{key: beside(entry.file, entry.table, folder)}))
    return found
