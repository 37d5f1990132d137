"""Web pages that nobody let in. Plain ASGI.

Without keys, being reachable from this host only is what protects a gateway, and a browser on this host runs pages from
everywhere. Such a page may not read an answer (CORS), but it could ask; and with a name that it points at 127.0.0.1 it
could read, too. Every such request says where it comes from.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.gateway.dialects import error_response
from broker.gateway.problems import Problem
from mesh.discovery.addresses import Endpoint


class OriginGuard:
    """Lets through requests without an origin (programs), from pages of this host, and from those named."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is None or origin in self._allowed or is_local(origin):
            await self._app(scope, receive, send)
            return
        problem = Problem(403, f"pages of {origin[:200]} may not call: name it with --cors", code="origin_not_allowed")
        await error_response(scope["path"], problem)(scope, receive, send)


def is_local(origin: str) -> bool:
    """Whether a page with this origin was served by this host. `null`, of files and sandboxes, is nobody's."""
    try:
        host = urlsplit(origin).hostname
    except ValueError:
        return False
    return host is not None and Endpoint(host, 0).is_loopback
