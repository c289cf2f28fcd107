"""/healthz, /readyz and /metrics of a daemon, over plain HTTP on an address that party.toml names (`metrics`).

They tell numbers and names of runs, and take no request body; still, loopback is where they belong. There they answer
to names of this machine alone: a page from elsewhere may have its own name resolved to here.
"""

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from offbeat.errors import BadInput
from offbeat.metrics.prometheus import CONTENT_TYPE

log = logging.getLogger("offbeat.party")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PLAIN = "text/plain; charset=utf-8"
READ_WITHIN_S = 5.0


class Health:
    """`ready` says why the daemon is not, or nothing; `metrics` is the text for Prometheus."""

    def __init__(self, address: str, ready: Callable[[], str], metrics: Callable[[], str]) -> None:
        self._address, self._ready, self._metrics = address, ready, metrics
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> str:
        host, _, port = self._address.rpartition(":")
        try:
            self._server = _HealthServer((host, int(port)), self._handler())
        except OSError as problem:
            raise BadInput(
                f"metrics = '{self._address}' in party.toml: this address cannot be listened on ({problem.strerror}). "
                "Give another, such as 127.0.0.1:9464, or leave the key out."
            ) from problem
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return f"{host}:{self._server.server_address[1]}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def answer(self, path: str, host: str = "") -> tuple[int, str, str]:
        """(status, type, text). `host`: for whom the request was meant, if it says so."""
        if host and _name(self._address) in LOOPBACK and _name(host) not in LOOPBACK:
            return 404, PLAIN, "Not found.\n"
        if path == "/healthz":
            return 200, PLAIN, "ok\n"
        if path == "/readyz":
            why = self._ready()
            return (503, PLAIN, f"{why}\n") if why else (200, PLAIN, "ready\n")
        if path == "/metrics":
            return 200, CONTENT_TYPE, self._metrics()
        return 404, PLAIN, "There are /healthz, /readyz and /metrics.\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        health = self

        class Handler(BaseHTTPRequestHandler):
            timeout = READ_WITHIN_S
            server_version, sys_version = "offbeat", ""

            def do_GET(self) -> None:
                try:
                    status, kind, text = health.answer(self.path.partition("?")[0], self.headers.get("host", ""))
                except Exception:
                    log.exception("%s could not be answered", self.path)
                    status, kind, text = 500, PLAIN, "The cause is in the daemon's log.\n"
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                log.debug("health: " + format, *args)

        return Handler


def _name(address: str) -> str:
    """Without the port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0].lower()


class _HealthServer(ThreadingHTTPServer):
    daemon_threads = True
