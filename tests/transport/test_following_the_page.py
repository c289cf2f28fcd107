"""Three organisations in ten minutes: the page is followed word for word, by real processes, with free ports."""

import csv
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra 'grpc'")

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "how-to" / "two-organisations.md"
PARTIES = ("bank", "shop", "telecom")
TRIES_MOST = 60  # to see all daemons answer; each try takes a second or so by itself


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Reader:
    """Somebody who does what the page says, in a terminal for each party."""

    def __init__(self, place):
        self.place, self.run = place, ""
        self.ports = dict(zip(("7443", "7444", "7445"), free_ports(3), strict=True))
        (place / "bin").mkdir()
        (place / "bin" / "offbeat").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m offbeat "$@"\n')
        (place / "bin" / "offbeat").chmod(0o755)
        self.daemons, self.hashes = [], []
        self.printed = ""

    def does(self, block):
        first = block.splitlines()[0]
        owners = PARTIES if "each terminal" in first else [party for party in PARTIES if f"the {party}'s" in first]
        assert owners, f"nobody knows whose terminal this is for: {first}"
        for owner in owners:
            self.types(owner, block)

    def types(self, owner, block):
        for printed, free in self.ports.items():
            block = block.replace(f":{printed}", f":{free}")
        folder = self.place if re.search(r"^cd ", block, re.MULTILINE) else self.place / owner
        block = re.sub(r"\bRUN\b", self.run, block)
        tries = TRIES_MOST if "party check" in block else 1
        while (code := self.runs(folder, block)) and tries > 1:
            tries -= 1
        assert code == 0, self.printed
        self.hashes += re.findall(r"^hash: (.*)$", self.printed, re.MULTILINE)

    def runs(self, folder, block):
        """Output goes to a file: a daemon would keep a pipe open."""
        path = f"{self.place / 'bin'}{os.pathsep}{os.environ['PATH']}"
        with (self.place / "printed").open("w") as out:
            done = subprocess.Popen(
                ["bash", "-e", "-c", block], cwd=folder, env={**os.environ, "PATH": path}, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            code = done.wait()
        if block.rstrip().endswith("&"):
            self.daemons.append(done.pid)
        self.printed = (self.place / "printed").read_text()
        return code

    def leaves(self):
        for group in self.daemons:
            os.killpg(group, signal.SIGTERM)


@pytest.fixture
def reader(tmp_path):
    one = Reader(tmp_path)
    yield one
    one.leaves()


def fences(text):
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_page_leads_to_joint_scores(reader):
    text = PAGE.read_text(encoding="utf-8")
    for language, block in fences(text[text.index("## Tables") : text.index("## Stop")]):
        if language == "toml":
            (reader.place / "bank" / "job.toml").write_text(block)
        elif language == "python" and "connect" not in block:
            subprocess.run([sys.executable, "-c", block], cwd=reader.place, check=True)
        elif language == "bash":
            reader.does(block)
        if "job submit" in block:
            (reader.run,) = [path.name for path in (reader.place / "bank" / "runs").iterdir() if path.is_dir()]
            assert "the certificate" in reader.printed
    assert len(reader.hashes) == 3 and len(set(reader.hashes)) == 1
    rows = list(csv.DictReader((reader.place / "bank" / "scores.csv").open()))
    assert [row["id"] for row in rows] == ["c001", "c002", "nobody"]
    assert rows[0]["score"] and rows[1]["score"] and not rows[2]["score"]
    assert all((reader.place / party / "runs" / reader.run / "report.html").is_file() for party in PARTIES)
