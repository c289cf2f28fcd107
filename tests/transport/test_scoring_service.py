"""The scoring service over HTTP, before three daemons: tokens, quotas, batches that stream and go on."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")
pytest.importorskip("uvicorn", reason="needs the extra 'web'")

import uvicorn
from town import NAMES, Town, job, wait_until

from offbeat.orgs.client import connect
from offbeat.orgs.party_config import read_home
from offbeat.orgs.service.app import Service
from offbeat.report.live_server import listening


class Running:
    """A service in a thread of this process."""

    def __init__(self, town: Town, run: str) -> None:
        self.town, self.run = town, run
        self.service = Service(read_home(town.folder / "bank"), run, rows_in_part=100)
        self.opened = listening(0)
        self.port = self.opened.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(self.service.app(), log_level="warning", ws="none"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.opened]})
        self.thread.start()
        wait_until(lambda: self.server.started)

    def call(self, method: str, path: str, body: Any = None, token: str = "", **headers: str) -> tuple[int, Any, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, sent, {"Authorization": f"Bearer {token}", **headers})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        told = json.loads(content) if answer.headers["content-type"] == "application/json" else content
        return answer.status, told, answer.headers

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        self.opened.close()


@pytest.fixture
def running(town: Town) -> Iterator[Running]:
    town.open()
    run = town.submit(job(target=1e-3))
    assert {town.ended(name, run).phase for name in NAMES} == {"done"}
    service = Running(town, run)
    yield service
    service.close()


def test_from_a_token_to_scores_and_no_further_than_the_quota(running: Running) -> None:
    town, run = running.town, running.run
    token = running.service.callers.new("web", 5, 100.0)
    assert running.call("POST", "/v1/score", {"id": "c1"})[0] == 401
    assert running.call("POST", "/v1/score", {"id": "c1"}, "wrong")[0] == 401
    expected = connect(town.folder / "bank", run).predict_proba(["c1", "c2"])
    code, told, _ = running.call("POST", "/v1/score", {"id": "c1"}, token)
    assert (code, told["rows_left_today"], told["model"]["run"]) == (200, 4, run)
    assert told["rows"][0]["probability"] == pytest.approx(expected[0, 1], abs=1e-10)
    code, told, _ = running.call("POST", "/v1/score", {"ids": ["c1", "c2", "nobody"]}, token)
    assert [row["id"] for row in told["rows"]] == ["c1", "c2", "nobody"]
    assert told["rows"][1]["probability"] == pytest.approx(expected[1, 1], abs=1e-10)
    assert told["rows"][2]["score"] is None and told["rows_left_today"] == 1
    code, told, headers = running.call("POST", "/v1/score", {"ids": ["c1", "c2"]}, token)
    assert code == 429 and "has 1 left" in told["error"] and int(headers["retry-after"]) > 0
    assert running.call("GET", "/v1/model", token=token)[1]["rows_left_today"] == 1
    running.service.callers.remove("web")
    assert running.call("GET", "/v1/model", token=token)[0] == 401


def test_a_question_that_is_none_is_refused_with_a_sentence(running: Running) -> None:
    token = running.service.callers.new("web", 5, 100.0)
    wrong: list[Any] = [b"{", b"\xff", {"ids": []}, {"id": "a", "ids": ["b"]}, {"ids": [1]}, {"name": "a"}]
    for body in [*wrong, {"ids": ["a"] * 1001}, {"id": "a" * 300}, b" " * 2**21]:
        code, told, _ = running.call("POST", "/v1/score", body, token)
        assert code == 400 and told["error"]
    for upload in (b"", b"\n\n", b"\xff\xfe\n", b"a" * 1000):
        assert running.call("POST", "/v1/batches", upload, token)[0] == 400
    assert running.service.quotas.taken() == {} and not list(running.service.batches.folder.iterdir())


def test_a_batch_streams_goes_on_and_counts_every_row_once(running: Running) -> None:
    token = running.service.callers.new("web", 1000, 100.0)
    ids = [f"c{i}" for i in range(240)] + ["nobody"]
    code, told, _ = running.call("POST", "/v1/batches", "\r\n".join([*ids, "", ""]).encode(), token)
    assert (code, told["rows"]) == (202, 241)
    path = f"/v1/batches/{told['batch']}"
    code, whole, _ = running.call("GET", f"{path}/rows", token=token)  # waits for its end
    lines = whole.decode().splitlines()
    assert lines[0] == "id,score,probability" and [line.split(",")[0] for line in lines[1:]] == ids
    assert lines[-1] == "nobody,,"
    scores = [float(line.split(",")[1]) for line in lines[1:-1]]
    shop = running.town.daemons["shop"].ledger
    counted = sum(int(str(line["sum"])) for line in shop.history() if "/score-" in str(line["what"]))
    assert counted == 240  # a row that it does not have enters no sum
    joint = connect(running.town.folder / "bank", running.run)
    np.testing.assert_allclose(scores, joint.decision_function(ids[:-1]), atol=1e-10)
    rest = running.call("GET", f"{path}/rows?from=200", token=token)[1].decode().splitlines()
    assert rest == lines[201:]
    assert running.call("GET", path, token=token)[1] == {
        "batch": told["batch"], "standing": "done", "rows": 241, "done": 241,
    }  # fmt: skip
    other = running.service.callers.new("other", 1000, 100.0)
    assert running.call("GET", path, token=other)[0] == 400
    assert running.call("DELETE", path, token=token)[0] == 204
    assert running.call("GET", path, token=token)[0] == 400


def test_refusals_and_lost_parties_have_codes_of_their_own(running: Running) -> None:
    town, token = running.town, running.service.callers.new("web", 100, 100.0)
    town.settings("shop", predictions_for="[]")
    code, told, _ = running.call("POST", "/v1/score", {"id": "c1"}, token)
    assert code == 403 and "'shop' gives predictions to nobody" in told["error"]
    town.settings("shop")
    assert running.call("POST", "/v1/score", {"id": "c1"}, token)[0] == 200
    assert running.call("GET", "/readyz")[0] == 200
    town.daemons["telecom"].stop()
    code, told, _ = running.call("POST", "/v1/score", {"id": "c1"}, token)
    assert code == 503 and "telecom" in told["error"]
    town.daemons["bank"].stop()
    assert running.call("GET", "/readyz")[0] == 503
    assert running.call("GET", "/healthz")[:2] == (200, b"ok\n")


def test_what_is_told_of_the_service(running: Running) -> None:
    token = running.service.callers.new("web", 100, 100.0)
    running.call("POST", "/v1/score", {"id": "c1"}, token)
    text = running.call("GET", "/metrics")[1].decode()
    assert 'offbeat_service_answers_total{code="200"} 1\n' in text
    assert 'offbeat_service_rows_left_today{caller="web"} 99\n' in text
    assert running.call("GET", "/metrics", **{"X-Forwarded-For": "10.0.0.1"})[0] == 404
    assert running.call("GET", "/openapi.json")[1]["info"]["title"] == f"Scores of run {running.run}"
    assert b"/v1/batches" in running.call("GET", "/")[1]


def test_the_command_serves_and_ends_cleanly_and_refuses_what_cannot_score(town: Town) -> None:
    town.open()
    run = town.submit(job(target=1e-3))
    assert {town.ended(name, run).phase for name in town.daemons} == {"done"}
    home = str(town.folder / "bank")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    def offbeat(*words: str) -> "subprocess.Popen[str]":
        call = [sys.executable, "-m", "offbeat", *words, "--home", home]
        return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    made, told = offbeat("caller", "new", "web", "--rows-a-day", "2", "--json").communicate(timeout=60)
    token = json.loads(made)["token"]
    assert "2 rows a day" in " ".join(told.split())
    serving = offbeat("serve", run, "--port", "0", "--json")
    assert serving.stdout is not None
    address = json.loads("".join(iter(serving.stdout.readline, "}\n")) + "}")["address"]
    request = urllib.request.Request(f"{address}v1/score", b'{"id": "c1"}', {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.loads(answer.read())["rows_left_today"] == 1
    listed, _ = offbeat("caller", "list", "--json").communicate(timeout=60)
    assert json.loads(listed)[0]["left_today"] == 1
    serving.send_signal(signal.SIGINT)
    serving.communicate(timeout=60)
    assert serving.returncode == 0
    unknown = offbeat("serve", "credit-none")
    _, complaint = unknown.communicate(timeout=60)
    assert unknown.returncode == 2 and "knows no run 'credit-none'" in " ".join(complaint.split())
