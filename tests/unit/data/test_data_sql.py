"""Tables of databases: what is read, that no password is kept, and what is said of wrong addresses."""

import json
import os
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from offbeat.cli.root import app
from offbeat.data import sql
from offbeat.data.table import columns_of, read_table
from offbeat.errors import BadData, BadJob, NotInstalled
from offbeat.jobs.reading import job_from, job_text, read_job
from offbeat.orgs.party_config import example, read_home
from offbeat.orgs.tables import OwnTables

ROWS = 120


def people(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"{k:04d}" for k in rng.permutation(ROWS)],
            "income": np.where(rng.random(ROWS) < 0.2, np.nan, rng.lognormal(8, 1, ROWS)),
            "town": rng.choice(["Ulm", "Bonn", "Köln"], ROWS),
            "since": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), "D"),
            "late": rng.integers(0, 5, ROWS),
        }
    )
    return frame.assign(default=(frame["late"] + rng.normal(size=ROWS) > 2).astype(int))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """SQLite's file with the table `people`, and the same rows as CSV."""
    frame = people()
    frame.to_csv(tmp_path / "people.csv", index=False)
    with sqlite3.connect(tmp_path / "bank.db") as connection:
        connection.execute(
            "create table people (id text, income real, town text, since date, late integer, 'default' integer)"
        )
        cells = frame.assign(since=frame["since"].dt.strftime("%Y-%m-%d")).astype(object).where(frame.notna(), None)
        connection.executemany("insert into people values (?,?,?,?,?,?)", cells.to_numpy().tolist())
        connection.execute("create view 'late payers' as select id, late from people where late > 2")
    return tmp_path


def address(folder: Path, table: str = "people") -> str:
    return f"sqlite:///{folder / 'bank.db'}?table={table}"


@pytest.mark.parametrize("chunk", [7, sql.CHUNK])
def test_a_table_is_read_as_its_csv_file_is(database: Path, monkeypatch, chunk: int) -> None:
    monkeypatch.setattr(sql, "CHUNK", chunk)
    ours = read_table(address(database), "id", "default", missing="keep")
    csv = read_table(database / "people.csv", "id", "default", missing="keep")
    order = np.argsort(csv.ids)
    assert ours.ids.tolist() == csv.ids[order].tolist()
    assert ours.columns == csv.columns and ours.levels == csv.levels and ours.dates == csv.dates == ("since",)
    np.testing.assert_array_equal(ours.features, np.asarray(csv.features)[order])
    np.testing.assert_array_equal(ours.labels, csv.labels[order])
    assert ours.name == f"table 'people' of sqlite:///{database / 'bank.db'}"


def test_only_the_columns_that_are_named_are_asked_for(database: Path) -> None:
    some = read_table(address(database), "id", None, ["late"], missing="keep")
    assert some.columns == ("late",) and some.labels is None
    view = read_table(address(database, "late payers"), "id")
    assert view.columns == ("late",) and np.asarray(view.features).min() == 3
    assert columns_of(address(database, "late payers")) == ["id", "late"]


