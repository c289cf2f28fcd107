"""How fast the scoring service answers: three daemons on loopback, 20 ms between any two, one service, many callers.

One id by one caller after the other; single ids by many callers at once; one batch of all rows, from the first byte
sent to the last row received. Tables of a million rows each, of which every daemon keeps its own.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.lab.bench.serve_homes import NAMES, Homes
from offbeat.lab.catalogue import Entry, LabOptions, LabResult
from offbeat.orgs.party_config import read_home
from offbeat.orgs.service.callers import CallersFile
from offbeat.runtime.processes import free_ports

ROUND_TRIP_S = 0.02
ROWS, QUICK_ROWS = 1_000_000, 20_000
SINGLE, QUICK_SINGLE = 400, 60
CALLERS, CALLS_EACH = 16, 125
GOALS = {"p50_ms": 45.0, "p99_ms": 150.0, "ids_a_second": 200.0, "batch_s": 60.0}
BEFORE = "Before there was a service: one row 1.2 s on tables of 35,000 rows, 25 s on 1,000,000; a million ids failed."


def serve(options: LabOptions) -> LabResult:
    rows = QUICK_ROWS if options.quick else ROWS
    with tempfile.TemporaryDirectory(prefix="offbeat-serve-") as place:
        homes = Homes(Path(place), ROUND_TRIP_S)
        try:
            return _measured(homes, rows, QUICK_SINGLE if options.quick else SINGLE, options)
        finally:
            homes.close()


def _measured(homes: Homes, rows: int, single: int, options: LabOptions) -> LabResult:
    homes.make()
    homes.start()
    options.say("Training a small model among three daemons.")
    run = homes.train()
    for name in NAMES:
        homes.table(name, rows)
    token = CallersFile(read_home(homes.folder / "bank").private).new("bench", 2**40, 1e6)
    (port,) = free_ports(1)
    homes.process("service", "serve", run, "--home", str(homes.folder / "bank"), "--port", str(port))
    client = HttpClient(port, token)
    options.say(f"Every daemon reads its table of {rows:,} rows.")
    asyncio.run(client.ready())
    ids = [f"P{i:07d}" for i in np.random.default_rng(options.seed).permutation(rows)]
    options.say(f"{single} single ids, one after the other.")
    alone, alone_s = asyncio.run(client.singles(ids[:single], 1))
    options.say(f"{CALLERS * CALLS_EACH} single ids by {CALLERS} callers at once.")
    together, together_s = asyncio.run(client.singles(ids[: CALLERS * CALLS_EACH], CALLERS))
    options.say(f"A batch of {rows:,} ids.")
    batch_s = asyncio.run(client.batch(ids))
    table = [
        _row("one id, one caller", alone, alone_s),
        _row(f"one id, {CALLERS} callers", together, together_s),
        {"what": f"a batch of {rows:,} ids", "p50_ms": None, "p99_ms": None, "ids_a_second": rows / batch_s,
         "seconds": batch_s},
    ]  # fmt: skip
    memory = homes.memory()
    used = ", ".join(f"{name} {one['now']:,.0f} (most {one['most']:,.0f})" for name, one in memory.items())
    notes = (
        f"Wires between daemons take {ROUND_TRIP_S * 1e3:g} ms for a round trip; the service is beside its daemon.",
        f"Goals: one id p50 {GOALS['p50_ms']:g} ms and p99 {GOALS['p99_ms']:g} ms; {GOALS['ids_a_second']:g} single "
        f"ids a second; a batch of a million in {GOALS['batch_s']:g} s.",
        f"Memory in MB: {used}.",
        BEFORE,
    )
    return LabResult(table, notes=notes, more={"memory_mb": memory, "goals": GOALS})


def _row(what: str, each_s: Sequence[float], all_s: float) -> dict[str, Any]:
    p50, p99 = (np.quantile(each_s, [0.5, 0.99]) * 1e3).tolist()
    return {"what": what, "p50_ms": p50, "p99_ms": p99, "ids_a_second": len(each_s) / all_s, "seconds": all_s}


class HttpClient:
    """Speaks as little HTTP as it takes, so that it is not what is measured."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token

    async def ready(self) -> None:
        """The service listens, and every daemon has read its table: the first score says so."""
        for _ in range(3000):
            try:
                await self._scored(*await self._connected(), "P0000000")
                return
            except (OSError, RuntimeError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.1)
        raise RuntimeError("the service did not answer within minutes")

    async def singles(self, ids: Sequence[str], callers: int) -> tuple[list[float], float]:
        """(seconds of each call, seconds in all)."""
        waiting, times = list(ids), []

        async def caller() -> None:
            reader, writer = await self._connected()
            while waiting:
                begin_s = time.perf_counter()
                await self._scored(reader, writer, waiting.pop())
                times.append(time.perf_counter() - begin_s)
            writer.close()

        begin_s = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return times, time.perf_counter() - begin_s

    async def batch(self, ids: Sequence[str]) -> float:
        begin_s = time.perf_counter()
        body = "\n".join(ids).encode()
        reader, writer = await self._connected()
        told = json.loads(await self._call(reader, writer, "POST", "/v1/batches", body))
        writer.close()
        reader, writer = await self._connected()
        writer.write(self._head("GET", f"/v1/batches/{told['batch']}/rows", 0, "close"))
        content = await reader.read(-1)
        writer.close()
        seconds = time.perf_counter() - begin_s
        scored = content.count(b",0.")
        if scored < len(ids):
            raise RuntimeError(f"{scored} of {len(ids)} rows came back with a probability")
        return seconds

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, limit=2**26)

    async def _scored(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, id_: str) -> None:
        answer = json.loads(await self._call(reader, writer, "POST", "/v1/score", json.dumps({"id": id_}).encode()))
        if answer["rows"][0]["score"] is None:
            raise RuntimeError(f"{id_} has no score")

    async def _call(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes
    ) -> bytes:
        writer.write(self._head(method, path, len(body), "keep-alive") + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split("\r\n")[0])
        content = await reader.readexactly(length)
        if not head.startswith(("http/1.1 200", "http/1.1 202")):
            raise RuntimeError(f"{head.splitlines()[0]}: {content.decode()}")
        return content

    def _head(self, method: str, path: str, length: int, connection: str) -> bytes:
        lines = (
            f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self._token}",
            f"Content-Length: {length}", f"Connection: {connection}", "", "",
        )  # fmt: skip
        return "\r\n".join(lines).encode()


ENTRIES = (Entry("serve", "The scoring service between three daemons with 20 ms round trips", serve),)
