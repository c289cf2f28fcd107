"""A run folder in the making, written row by row by the code that real runs use."""

import asyncio
import json
from contextlib import asynccontextmanager

from report_samples import sample_record

from offbeat.metrics.curves import CurveRow
from offbeat.metrics.live import LiveRun, Now, PartyNow
from offbeat.metrics.record import Certificate

PARTIES = {
    "bank": PartyNow(4000, 0.5, 3, 1200, 64_000),
    "shop": PartyNow(1000, 6.25, 11, 300, 16_000),
    "telecom": PartyNow(3900, 0.75, 4, 1100, 60_000),
}


def about(**more):
    plain = {"algorithm": "afsvrg-vp", "runtime": "simulator", "clock": "virtual", "seed": 7, "goal": 20.0}
    return Now(**{**plain, **more})


def row(number, **more):
    return CurveRow(
        0.5 * number, number / 8, 1000 * number, 0.69 - 0.01 * number, suboptimality=0.3 / (1 + number), **more
    )


class Writing:
    """A run that is being written; every look is on disk when `look` returns."""

    def __init__(self, folder, **more):
        self.folder, self.time_s, self.count = folder, 0.0, 0
        self.live = LiveRun(folder, about(**more), self._clock)

    def _clock(self):
        self.time_s += 1.0
        return self.time_s

    def look(self, times=1, certificate=None):
        for _ in range(times):
            self.live.look(row(self.count), certificate, lambda: PARTIES)
            self.count += 1

    def certify(self, gap):
        self.look(certificate=Certificate(gap / 10, gap))

    def finish(self):
        self.live.end("ending")
        record = sample_record()
        (self.folder / "report.html").write_text("<!doctype html><title>the report</title>")
        record.write(self.folder)
        return record


# -- asking the application without a network --------------------------------------------------------------------------


@asynccontextmanager
async def running(app):
    async with app.router.lifespan_context(app):
        yield app


async def ask(app, path, *, host="127.0.0.1:8000", method="GET"):
    """(status, headers, body) of one request."""
    told = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        told.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", host.encode())] if host is not None else [], "client": None, "server": None,
    }  # fmt: skip
    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in told[0]["headers"]}
    return told[0]["status"], headers, b"".join(message.get("body", b"") for message in told[1:])


def state_in(event):
    """What one server-sent event carries."""
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    return json.loads(event[6:])
