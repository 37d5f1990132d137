"""The HTTP server of `--metrics-port`: one thread that accepts, and a few that answer. The event loop does not notice.

Anybody who reaches the port may ask, so it is bounded in all that a stranger could make it do: connections at a time,
connections in a second, the time for which a silent one is kept, and the share of time spent on writing the page.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from mesh.errors import ConfigError
from mesh.metrics.from_loop import FromLoop, Unavailable

MAX_CONNECTIONS = 8
PAUSE_S = 0.05  # after each connection: to ask more often takes no more of this process
SILENT_S = 5.0
SHARE = 0.1  # of the time may go into writing the page; who asks more often gets the same page again
_BACKLOG = 16
_POLL_S = 0.1  # how soon the accepting thread notices that it is to end


class Exporter:
    """Shows metrics at `http://host:port/metrics` from `start` to `stop`.

    Made before anything else of a process: whoever named a port that is taken should hear it at once. Raises
    ConfigError naming `--metrics-port`.
    """

    def __init__(self, host: str, port: int) -> None:
        self._listener = _listen(host, port)
        self.url = _url(self._listener)
        self._server: _Server | None = None

    def start(self, collector: FromLoop[Any]) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        self._server = _Server(self._listener, _Page(registry))
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True).start()

    async def stop(self) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.shutdown)  # an answer under way may be waiting for this loop
            self._server.close_all()
        self._listener.close()


def _listen(host: str, port: int) -> socket.socket:
    """`*` is both families where the host has both."""
    try:
        if host == "*" and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server(("" if host == "*" else host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)  # its own text says the address once more
        raise ConfigError(
            f"--metrics-port: cannot listen on {host}:{port}: {reason}; give another port, or another interface with "
            "--metrics-host"
        ) from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


class _Page:
    """The WSGI application. One thread at a time writes the page; it takes the interpreter from the event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._kept, self._kept_type = b"", ""
        self._next_at = 0.0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, content_type = "200 OK", "text/plain"
        if environ["PATH_INFO"] != "/metrics":
            status, body = "404 Not Found", b"metrics are at /metrics\n"
        elif environ["REQUEST_METHOD"] != "GET":
            status, body = "405 Method Not Allowed", b"GET only\n"
        else:
            try:
                content_type, body = self._text(environ.get("HTTP_ACCEPT", ""))
            except Unavailable as error:
                status, body = "503 Service Unavailable", f"{error}\n".encode()
        start_response(status, [("Content-Type", content_type)])
        return [body]

    def _text(self, accept: str) -> tuple[str, bytes]:
        encode, content_type = choose_encoder(accept)
        with self._lock:
            wait_s = self._next_at - time.monotonic()
            if wait_s <= 0 or content_type != self._kept_type:
                time.sleep(max(0.0, wait_s))
                began = time.thread_time()
                self._kept, self._kept_type = encode(self._registry), content_type
                self._next_at = time.monotonic() + (time.thread_time() - began) / SHARE
            return content_type, self._kept


class _Handler(WSGIRequestHandler):
    timeout = SILENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """A line for each scrape is not worth reading, and a stranger's line even less."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are few: when one more comes, the oldest is cut off. An honest one
    is over in milliseconds, so the oldest is the one that holds its place."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, page: _Page) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]  # no look-up in DNS, as server_bind makes one
        self.setup_environ()
        self.set_app(page)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # oldest first

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= MAX_CONNECTIONS else None
            self._open[request] = None
        if oldest is not None:
            self._cut_off(oldest)
        super().process_request(request, client_address)
        time.sleep(PAUSE_S)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up in the middle is no error of ours."""

    def close_all(self) -> None:
        with self._lock:
            still_open = list(self._open)
        for request in still_open:
            self._cut_off(request)

    def _cut_off(self, request: socket.socket) -> None:
        """Its thread wakes up with an end of file, and closes it."""
        with self._lock:
            self._open.pop(request, None)
        with suppress(OSError):  # it has just ended by itself
            request.shutdown(socket.SHUT_RDWR)
