"""The few paths that nearly all requests go to, past FastAPI's routing: that is 40 % of what a short answer costs.

FastAPI has these routes as well, for its description of the API and for other methods on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]
OnError = Callable[[Request, Exception], Awaitable[Response]]


class FastPaths:
    """The innermost middleware: a POST to one of `endpoints` is answered by it, everything else by FastAPI. Errors of
    these types become answers; nothing that raises them has begun to answer (see EventStream)."""

    def __init__(
        self,
        app: ASGIApp,
        fastapi: FastAPI,
        endpoints: Mapping[str, Endpoint],
        on_error: Mapping[type[Exception], OnError],
    ) -> None:
        self._app = app
        self._fastapi = fastapi  # what request.app is
        self._endpoints = endpoints
        self._on_error = on_error
        self._errors = tuple(on_error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = None
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._endpoints.get(scope["path"])
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._fastapi
        request = Request(scope, receive)
        try:
            await (await endpoint(request))(scope, receive, send)
        except self._errors as error:
            handler = next(handler for kind, handler in self._on_error.items() if isinstance(error, kind))
            await (await handler(request, error))(scope, receive, send)
