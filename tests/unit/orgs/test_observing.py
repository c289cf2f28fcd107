"""What a daemon tells operators: numbers as Prometheus reads them, health, and logs that end."""

import json
import logging
import urllib.error
import urllib.request

import pytest

from offbeat.errors import BadInput
from offbeat.metrics.prometheus import Metric, by, metrics_text, single
from offbeat.orgs.daemon_log import FILES_KEPT, JsonLines, PlainLines, about, write_log
from offbeat.orgs.health import Health


def test_numbers_are_written_as_prometheus_reads_them():
    odd = by("peer", {'a"b\\c\n': 2.0, "bank": 1.5})
    text = metrics_text([single("up", "gauge", "Whether\nit is.", 1), Metric("calls_total", "counter", "Calls.", odd)])
    assert text == (
        "# HELP offbeat_up Whether\\nit is.\n# TYPE offbeat_up gauge\noffbeat_up 1\n"
        "# HELP offbeat_calls_total Calls.\n# TYPE offbeat_calls_total counter\n"
        'offbeat_calls_total{peer="a\\"b\\\\c\\n"} 2\noffbeat_calls_total{peer="bank"} 1.5\n'
    )


def fetched(address, path):
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()


def test_health_readiness_and_metrics_are_served_and_nothing_else():
    why = ["the daemon is being started"]

    def broken():
        raise RuntimeError("secret detail")

    texts = [lambda: "offbeat_up 1\n"]
    health = Health("127.0.0.1:0", lambda: why[0], lambda: texts[0]())
    address = health.start()
    try:
        assert fetched(address, "/healthz") == (200, "ok\n")
        assert fetched(address, "/readyz") == (503, "the daemon is being started\n")
        why[0] = ""
        assert fetched(address, "/readyz?x=1") == (200, "ready\n")
        assert fetched(address, "/metrics") == (200, "offbeat_up 1\n")
        assert fetched(address, "/etc/passwd")[0] == 404
        texts[0] = broken
        assert fetched(address, "/metrics") == (500, "The cause is in the daemon's log.\n")
        with pytest.raises(BadInput, match="cannot be listened on"):
            Health(address, lambda: "", lambda: "").start()
    finally:
        health.stop()


def test_a_log_file_is_its_owners_and_full_ones_are_kept_up_to_a_number(tmp_path):
    root, offbeat = logging.getLogger(), logging.getLogger("offbeat")
    before, levels = list(root.handlers), (root.level, offbeat.level)
    path = tmp_path / "log" / "party.log"
    try:
        write_log(path, as_json=True, party="bank", size=500)
        for number in range(200):
            logging.getLogger("offbeat.party").info("line %d", number)
    finally:
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(levels[0])
        offbeat.setLevel(levels[1])
    files = sorted(path.parent.iterdir())
    assert len(files) == FILES_KEPT + 1
    assert all(file.stat().st_size <= 500 for file in files)
    assert path.stat().st_mode & 0o077 == 0
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["party"], last["text"], last["level"]) == ("bank", "line 199", "info")


def test_each_line_says_which_party_run_and_peer_it_is_about():
    log, lines = logging.getLogger("offbeat.party.lines"), []

    class Kept(logging.Handler):
        def emit(self, record):
            lines.append((JsonLines("bank").format(record), PlainLines("bank: %(message)s").format(record)))

    log.addHandler(Kept())
    log.setLevel("INFO")
    log.info("ready")
    with about(run="credit-1", peer="shop"):
        log.info("counting")
        with about(peer="telecom"):
            log.info("run %s: halted", "credit-1")
    log.info("'%s' is lost", "shop", extra={"run": "credit-2", "peer": "shop"})
    told = [json.loads(line) for line, _ in lines]
    assert [(line["party"], line.get("run"), line.get("peer")) for line in told] == [
        ("bank", None, None), ("bank", "credit-1", "shop"), ("bank", "credit-1", "telecom"),
        ("bank", "credit-2", "shop"),
    ]  # fmt: skip
    assert [line for _, line in lines] == [
        "bank: ready",
        "bank: counting [run credit-1, peer shop]",
        "bank: run credit-1: halted [peer telecom]",  # what a line says already is not said again
        "bank: 'shop' is lost [run credit-2]",
    ]


def test_a_line_of_json_says_whose_it_is_only_where_there_is_a_party():
    record = logging.makeLogRecord({"msg": "x", "levelname": "INFO", "name": "offbeat"})
    assert "party" not in json.loads(JsonLines().format(record))
