"""Tables of databases, by SQLAlchemy (the extra `sql`): where they lie, and how one is read.

    postgresql+psycopg://reader:${BANK_PASSWORD}@db.example/bank?table=risk.customers
    sqlite:///bank.db?table=customers

An address names one table or view. Its password is the name of an environment variable: addresses stand in jobs and
records, and passwords must not. Rows come in chunks, sorted by their id, for a database has no order of its own.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offbeat.errors import BadData, BadJob, NotInstalled
from offbeat.names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    import sqlalchemy as sa

CHUNK = 50_000
VARIABLE = re.compile(r"\$\{(\w+)\}")
SECRET = re.compile(r"passw(or)?d|pwd|passphrase|secret|token|api_?key", re.IGNORECASE)
INSIDE = re.compile(rf"({SECRET.pattern})[^=;]*=", re.IGNORECASE)
"""In a setting that holds settings, such as odbc_connect."""
EXAMPLE = 'table = "postgresql+psycopg://reader:${BANK_PASSWORD}@db.example/bank?table=customers"'


def is_address(source: str | Path) -> bool:
    return "://" in str(source)


def is_local(address: str) -> bool:
    """Whether it names a SQLite file and nothing else: nobody is connected to, and nobody is told a password."""
    parts = _parts(address, "table")
    return parts.url.startswith("sqlite:///") and not parts.settings


def check_source(file: str | None, table: str | None, where: str) -> None:
    """Exactly one of a file and a table of a database is named, and no password with it."""
    if (file is None) == (table is None):
        came = "both" if file is not None else "neither"
        raise BadJob(
            f'{where}: expected `file`, as in file = "bank.csv", or `table`, the address of a database\'s table; came '
            f"{came}. Give one of the two."
        )
    if file is not None and is_address(file):
        raise BadJob(f"{where}: file names a file, and came the address of a database. Write it as `table`.")
    if table is not None:
        _parts(table, f"{where}: table")


def beside(file: str | None, table: str | None, folder: Path) -> str:
    """A file's path, or an address, from `folder` on: a SQLite file lies beside whatever names it."""
    if table is None:
        return str(folder / str(file))
    scheme, _, rest = table.partition(":///")
    path, mark, query = rest.partition("?")
    return f"{scheme}:///{folder / path}{mark}{query}" if path and scheme.startswith("sqlite") else table


def read_sql(address: str, id: str | None, columns: Sequence[str] | None) -> "pd.DataFrame":
    """The table's rows in the order of their ids, with these columns or all."""
    import pandas as pd

    with _opened(address) as (connection, found):
        import sqlalchemy as sa

        if id is None:
            raise BadData(
                f"{shown(address)}: expected `id`, the column by which rows are told apart: a database gives them in "
                "any order. Name it."
            )
        _check_columns(found, [id, *(columns or ())], address)
        wanted = found.c.values() if columns is None else [found.c[name] for name in columns]
        query = sa.select(*wanted).order_by(found.c[id])
        chunks = list(pd.read_sql_query(query, connection, chunksize=CHUNK))
    filled = [chunk for chunk in chunks if len(chunk)] or chunks[:1]
    return pd.concat(filled, ignore_index=True)


def names_in(address: str) -> list[str]:
    """The table's columns."""
    with _opened(address) as (_, found):
        return [str(name) for name in found.c.keys()]  # noqa: SIM118 (not a dictionary)


def shown(address: str) -> str:
    """The table in words, for messages: without user, password and settings."""
    parts = _parts(address, "table")
    return f"table {parts.table!r} of {parts.url.partition('://')[0]}://{parts.url.rpartition('@')[2].split('://')[-1]}"


# -- the address -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Address:
    url: str
    table: str
    settings: Mapping[str, str]


