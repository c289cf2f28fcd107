"""The console's routes. It listens on loopback, and every route but the entry asks for the cookie that the entry gives.

GET  /enter?token=...    the address that `offbeat party console` prints: a cookie, and on to the page
GET  /                   the page;  GET /state: its parts
GET  /runs/RUN/report, /runs/RUN/audit, /runs/RUN/card
GET  /policy             the policy as a form;  POST: the difference, and the change
POST /decide, /stop, /score
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from offbeat.errors import BadInput, OffbeatError
from offbeat.orgs.console.overview import Watching
from offbeat.orgs.console.page import audit_page, card_page, console_page, frame, own_page, parts_of
from offbeat.orgs.console.policy_pages import Fields, policy_answer
from offbeat.orgs.control import Decide, Stop
from offbeat.orgs.party_config import Home
from offbeat.report.card import CARD_FILE
from offbeat.report.live_server import REPORT_POLICY, body_of, html_answer, local_app
from offbeat.report.page import REPORT_FILE

COOKIE = "offbeat-console"
FORM_BYTES_MOST = 2**16
IDS_MOST = 1000
Answer = Callable[[Request], Awaitable[Response]]
Audit = Callable[[Path], str]
"""The audit of a run folder, as text."""


class Pages:
    """What the routes answer."""

    def __init__(self, watching: Watching, token: str, audit: Audit) -> None:
        self.watching, self.token, self.audit = watching, token, audit

    async def enter(self, request: Request) -> Response:
        if not hmac.compare_digest(request.query_params.get("token", "").encode(), self.token.encode()):
            return PlainTextResponse("The address that `offbeat party console` printed has the right token.", 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
        return answer

    async def page(self, _: Request) -> Response:
        return _own(console_page(await asyncio.to_thread(self.watching.look)))

    async def state(self, _: Request) -> Response:
        seen = await asyncio.to_thread(self.watching.look)
        parts = {name: str(body) for name, body in parts_of(seen).items()}
        told = {"parts": parts, "waiting": len(seen.proposals)}
        return Response(msgspec.json.encode(told), media_type="application/json")

    async def report(self, request: Request) -> Response:
        return await self._paper(request, lambda folder: (folder / REPORT_FILE).read_text(encoding="utf-8"))

    async def card(self, request: Request) -> Response:
        return await self._paper(
            request, lambda folder: card_page((folder / CARD_FILE).read_text(encoding="utf-8")), CARD_FILE
        )

    async def audited(self, request: Request) -> Response:
        return await self._paper(request, lambda folder: audit_page(self.audit(folder)))

    async def _paper(self, request: Request, made: Callable[[Path], str], file: str = REPORT_FILE) -> Response:
        """A page about a run that has left a report; it may ask nobody for anything, this server neither."""
        folder = await asyncio.to_thread(self.watching.folder_of, request.path_params["run"])
        if folder is None or not (folder / file).is_file():
            return PlainTextResponse("There is no such page of such a run.", 404)
        content = await asyncio.to_thread(made, folder)
        return html_answer(content, REPORT_POLICY)

    async def policy(self, request: Request) -> Response:
        fields = await _fields(request) if request.method == "POST" else {}
        title, body = await asyncio.to_thread(policy_answer, self.watching.home.file, fields)
        if body is None:
            return RedirectResponse("./#policy-section", 303)
        return _own(own_page(title, body))

    async def decide(self, request: Request) -> Response:
        form = await _form(request)
        if form.get("decision") not in ("accept", "refuse"):
            raise BadInput("expected a decision: accept or refuse.")
        wanted = Decide(form["run"], form["decision"] == "accept", form.get("by", ""), form.get("reason", ""))
        await asyncio.to_thread(self.watching.daemon.ask, wanted)
        return RedirectResponse("/#proposals-section", 303)

    async def stop(self, request: Request) -> Response:
        await asyncio.to_thread(self.watching.daemon.ask, Stop((await _form(request))["run"]))
        return RedirectResponse("/#running-section", 303)

    async def score(self, request: Request) -> Response:
        form = await _form(request)
        ids = [one for line in form.get("ids", "").splitlines() for part in line.split(",") if (one := part.strip())]
        if not 0 < len(ids) <= IDS_MOST:
            raise BadInput(f"expected 1 to {IDS_MOST} ids; `offbeat predict` takes more.")
        await asyncio.to_thread(self.watching.predict, form["run"], ids)
        return RedirectResponse("/#scores-section", 303)


def console_app(home: Home, token: str, audit: Audit) -> Starlette:
    watching = Watching(home)
    pages = Pages(watching, token, audit)

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        yield
        watching.daemon.close()

    known = partial(_known, token=token)
    return local_app(
        [
            Route("/enter", pages.enter),
            Route("/", known(pages.page)),
            Route("/state", known(pages.state)),
            Route("/runs/{run}/report", known(pages.report)),
            Route("/runs/{run}/card", known(pages.card)),
            Route("/runs/{run}/audit", known(pages.audited)),
            Route("/policy", known(pages.policy), methods=["GET", "POST"]),
            Route("/decide", known(pages.decide), methods=["POST"]),
            Route("/stop", known(pages.stop), methods=["POST"]),
            Route("/score", known(pages.score), methods=["POST"]),
        ],
        running,
    )


def _known(answer: Answer, token: str) -> Answer:
    """Whoever has the cookie, from this page and no other; foreseen failures become one sentence."""

    async def answered(request: Request) -> Response:
        shown = request.cookies.get(COOKIE, "")
        if not hmac.compare_digest(shown.encode(), token.encode()):
            return PlainTextResponse("Open the address that `offbeat party console` printed.", 403)
        origin = request.headers.get("origin", "null" if request.method == "POST" else "")
        if request.method == "POST" and origin != f"{request.url.scheme}://{request.headers.get('host', '')}":
            return PlainTextResponse("This form came from another page.", 403)
        try:
            return await answer(request)
        except OffbeatError as problem:
            return PlainTextResponse(f"{problem}\n\nGo back to the page to see how things stand.", 400)

    return answered


def _own(content: str) -> Response:
    """A page of the console itself, which may ask this server."""
    # With "no-referrer" the browser would hide where a form comes from.
    return html_answer(content, f"{frame().policy}; frame-ancestors 'none'", **{"referrer-policy": "same-origin"})


async def _fields(request: Request) -> Fields:
    body = await body_of(request, FORM_BYTES_MOST, f"a form has at most {FORM_BYTES_MOST} bytes.")
    return parse_qs(body.decode(errors="replace"), keep_blank_values=True)


async def _form(request: Request) -> dict[str, str]:
    form = {name: values[0] for name, values in (await _fields(request)).items()}
    if "run" not in form:
        raise BadInput("expected the name of a run.")
    return form
