"""The live view over HTTP: what is served, to whom, and what a slow, a foreign or a curious browser gets."""

import asyncio
import contextlib
import http.client
import json
import signal
import subprocess
import sys
from threading import Event

import pytest
from live_samples import Writing, ask, running, state_in
from typer.testing import CliRunner

from offbeat.cli import app as command_line
from offbeat.report import live_server
from offbeat.report.live_server import BROWSERS_MOST, live_app

HOUR_S = 3600.0
"""Between two looks of the server's own: tests look when they want to."""


@contextlib.asynccontextmanager
async def served(folder):
    app = live_app(folder, look_s=HOUR_S)
    async with running(app):
        yield app, app.state.hub


def test_the_page_and_its_state_are_served_with_their_policy(tmp_path):
    Writing(tmp_path).look(3)

    async def main():
        async with served(tmp_path) as (app, _):
            status, headers, page = await ask(app, "/")
            assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy and headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers
            assert b"3 of 3 looks" in page
            status, headers, body = await ask(app, "/state", host="localhost:8000")
            assert (status, headers["content-type"]) == (200, "application/json")
            assert "3 of 3 looks" in json.loads(body)["parts"]["looks"]

    asyncio.run(main())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", None, "10.0.0.1"])
@pytest.mark.parametrize("path", ["/", "/state", "/events", "/report"])
def test_another_host_is_refused(host, path, tmp_path):
    async def main():
        async with served(tmp_path) as (app, hub):
            status, headers, body = await ask(app, path, host=host)
            assert status == 400 and "content-security-policy" in headers
            assert b"looks" not in body and hub.browsers == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "path", ["/job.toml", "/record.json", "/../job.toml", "/%2e%2e/job.toml", "//etc/passwd", "/events/", "/report/x"]
)
def test_no_path_leads_to_a_file(path, tmp_path):
    (tmp_path / "job.toml").write_text("seed = 7\n")

    async def main():
        async with served(tmp_path) as (app, _):
            status, _, body = await ask(app, path)
            assert status in (307, 404) and b"seed" not in body

    asyncio.run(main())


def test_nothing_but_reading_is_allowed(tmp_path):
    async def main():
        async with served(tmp_path) as (app, _):
            for method in ("POST", "PUT", "DELETE"):
                assert (await ask(app, "/state", method=method))[0] == 405
            assert (await ask(app, "/events", method="HEAD"))[0] == 200

    asyncio.run(main())


def test_the_report_is_there_once_the_run_has_ended(tmp_path):
    run = Writing(tmp_path)
    (tmp_path / "report.html").write_text("an earlier one")

    async def main():
        async with served(tmp_path) as (app, hub):
            assert (await ask(app, "/report"))[0] == 404
            run.finish()
            await hub.look()
            status, headers, body = await ask(app, "/report")
            assert status == 200 and b"the report" in body
            assert headers["content-security-policy"].startswith("sandbox allow-scripts;")
            (tmp_path / "report.html").unlink()
            status, _, body = await ask(app, "/report")
            assert status == 404 and b"offbeat report" in body

    asyncio.run(main())


def test_rows_arrive_and_then_the_verdict(tmp_path):
    run = Writing(tmp_path)

    async def main():
        async with served(tmp_path) as (_, hub):
            stream = hub.events()
            first = state_in(await anext(stream))
            assert "Preparing" in first["parts"]["standing"] and not first["over"]
            run.look(5)
            await hub.look()
            assert "5 of 5 looks" in state_in(await anext(stream))["parts"]["looks"]
            record = run.finish()
            await hub.look()
            last = state_in(await anext(stream))
            assert last["over"] and record.reason in last["parts"]["standing"]
            assert 'href="report"' in last["parts"]["standing"]
            await stream.aclose()

    asyncio.run(main())