def job_of(folder: Path, bank: str) -> Path:
    lines = ["passes = 3", "optimum = false", "two_party_insecure = true", "[[party]]", 'name = "bank"', bank]
    lines += ['id = "id"', 'label = "default"', 'columns = ["late", "income"]', "[[party]]", 'name = "shop"']
    lines += ['file = "people.csv"', 'id = "id"', 'columns = ["town", "since"]']
    (folder / "job.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder / "job.toml"


def test_a_job_runs_on_a_table_and_scores_another(database: Path) -> None:
    told = {}
    for name, bank in (("sql", 'table = "sqlite:///bank.db?table=people"'), ("csv", 'file = "people.csv"')):
        job = job_of(database, bank)
        done = CliRunner().invoke(app, ["run", str(job), "--out", str(database / name), "--json"])
        assert done.exit_code == 0, done.output
        told[name] = json.loads(done.stdout)
    assert told["sql"]["metrics"] == told["csv"]["metrics"]
    data = [f"bank={address(database)}", f"shop={database / 'people.csv'}"]
    scored = CliRunner().invoke(app, ["predict", str(database / "sql"), "--data", data[0], "--data", data[1], "--json"])
    assert scored.exit_code == 0, scored.output
    assert len(json.loads(scored.stdout)["rows"]) == ROWS


def test_a_relative_file_lies_beside_the_job(database: Path) -> None:
    job = read_job(job_of(database, 'table = "sqlite:///bank.db?table=people"'))
    assert job.party[0].source == address(database)
    assert job.party[1].source == str(database / "people.csv")


# -- passwords -------------------------------------------------------------------------------------------------------

WITH_VARIABLE = "postgresql+psycopg://reader:${BANK_PASSWORD}@db.example:5432/bank?table=risk.people&sslmode=require"


def test_jobs_keep_the_variables_name_and_no_password(tmp_path: Path) -> None:
    tree = {"party": [{"name": "bank", "table": WITH_VARIABLE, "id": "id"}, {"name": "shop", "file": "shop.csv"}]}
    assert "${BANK_PASSWORD}" in job_text(job_from(tree, folder=tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        "postgresql://reader:hunter2@db.example/bank?table=people",
        "postgresql://reader:hun/ter2@db.example/bank?table=people",
        "postgresql://reader:hun?ter2@db.example/bank?table=people",
        "postgresql://reader:${A}hunter2@db.example/bank?table=people",
        "postgresql://db.example/bank?table=people&password=hunter2",
        "mysql+pymysql://db.example/bank?table=people&passwd=hunter2",
        "mssql+pyodbc:///?table=people&odbc_connect=DRIVER%3DX%3BUID%3Dreader%3BPwd%3Dhunter2",
        "snowflake://reader@bank/db?table=people&private_key_passphrase=hunter2",
    ],
)
def test_a_password_in_a_job_is_refused_and_not_repeated(wrong: str) -> None:
    with pytest.raises(BadJob, match="would be kept with every run") as told:
        job_from({"party": [{"name": "bank", "table": wrong}, {"name": "shop", "file": "shop.csv"}]})
    assert "hunter2" not in str(told.value) and "ter2" not in str(told.value).replace("hunter", "")


def test_a_variable_that_is_not_set_is_named(monkeypatch) -> None:
    monkeypatch.delenv("BANK_PASSWORD", raising=False)
    with pytest.raises(BadData, match="environment variable BANK_PASSWORD, which is not set") as told:
        read_table(WITH_VARIABLE, "id")
    assert "reader" not in str(told.value)


def test_what_a_database_says_is_told_without_the_password() -> None:
    assert sql._told(ValueError("no login for reader with hunter2."), "hunter2") == "no login for reader with ***"


# -- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("party", "said"),
    [
        ({}, "expected `file`.*or `table`.*came neither"),
        ({"file": "a.csv", "table": "sqlite:///a.db?table=t"}, "came both. Give one of the two"),
        ({"file": "sqlite:///a.db?table=t"}, "file names a file, and came the address of a database"),
        ({"table": "customers"}, "expected an address such as .* came something else"),
        ({"table": "sqlite:///a.db"}, r"without \?table=NAME"),
    ],
)
def test_a_party_names_a_file_or_a_table(party: dict[str, str], said: str) -> None:
    with pytest.raises(BadJob, match=said):
        job_from({"party": [{"name": "bank", **party}, {"name": "shop", "file": "shop.csv"}]})


@pytest.mark.parametrize(
    ("where", "id", "said"),
    [
        ("sqlite:///{0}/bank.db?table=poeple", "id", "no such table or view.*people"),
        ("sqlite:///{0}/bnk.db?table=people", "id", "there is no file .*bnk.db"),
        ("sqlite:///{0}/people.csv?table=people", "id", "could not be read: .*not a database"),
        ("sqlite:///{0}/bank.db?table=people", "identity", "has no column 'identity'"),
        ("sqlite:///{0}/bank.db?table=people", None, "expected `id`.*in any order"),
        ("postgresq://db.example/bank?table=people", "id", "SQLAlchemy knows no database of that name"),
        ("postgresql://db.example:port/bank?table=people", "id", "cannot read that address"),
        ("mysql+nodriver://db.example/bank?table=people", "id", "SQLAlchemy knows no database of that name"),
    ],
)
def test_wrong_addresses_get_one_paragraph(database: Path, where: str, id: str | None, said: str) -> None:
    with pytest.raises(BadData, match=said) as told:
        read_table(where.format(database), id, missing="keep")
    assert "\n" not in str(told.value) and "sqlalche.me" not in str(told.value)
    assert not (database / "bnk.db").exists()


def test_a_driver_that_is_not_there_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(NotInstalled, match="no driver 'psycopg2'"):
        read_table("postgresql+psycopg2://db.example/bank?table=people", "id")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(NotInstalled, match=r"offbeat\[sql\]"):
        read_table("sqlite:///a.db?table=people", "id")


def test_an_empty_table_and_rows_without_id_are_refused(database: Path) -> None:
    with sqlite3.connect(database / "bank.db") as connection:
        connection.execute("create table nobody (id integer, late integer)")
    with pytest.raises(BadData, match="has no rows"):
        read_table(address(database, "nobody"), "id")
    with sqlite3.connect(database / "bank.db") as connection:
        connection.executemany("insert into nobody values (?, ?)", [(1, 2), (None, 3)])
    with pytest.raises(BadData, match="has no id"):
        read_table(address(database, "nobody"), "id")


# -- a daemon's table ------------------------------------------------------------------------------------------------


