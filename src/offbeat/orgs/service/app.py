"""The scoring service's routes. The daemon does the scoring; this process reads requests and counts for callers."""

import asyncio
import logging
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from offbeat.errors import BadInput, OffbeatError, Refused
from offbeat.metrics.prometheus import CONTENT_TYPE, Metric, by, metrics_text, single
from offbeat.orgs.control import Predict, Predicted, Status
from offbeat.orgs.discreet import FOR_PEERS, for_peers
from offbeat.orgs.health import LOOPBACK
from offbeat.orgs.lines import OwnDaemon
from offbeat.orgs.party_config import Home
from offbeat.orgs.service.batches import ROWS_IN_PART, Batches, State
from offbeat.orgs.service.callers import Caller, CallersFile, Quotas, TooMuch
from offbeat.orgs.service.gathering import Crowded, Gathering
from offbeat.orgs.service.openapi import ONCE_MOST, openapi, page
from offbeat.report.live_server import body_of
from offbeat.runtime.grpc.wire import offbeat_version

log = logging.getLogger("offbeat.service")

BODY_BYTES_MOST = 2**20
ID_BYTES_MOST = 256
BATCH_ROWS_MOST = 5_000_000
SCORE_WITHIN_S = 30.0
PART_WITHIN_S = 120.0
LOOK_S = 0.1
CHUNK_BYTES = 2**18
TIMES_KEPT = 1000
STREAMS_OF_ONE = 8  # batches that one caller reads at a time
CALLS_OF_ONE = 64  # calls of one caller that are open at a time
QUIET_S = 30.0  # after so long without a byte of an upload it is over
FROM = re.compile("[0-9]{1,12}")
CODES: tuple[tuple[type[Exception], int], ...] = (
    (TooMuch, 429), (Crowded, 503), (Refused, 403), (BadInput, 400), (OffbeatError, 503),
)  # fmt: skip


class Question(msgspec.Struct, forbid_unknown_fields=True):
    id: str | None = None
    ids: list[str] | None = None


class NoToken(OffbeatError):
    """A call without a token that the owner has given."""