def test_a_slow_browser_gets_the_newest_and_holds_up_nobody(tmp_path):
    run = Writing(tmp_path)

    async def main():
        async with served(tmp_path) as (_, hub):
            slow, quick = hub.events(), hub.events()
            await anext(slow)
            await anext(quick)
            for number in range(1, 6):
                run.look()
                await hub.look()
                assert f"{number} of {number} looks" in state_in(await anext(quick))["parts"]["looks"]
            assert "5 of 5 looks" in state_in(await anext(slow))["parts"]["looks"]
            assert hub.browsers == 2
            await slow.aclose()
            await quick.aclose()
            assert hub.browsers == 0

    asyncio.run(main())


def test_a_state_is_made_once_for_all_browsers(tmp_path, monkeypatch):
    run, made = Writing(tmp_path), []
    monkeypatch.setattr(live_server, "state_of", lambda view: made.append(view) or {})

    async def main():
        async with served(tmp_path) as (_, hub):
            for _ in range(3):
                run.look()
                await hub.look()
            assert made == []
            streams = [hub.events() for _ in range(4)]
            for stream in streams:
                await anext(stream)
            assert len(made) == 1
            for stream in streams:
                await stream.aclose()

    asyncio.run(main())


def test_silence_is_broken_by_a_comment_and_the_end_ends_the_stream(tmp_path):
    async def main():
        async with served(tmp_path) as (_, hub):
            stream = hub.events(quiet_s=0.0)
            await anext(stream)
            assert await anext(stream) == b": nothing new\n\n"
            await hub.close()
            assert [event async for event in stream] == []

    asyncio.run(main())


def test_there_is_a_bound_on_open_pages(tmp_path):
    async def main():
        async with served(tmp_path) as (app, hub):
            streams = [hub.events() for _ in range(BROWSERS_MOST)]
            for stream in streams:
                await anext(stream)
            status, _, body = await ask(app, "/events")
            assert status == 503 and b"close one" in body
            for stream in streams:
                await stream.aclose()

    asyncio.run(main())


# -- the command -----------------------------------------------------------------------------------------------------


def call(*arguments):
    return CliRunner().invoke(command_line, [str(argument) for argument in arguments])


def told(result):
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_wrong_folders_and_ports_are_bad_input(tmp_path):
    result = call("watch", tmp_path / "nowhere")
    assert result.exit_code == 2 and "There is no folder" in told(result) and "--wait" in told(result)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("Dear")
    result = call("watch", tmp_path / "other")
    assert result.exit_code == 2 and "is not a run folder" in told(result)
    (tmp_path / "run").mkdir()
    with live_server.listening(0) as taken:
        port = taken.getsockname()[1]
        result = call("watch", tmp_path / "run", "--port", port)
    assert result.exit_code == 2 and f"Port {port} of 127.0.0.1 cannot be listened on" in told(result)


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "offbeat.report.live_server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = call("watch", tmp_path)
    assert result.exit_code == 2
    assert "uvicorn is not there: pip install 'offbeat[web]'" in told(result)


def test_it_waits_for_the_folder_and_opens_the_browser(tmp_path, monkeypatch):
    folder, opened, addresses = tmp_path / "run", Event(), []
    monkeypatch.setattr("offbeat.cli.watch.time.sleep", lambda _: folder.mkdir())
    monkeypatch.setattr("webbrowser.open", lambda address: addresses.append(address) or opened.set() or True)
    monkeypatch.setattr(live_server, "serve", lambda *_: opened.wait())
    result = call("watch", folder, "--wait", 60, "--open", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document.keys() == {"address", "host", "port", "run"}
    assert addresses == [document["address"]] == [f"http://127.0.0.1:{document['port']}/"]


def test_ctrl_c_ends_it_with_zero_also_while_a_page_is_open(tmp_path):
    Writing(tmp_path).look(3)
    watching = subprocess.Popen(
        [sys.executable, "-m", "offbeat", "watch", str(tmp_path), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        port = json.loads("".join(iter(watching.stdout.readline, "}\n")) + "}")["port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/events")
        stream = connection.getresponse()
        assert "3 of 3 looks" in state_in(stream.readline() + stream.readline())["parts"]["looks"]
        watching.send_signal(signal.SIGINT)
        assert stream.read() == b""
        assert watching.wait(timeout=60) == 0
        assert (watching.stdout.read(), watching.stderr.read()) == ("", "")
    finally:
        watching.kill()
        watching.communicate()