def test_a_daemon_reads_its_table_again_after_a_while(database: Path, monkeypatch) -> None:
    text = example("bank", label="default").replace('file = "bank.csv"', 'table = "sqlite:///bank.db?table=people"')
    (database / "party.toml").write_text(text, encoding="utf-8")
    home, now = read_home(database), [0.0]
    monkeypatch.setattr("offbeat.orgs.tables.time.monotonic", lambda: now[0])
    tables = OwnTables(home)
    first = tables.current()
    assert len(first.table) == ROWS and first.table.labels is not None
    with sqlite3.connect(database / "bank.db") as connection:
        connection.execute("delete from people where id = '0000'")
    assert tables.current() is first
    now[0] = 601.0
    later = tables.current()
    assert len(later.table) == ROWS - 1 and later.digest != first.digest
    with sqlite3.connect(database / "bank.db") as connection:
        connection.execute("vacuum")
    now[0] = 1201.0
    assert tables.current().digest == later.digest  # the same rows, whatever the file looks like


def test_a_weight_that_changes_in_a_database_is_another_table(database: Path) -> None:
    text = example("bank", label="default").replace(
        'file = "bank.csv"', 'table = "sqlite:///bank.db?table=people"\nweight = "counts"'
    )
    (database / "party.toml").write_text(text, encoding="utf-8")
    with sqlite3.connect(database / "bank.db") as connection:
        connection.execute("alter table people add column counts integer default 1")
    before = OwnTables(read_home(database)).current()
    assert before.table.weights is not None
    with sqlite3.connect(database / "bank.db") as connection:
        connection.execute("update people set counts = 2 where id = '0001'")
    assert OwnTables(read_home(database)).current().digest != before.digest


# -- a server, where there is one --------------------------------------------------------------------------------------

SERVER = os.environ.get("OFFBEAT_TEST_POSTGRESQL")
"""An address without ?table, whose user may make tables: postgresql+psycopg://reader:${BANK_PASSWORD}@localhost/bank"""


@pytest.fixture
def server(tmp_path: Path) -> str:
    """The address of a table with a column of each type that PostgreSQL is used with, in a schema of its own."""
    if SERVER is None:
        pytest.skip("no PostgreSQL server: set OFFBEAT_TEST_POSTGRESQL to the address of an empty database")
    import sqlalchemy as sa

    engine = sa.create_engine(sql.VARIABLE.sub(lambda found: os.environ[found[1]], SERVER))
    made = (
        "drop schema if exists offbeat_test cascade",
        "create schema offbeat_test",
        """create table offbeat_test.people as select md5(k::text)::uuid as id, (k * 1.25)::numeric(9,2) as income,
           k % 3 = 0 as vip, (array['Ulm','Köln'])[1 + k % 2]::varchar(9) as town, date '1970-01-01' + k as since,
           timestamptz '1970-01-01 00:00:00+02' + k * interval '1 day' as seen, time '06:30' as open,
           k * interval '6 hours' as stay, array[k] as tags, nullif(k % 5, 4)::smallint as late, k % 2 as "Default"
           from generate_series(0, 99) as k""",
        "create view offbeat_test.late as select id, late from offbeat_test.people",
    )
    with engine.begin() as connection:
        for line in made:
            connection.execute(sa.text(line.replace(":", "\\:")))
    engine.dispose()
    return f"{SERVER}?table=offbeat_test.people"


def test_a_server_s_types_are_numbers_categories_dates_and_times(server: str) -> None:
    table = read_table(server, "id", "Default", text=["tags"], missing="keep")
    assert len(table) == 100 and sorted(table.ids)[0] != "0" and list(table.ids) == sorted(table.ids)
    assert {*table.levels} == {"vip", "town", "tags"} and table.dates == ("since", "seen")
    cells = dict(zip(table.columns, np.asarray(table.features).T, strict=True))
    np.testing.assert_array_equal(cells["income"], 1.25 * cells["since"])
    np.testing.assert_allclose(cells["seen"], cells["since"] - 2 / 24)
    np.testing.assert_allclose(cells["stay"], cells["since"] / 4)
    assert set(cells["open"]) == {6.5} and np.isnan(cells["late"]).sum() == 20
    assert columns_of(server.replace("people", "late")) == ["id", "late"]


def test_a_server_s_table_is_trained_on_and_scored(server: str, tmp_path: Path) -> None:
    without = 'prepare = { columns = { "tags" = "leave-out" } }\n'
    parties = "".join(
        f'[[party]]\nname = "{name}"\ntable = "{server}"\nid = "id"\ncolumns = {columns}\n{more}'
        for name, columns, more in (
            ("bank", '["income", "vip", "tags"]', 'label = "Default"\n' + without),
            ("shop", '["town", "since", "seen"]', ""),
            ("phone", '["open", "stay", "late"]', ""),
        )
    )
    (tmp_path / "job.toml").write_text(f'algorithm = "vfb2-saga"\ntarget = 1e-4\n{parties}')
    ran = CliRunner().invoke(app, ["run", str(tmp_path / "job.toml"), "--out", str(tmp_path / "run"), "--json"])
    assert ran.exit_code == 0, ran.output
    where = [text for name in ("bank", "shop", "phone") for text in ("--data", f"{name}={server}")]
    scored = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), *where, "--json"])
    assert scored.exit_code == 0, scored.output
    assert len(json.loads(scored.stdout)["rows"]) == 100
    assert os.environ.get("BANK_PASSWORD", "no password") not in (tmp_path / "run" / "job.toml").read_text()
