"""A TCP proxy on loopback that behaves like a longer wire: latency, bandwidth, and breaks on command.

It stands between two parties as a router would, knows nothing of what passes, and serves two purposes: measuring runs
over networks this machine does not have, and breaking them on purpose.
"""

import asyncio
import contextlib
import threading
from math import inf
from typing import Any

_CHUNK_BYTES = 64 * 1024
_HELD_CHUNKS = 1024  # in flight on the emulated wire; beyond that the sender is held back, as by a full buffer


class LinkProxy:
    """Forwards connections to `target`. Each direction takes `round_trip_s / 2` and at most `bytes_per_s`."""

    def __init__(self, target: str, *, round_trip_s: float = 0.0, bytes_per_s: float = inf) -> None:
        self.target = target
        self.one_way_s = round_trip_s / 2
        self.bytes_per_s = bytes_per_s
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._whole: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy to {target}", daemon=True)

    def start(self) -> str:
        """Begin to listen; returns the address to dial instead of the target's."""
        self._thread.start()
        self.address = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self.address

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told: what is on the wire waits."""
        self._loop.call_soon_threadsafe(lambda: self._whole.clear() if self._whole else None)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._whole.set() if self._whole else None)

    def drop(self) -> None:
        """Break every connection; new ones may be made."""
        self._loop.call_soon_threadsafe(self._drop)

    # -- inside the loop ------------------------------------------------------------------------------------------

    async def _listen(self) -> str:
        self._whole = asyncio.Event()
        self._whole.set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._server = server
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = self._loop.create_task(self._direction(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _direction(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        wire: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_CHUNKS)
        delivery = self._loop.create_task(self._deliver(wire, sink))
        free_s = 0.0
        try:
            while chunk := await source.read(_CHUNK_BYTES):
                now_s = self._loop.time()
                free_s = max(now_s, free_s) + len(chunk) / self.bytes_per_s
                await wire.put((free_s + self.one_way_s, chunk))
        except OSError:
            pass  # the near side is gone: the far side is told by closing
        await wire.put((0.0, b""))
        await delivery

    async def _deliver(self, wire: "asyncio.Queue[tuple[float, bytes]]", sink: asyncio.StreamWriter) -> None:
        assert self._whole is not None
        with contextlib.suppress(OSError):
            while True:
                due_s, chunk = await wire.get()
                if not chunk:
                    break
                wait_s = due_s - self._loop.time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                await self._whole.wait()
                sink.write(chunk)
                await sink.drain()
        self._writers.discard(sink)
        sink.close()
        while not wire.empty():  # let a reader that waits for room find the end
            wire.get_nowait()

    def _drop(self) -> None:
        for writer in self._writers:
            transport: Any = writer.transport
            transport.abort()
        self._writers.clear()

    async def _close(self) -> None:
        self._server.close()
        self._drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
