"""What every HTTP request passes first: its id, the size of its headers, and the books. Plain ASGI.

Starlette's middleware with a `dispatch` method is not used: it hides a caller that leaves from whoever streams to it.
"""

from __future__ import annotations

import logging
import secrets
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.gateway.dialects import error_response
from broker.gateway.metrics import Metrics
from broker.gateway.problems import Problem
from broker.gateway.tally import Tally, api_of

logger = logging.getLogger(__name__)


class Entrance:
    """Puts a Tally at `scope["tally"]`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, max_header_bytes: int) -> None:
        self._app = app
        self._metrics = metrics
        self._max_header_bytes = max_header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        tally = scope["tally"] = Tally(self._metrics, api_of(path), time.monotonic())
        request_id = f"req_{secrets.token_hex(12)}"

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                tally.status = tally.status or message["status"]
                MutableHeaders(scope=message).append("x-request-id", request_id)
            await send(message)

        try:
            size = len(scope["raw_path"]) + len(scope["query_string"])
            size += sum(len(name) + len(value) for name, value in scope["headers"])
            if size > self._max_header_bytes:
                problem = Problem(431, f"the headers are over {self._max_header_bytes} bytes", code="headers_too_large")
                await error_response(path, problem)(scope, receive, send_on)
            else:
                await self._app(scope, receive, send_on)
        finally:
            now = time.monotonic()
            tally.end(now)
            logger.debug(
                "request id=%s api=%s status=%d after_s=%.3f",
                request_id,
                tally.api,
                tally.status,
                now - tally.started_at,
            )