class Service:
    """One finished run, scored for the callers that the owner of `home` has named."""

    def __init__(self, home: Home, run: str, rows_in_part: int = ROWS_IN_PART) -> None:
        self.home, self.run = home, run
        self.daemon = OwnDaemon(home)
        self.callers, self.quotas = CallersFile(home.private), Quotas(home.private)
        self.gathering = Gathering(lambda ids: self._ask(ids, SCORE_WITHIN_S))
        self.batches = Batches(home.private, run, lambda ids: self._ask(ids, PART_WITHIN_S), rows_in_part)
        self.answers: Counter[str] = Counter()  # by status code
        self.seconds: deque[float] = deque(maxlen=TIMES_KEPT)
        self.reading: Counter[str] = Counter()  # by caller: batches that are read now
        self.calling: Counter[str] = Counter()  # by caller: calls that are open
        self._described = openapi(run, offbeat_version())

    def _ask(self, ids: list[str], within_s: float) -> Predicted:
        """In the owner's name, so that errors are the owner's, too: callers are told what peers are."""
        try:
            answer = self.daemon.ask(Predict(self.run, ids), within_s)
        except FOR_PEERS:
            raise
        except OffbeatError as problem:
            raise OffbeatError(f"{for_peers(problem, self.home.name, 'scoring')[0]}.") from problem
        assert isinstance(answer, Predicted)
        return answer

    # -- who asks -------------------------------------------------------------------------------------------------

    def caller(self, request: Request) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        caller = self.callers.with_token(token.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise NoToken("expected a header 'Authorization: Bearer TOKEN' with a token made by `offbeat caller new`.")
        self.quotas.called(caller)
        return caller

    # -- routes ---------------------------------------------------------------------------------------------------

    async def score(self, request: Request) -> Response:
        begin_s, caller = time.perf_counter(), self.caller(request)
        if self.calling[caller.name] >= CALLS_OF_ONE:
            raise TooMuch(f"'{caller.name}' has {CALLS_OF_ONE} calls open, the most at a time.", 1.0)
        too_large = f"a call has at most {BODY_BYTES_MOST} bytes; send more rows as a batch."
        with _counted(self.calling, caller.name):
            ids = _ids_of(await body_of(request, BODY_BYTES_MOST, too_large))
            left = self.quotas.take(caller, len(ids))
            answer = await self.gathering.scores(ids)
        rows = [{"id": id_, "score": score, "probability": chance} for id_, score, chance in answer.rows(ids)]
        self.seconds.append(time.perf_counter() - begin_s)
        return _json({**self._model(answer.classes), "rows": rows, "rows_left_today": left})

    async def model(self, request: Request) -> Response:
        caller = self.caller(request)
        return _json({**self._model(None), "rows": [], "rows_left_today": self.quotas.left(caller)})

    def _model(self, classes: list[Any] | None) -> dict[str, Any]:
        return {"model": {"run": self.run, "asked_by": self.home.name, "classes": classes}}

    async def new_batch(self, request: Request) -> Response:
        caller = self.caller(request)
        folder = await asyncio.to_thread(self.batches.room, caller.name)
        try:
            with (folder / "ids.txt").open("wb") as file:
                rows = await _upload(request, file.write, self.quotas.left(caller))
            self.quotas.take(caller, rows)
            state = await asyncio.to_thread(self.batches.begin, folder, caller.name, rows)
        except BaseException:
            self.batches.drop(folder.name)
            raise
        return _json(_told(state), 202)

    async def batch(self, request: Request) -> Response:
        return _json(_told(self._batch_of(request)))

    async def delete_batch(self, request: Request) -> Response:
        state = self._batch_of(request)
        await asyncio.to_thread(self.batches.remove, state.name, state.caller)
        return Response(status_code=204)

    async def batch_rows(self, request: Request) -> Response:
        state, first = self._batch_of(request), request.query_params.get("from", "0")
        if not FROM.fullmatch(first):
            raise BadInput(f"from={first[:40]}: expected how many rows you have already, such as from=20000.")
        if self.reading[state.caller] >= STREAMS_OF_ONE:
            raise TooMuch(f"'{state.caller}' reads {STREAMS_OF_ONE} batches at a time, the most of one caller.", 1.0)
        return _Reading(self.reading, state.caller, self._stream(state, int(first)))

    def _batch_of(self, request: Request) -> State:
        return self.batches.state(request.path_params["batch"], self.caller(request).name)

    async def _stream(self, state: State, first: int) -> AsyncIterator[bytes]:
        """The lines from a row on, as far as they count; then as they come, until the batch is over."""
        skip = first + 1 if first else 0  # the head is a line too
        with self.batches.rows_file(state.name).open("rb") as file:
            while True:
                state = self.batches.state(state.name, state.caller)
                while file.tell() < state.size:
                    chunk = await asyncio.to_thread(file.read, min(CHUNK_BYTES, state.size - file.tell()))
                    while skip and chunk:
                        _, found, chunk = chunk.partition(b"\n")
                        skip -= bool(found)
                    if chunk:
                        yield chunk
                if state.over:
                    return
                await asyncio.sleep(LOOK_S)

    # -- how it stands --------------------------------------------------------------------------------------------

    async def ready(self, _: Request) -> Response:
        try:
            status = await asyncio.to_thread(self.daemon.ask, Status(self.run), 5.0)
        except OffbeatError as problem:
            return PlainTextResponse(f"{problem}\n", 503)
        good = status.phase == "done" or (status.ended and status.kept)
        return PlainTextResponse(f"run {self.run} is {status.phase}\n", 200 if good else 503)

    async def metrics(self, request: Request) -> Response:
        """For this machine alone: a reverse proxy that passes requests on says so in a header; so does a browser with a
        page from elsewhere whose name resolves to here."""
        local = request.client is not None and request.client.host in LOOPBACK
        if (
            not local
            or request.url.hostname not in LOOPBACK
            or "x-forwarded-for" in request.headers
            or "forwarded" in request.headers
        ):
            return PlainTextResponse("Not Found", 404)
        return Response(metrics_text(self.families()), media_type=CONTENT_TYPE)

    def families(self) -> list[Metric]:
        left = {caller.name: float(self.quotas.left(caller)) for caller in self.callers.all()}
        standing = Counter(state.standing for state in self.batches.all())
        times = sorted(self.seconds) or [0.0]
        parts = {f"{part:g}": times[min(len(times) - 1, int(part * len(times)))] for part in (0.5, 0.99)}
        return [
            Metric("service_answers_total", "counter", "Answers by status code.", by("code", self.answers)),
            Metric("service_rows_today", "gauge", "Rows asked for today.", by("caller", self.quotas.taken())),
            Metric("service_rows_left_today", "gauge", "Rows left of the day's quota.", by("caller", left)),
            single("service_questions_total", "counter", "Questions sent to the daemon for single calls.",
                   self.gathering.questions),
            single("service_rows_waiting", "gauge", "Rows that wait for a free place.", self.gathering.rows_waiting),
            Metric("service_batches", "gauge", "Batches that are kept.", by("standing", standing)),
            Metric("service_seconds", "gauge", "Time of the last calls, by quantile.", by("quantile", parts)),
        ]  # fmt: skip

    # -- the application ------------------------------------------------------------------------------------------

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", lambda _: HTMLResponse(str(page(self._described)))),
                Route("/openapi.json", lambda _: _json(self._described)),
                Route("/healthz", lambda _: PlainTextResponse("ok\n")),
                Route("/readyz", self.ready),
                Route("/metrics", self.metrics),
                Route("/v1/score", self._polite(self.score), methods=["POST"]),
                Route("/v1/model", self._polite(self.model)),
                Route("/v1/batches", self._polite(self.new_batch), methods=["POST"]),
                Route("/v1/batches/{batch}", self._polite(self.batch), methods=["GET"]),
                Route("/v1/batches/{batch}", self._polite(self.delete_batch), methods=["DELETE"]),
                Route("/v1/batches/{batch}/rows", self._polite(self.batch_rows)),
            ],
            lifespan=self._running,
        )

    @asynccontextmanager
    async def _running(self, _: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(self.batches.start)
        yield
        await asyncio.to_thread(self.batches.stop)
        self.gathering.close()
        self.daemon.close()

    def _polite(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Foreseen failures are answered by one sentence and the code that belongs to them."""

        async def answered(request: Request) -> Response:
            try:
                response = await answer(request)
            except OffbeatError as problem:
                response = _failure(problem)
            self.answers[str(response.status_code)] += 1
            return response

        return answered


class _Reading(StreamingResponse):
    """A batch's rows, counted from the moment the answer begins: many requests may come at once."""

    def __init__(self, reading: Counter[str], caller: str, rows: AsyncIterator[bytes]) -> None:
        super().__init__(rows, media_type="text/csv")
        self._counts, self._caller = reading, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with _counted(self._counts, self._caller):
            await super().__call__(scope, receive, send)


@contextmanager
def _counted(counts: Counter[str], name: str) -> Iterator[None]:
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1


def _failure(problem: OffbeatError) -> Response:
    code = 401 if isinstance(problem, NoToken) else next(code for kind, code in CODES if isinstance(problem, kind))
    headers = {"retry-after": str(int(problem.again_s) + 1)} if isinstance(problem, TooMuch) else {}
    headers |= {"www-authenticate": "Bearer"} if code == 401 else {}
    return _json({"error": str(problem)}, code, headers)


def _json(value: Any, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), code, headers, media_type="application/json")


def _ids_of(body: bytes) -> list[str]:
    try:
        question = msgspec.json.decode(body, type=Question)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise BadInput(f'expected {{"id": "..."}} or {{"ids": ["...", ...]}}; {problem}.') from None
    ids = [question.id] if question.id is not None else question.ids or []
    if not ids or (question.id is not None and question.ids is not None):
        raise BadInput('expected either "id" or a list "ids" that is not empty.')
    if len(ids) > ONCE_MOST or any(len(id_.encode()) > ID_BYTES_MOST for id_ in ids):
        raise BadInput(f"a call has at most {ONCE_MOST} ids of {ID_BYTES_MOST} bytes; send more rows as a batch.")
    return ids


async def _upload(request: Request, write: Callable[[bytes], int], most: int) -> int:
    """Write the ids one a line, without empty lines; how many is returned. More than a quota are not read on."""
    rows, seen, rest, chunks = 0, 0, b"", request.stream()
    while (chunk := await _next_of(chunks)) is not None:
        lines = (rest + chunk).split(b"\n")
        seen += len(lines) - 1
        if len(max(lines, key=len)) > ID_BYTES_MOST or seen > BATCH_ROWS_MOST:
            raise BadInput(f"a batch has at most {BATCH_ROWS_MOST:,} ids of {ID_BYTES_MOST} bytes, one a line.")
        rest = lines.pop()
        rows += _written(lines, write)
        if rows > most:
            return rows
    rows += _written([rest], write)
    if not rows:
        raise BadInput("expected ids, one a line.")
    return rows


async def _next_of(chunks: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(QUIET_S):
            return await anext(chunks, None)
    except TimeoutError:
        raise BadInput(f"nothing came for {QUIET_S:g} s; send the batch again.") from None


def _written(lines: list[bytes], write: Callable[[bytes], int]) -> int:
    ids = [id_ for line in lines if (id_ := line.strip())]
    try:
        b"\n".join(ids).decode()
    except UnicodeDecodeError:
        raise BadInput("the ids are not text in UTF-8: expected one id a line.") from None
    write(b"".join(id_ + b"\n" for id_ in ids))
    return len(ids)


def _told(state: State) -> dict[str, Any]:
    told = {"batch": state.name, "standing": state.standing, "rows": state.rows, "done": state.done}
    return told | ({"reason": state.reason} if state.reason else {})