def _parts(address: str, where: str) -> _Address:
    from urllib.parse import parse_qsl

    login = address.partition("://")[2].rpartition("@")[0]
    if ":" in login and not VARIABLE.fullmatch(login.partition(":")[2]):
        raise BadJob(
            f"{where} holds a password, which would be kept with every run. Put it into an environment variable and "
            f"name that: {EXAMPLE}."
        )
    url, _, query = address.partition("?")
    settings = dict(parse_qsl(query))
    secret = next((key for key, value in settings.items() if SECRET.search(key) or INSIDE.search(value)), None)
    if secret is not None:
        raise BadJob(
            f"{where} has the setting {secret!r}, which would be kept with every run. Name an environment variable "
            f"instead: {EXAMPLE}."
        )
    name = settings.pop("table", "")
    if not is_address(url) or not name:
        came = "one without ?table=NAME, so which table is meant is open" if is_address(url) else "something else"
        raise BadJob(f"{where}: expected an address such as {EXAMPLE}; came {came}.")
    return _Address(url, name, settings)


def _password(url: str, address: str) -> str | None:
    found = VARIABLE.search(url)
    if found is None:
        return None
    value = os.environ.get(found[1])
    if value is None:
        raise BadData(
            f"{shown(address)}: its password is to be in the environment variable {found[1]}, which is not set. Set it "
            "where offbeat is started."
        )
    return value


# -- the database ----------------------------------------------------------------------------------------------------


@contextmanager
def _opened(address: str) -> "Iterator[tuple[sa.Connection, sa.Table]]":
    """A connection, and the table as the database describes it; what the database says is told without passwords."""
    try:
        import sqlalchemy as sa
        from sqlalchemy import exc
    except ModuleNotFoundError as problem:
        raise NotInstalled("tables of databases need SQLAlchemy: pip install 'offbeat[sql]'") from problem
    parts = _parts(address, "table")
    secret = _password(parts.url, address)
    try:
        url = sa.make_url(parts.url).update_query_dict(parts.settings)
    except (ValueError, exc.ArgumentError):  # a port that is no number, for one
        raise BadData(f"{shown(address)}: SQLAlchemy cannot read that address. Its form is {EXAMPLE}.") from None
    if url.get_backend_name() == "sqlite" and not (url.database and Path(url.database).is_file()):
        raise BadData(f"{shown(address)}: there is no file {url.database}.")  # SQLite would make an empty one
    try:
        engine = sa.create_engine(url if secret is None else url.set(password=secret))
        try:
            with engine.connect().execution_options(stream_results=True) as connection:
                yield connection, _described(connection, parts.table, address)
        finally:
            engine.dispose()
    except ModuleNotFoundError as problem:
        raise NotInstalled(
            f"{shown(address)}: Python has no driver {problem.name!r}. Install it (pip install {problem.name}), or "
            "name the driver you have, as in postgresql+psycopg:// or mysql+pymysql://."
        ) from None
    except exc.NoSuchModuleError:
        raise BadData(
            f"{shown(address)}: SQLAlchemy knows no database of that name. Known are postgresql, mysql, mariadb, "
            "sqlite, oracle and mssql, each perhaps with a driver, as in postgresql+psycopg://."
        ) from None
    except exc.SQLAlchemyError as problem:
        raise BadData(f"{shown(address)} could not be read: {_told(problem, secret)}.") from None


def _told(problem: Exception, secret: str | None) -> str:
    first = " ".join(str(getattr(problem, "orig", None) or problem).split()).rstrip(".?")
    return first.replace(secret, "***") if secret else first


def _described(connection: "sa.Connection", table: str, address: str) -> "sa.Table":
    import sqlalchemy as sa
    from sqlalchemy import exc

    schema, _, name = table.rpartition(".")
    try:
        return sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=connection)
    except exc.NoSuchTableError:
        looked = sa.inspect(connection)
        known = [*looked.get_table_names(schema or None), *looked.get_view_names(schema or None)]
        where = (
            "" if schema else " In the database's first schema, that is; another one is named as ?table=SCHEMA.NAME."
        )
        raise BadData(f"{shown(address)}: there is no such table or view. {did_you_mean(name, known)}{where}") from None


def _check_columns(table: "sa.Table", wanted: Sequence[str], address: str) -> None:
    known = list(table.c.keys())
    for name in wanted:
        if name not in known:
            raise BadData(f"{shown(address)} has no column {name!r}. {did_you_mean(name, known)}")
