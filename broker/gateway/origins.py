"""Web pages that nobody let in. Plain ASGI.

Without keys, being reachable from this host only is what protects a gateway, and a browser on this host runs pages from
everywhere. Such a page may not read an answer (CORS), but it could ask; such a request says where it comes from.
A page could also point a name of its own at 127.0.0.1 and read from its own origin, as far as the browser knows. But
then it asks for that name.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.gateway.dialects import error_response
from broker.gateway.problems import Problem
from mesh.discovery.addresses import Endpoint


class OriginGuard:
    """Lets through requests without an origin (programs), from pages of this host, and from those named; for this host
    by a local name, or one of those."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await error_response(scope["path"], problem)(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        origin, host = headers.get("origin"), headers.get("host")
        if origin is not None and origin not in self._allowed and not is_local(origin):
            return Problem(403, f"pages of {origin[:200]} may not call: name it with --cors", code="origin_not_allowed")
        if host and not any(url in self._allowed or is_local(url) for url in (f"http://{host}", f"https://{host}")):
            text = f"this gateway is not known as {host[:200]!r}: name it with --cors http://{host[:200]}, or set keys"
            return Problem(403, text, code="origin_not_allowed")
        return None


@lru_cache(maxsize=256)  # asked for each request, nearly always about the same name
def is_local(origin: str) -> bool:
    """Whether a page with this origin was served by this host. `null`, of files and sandboxes, is nobody's."""
    try:
        host = urlsplit(origin).hostname
    except ValueError:
        return False
    return host is not None and Endpoint(host, 0).is_loopback
