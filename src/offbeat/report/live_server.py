"""The live view over HTTP, for browsers on this machine.

    GET /         the page
    GET /events   its parts, as server-sent events: the newest of them, whenever a browser is ready for more
    GET /state    the same once, as JSON
    GET /report   report.html, once the run has ended

The folder is fixed when the server starts, and its files are read by names that are written here: nothing that a
browser sends reaches the file system. Whoever asks for another host than this machine's own is refused, so that a page
from elsewhere cannot have its name resolved to here. A browser that reads slowly gets fewer states and holds up nobody.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offbeat.errors import BadInput
from offbeat.report.live import Follower, View
from offbeat.report.live_page import frame, live_page, state_of
from offbeat.report.page import REPORT_FILE

HOST = "127.0.0.1"
HOSTS = [HOST, "localhost"]
LOOK_S = 0.5
QUIET_S = 15.0
"""After so long without news a comment is sent: a connection that nobody reads any more is noticed by it."""
BROWSERS_MOST = 32
BODY_WITHIN_S = 30.0
QUIETLY: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
"""How every server of ours is set up."""
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The report brings the hashes of its own style and script, which hold beside this; it may not ask this server."""


class Hub:
    """The newest view, and those who wait for a newer one."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.view = View(follower.folder.name, "waiting")
        self.number = self.browsers = 0
        self.closed = False
        self._news = asyncio.Condition()
        self._made: tuple[int, bytes] = (-1, b"")

    async def look(self) -> None:
        """Read the folder once, and wake up whoever waits if it has changed."""
        view = await asyncio.to_thread(self.follower.look)
        if view is not None:
            async with self._news:
                self.view, self.number = view, self.number + 1
                self._news.notify_all()

    async def close(self) -> None:
        async with self._news:
            self.closed = True
            self._news.notify_all()

    def state(self) -> bytes:
        """The newest state as JSON, made once for all browsers and not at all for none."""
        if self._made[0] != self.number:
            self._made = self.number, msgspec.json.encode(state_of(self.view))
        return self._made[1]

    async def events(self, quiet_s: float = QUIET_S) -> AsyncIterator[bytes]:
        """One browser's stream. It waits for its own browser alone, and holds nothing but a number meanwhile."""
        sent = -1
        self.browsers += 1
        try:
            while not self.closed:
                if self.number == sent and not await self._newer(sent, quiet_s):
                    yield b": nothing new\n\n"
                elif not self.closed:
                    sent = self.number
                    yield b"data: " + self.state() + b"\n\n"
        finally:
            self.browsers -= 1

    async def _newer(self, sent: int, quiet_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(quiet_s), self._news:
                await self._news.wait_for(lambda: self.closed or self.number != sent)
                return True
        return False


class Headers:
    """On every answer, also that to a wrong address."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = [(name, value) for name, value in _ALWAYS if name not in given]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self.app(scope, receive, with_headers)


_ALWAYS = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


def html_answer(content: str | bytes, policy: str, **headers: str) -> Response:
    """A page, and what it may do."""
    return Response(content, media_type="text/html", headers={"content-security-policy": policy, **headers})


async def body_of(request: Request, most: int, too_large: str, within_s: float = BODY_WITHIN_S) -> bytes:
    """What came with a request, if it is not too large, and comes to its end: an open one holds a connection."""
    body = b""
    try:
        async with asyncio.timeout(within_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise BadInput(too_large)
    except TimeoutError:
        raise BadInput(f"the request has not come to its end within {within_s:g} s; send it again.") from None
    return body


def local_app(routes: Sequence[Route], lifespan: Any) -> Starlette:
    """An application for browsers on this machine."""
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    return Starlette(routes=routes, middleware=[Middleware(Headers), trusted], lifespan=lifespan)


def live_app(folder: Path, look_s: float = LOOK_S) -> Starlette:
    """The application for one run folder; `app.state.hub` is what it shows."""
    hub = Hub(Follower(folder))

    async def page(_: Request) -> Response:
        return html_answer(live_page(hub.view), f"{frame().policy}; frame-ancestors 'none'")

    async def state(_: Request) -> Response:
        return Response(hub.state(), media_type="application/json")

    async def events(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if hub.browsers >= BROWSERS_MOST:
            return PlainTextResponse(f"{BROWSERS_MOST} pages are open already; close one.", status_code=503)
        return StreamingResponse(hub.events(), media_type="text/event-stream")

    async def report(_: Request) -> Response:
        if hub.view.record is None:
            return PlainTextResponse("The run has not ended: there is no report yet.", status_code=404)
        try:
            content = await asyncio.to_thread((hub.follower.folder / REPORT_FILE).read_bytes)
        except OSError:
            return PlainTextResponse("There is no report.html; `offbeat report` writes it anew.", status_code=404)
        return html_answer(content, REPORT_POLICY)

    @asynccontextmanager
    async def following(app: Starlette) -> AsyncIterator[None]:
        await hub.look()
        task = asyncio.create_task(_follow(hub, look_s))
        app.state.task = task
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    routes = [Route("/", page), Route("/events", events), Route("/state", state), Route("/report", report)]
    app = local_app(routes, following)
    app.state.hub = hub
    return app


async def _follow(hub: Hub, look_s: float) -> None:
    while not hub.closed:
        await asyncio.sleep(look_s)
        await hub.look()


# -- the server ------------------------------------------------------------------------------------------------------


def listening(port: int, host: str = HOST) -> socket.socket:
    """A socket, on loopback unless another host is named; 0 takes any free port."""
    # asyncio sends small answers at once (TCP_NODELAY) only on a socket that was made for TCP by name.
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(64)
    except OSError as problem:
        opened.close()
        raise BadInput(
            f"Port {port} of {host} cannot be listened on: {problem.strerror}. Give another with --port N, or none for "
            "any that is free."
        ) from problem
    return opened


class _LiveServer(uvicorn.Server):
    """Ends the open streams when it is asked to end: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self.hub = hub
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.config.app.state.task.add_done_callback(self._over)  # type: ignore[union-attr]

    def _over(self, _: "asyncio.Task[None]") -> None:
        """Nobody follows the folder any more: better no page than one that stands still."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.loop is not None:
            self.loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.hub.close()))


def serve(folder: Path, opened: socket.socket) -> None:
    """Serve until Ctrl-C."""
    app = live_app(folder)
    config = uvicorn.Config(app, **QUIETLY, timeout_graceful_shutdown=5, limit_concurrency=4 * BROWSERS_MOST)
    with suppress(KeyboardInterrupt):  # uvicorn passes the signal on once everything is closed
        _LiveServer(config, app.state.hub).run(sockets=[opened])
    task: asyncio.Task[None] | None = getattr(app.state, "task", None)
    if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
        raise task.exception()  # type: ignore[misc]
