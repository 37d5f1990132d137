"""The FastAPI application: routes of every API around one Gateway, errors in each API's own words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from broker.gateway import anthropic_api, kserve_api, openai_api
from broker.gateway.anthropic_api.routes import messages
from broker.gateway.dialects import error_response
from broker.gateway.entrance import Entrance
from broker.gateway.fast_paths import FastPaths
from broker.gateway.gateway import Gateway
from broker.gateway.openai_api.routes import chat_completions, completions
from broker.gateway.operations import router as operations
from broker.gateway.origins import OriginGuard
from broker.gateway.page.routes import router as page
from broker.gateway.problems import Problem
from broker.gateway.tally import Tally
from mesh.errors import MeshError
from mesh.version import __version__


def build_app(gateway: Gateway) -> FastAPI:
    """Everything over HTTP. The gateway runs as long as the application's lifespan."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    # No /docs: its page loads scripts from elsewhere, and nothing here makes a browser leave the host.
    app = FastAPI(title="phi3-mesh gateway", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.gateway = gateway
    for router in (openai_api.router, anthropic_api.router, kserve_api.router, operations, page):
        app.include_router(router)
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(MeshError, _on_mesh_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(
        FastPaths,
        fastapi=app,
        endpoints={
            "/v1/chat/completions": chat_completions,
            "/v1/completions": completions,
            "/v1/messages": messages,
        },
        on_error={Problem: _on_problem, MeshError: _on_mesh_error},
    )
    if gateway.config.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(gateway.config.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "x-mesh-node"],
        )
    if gateway.keys is None:
        app.add_middleware(OriginGuard, allowed=gateway.config.cors)
    app.add_middleware(Entrance, metrics=gateway.metrics, max_header_bytes=gateway.config.max_header_bytes)
    return app


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error_response(request.url.path, error)


async def _on_mesh_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MeshError)
    tally: Tally = request.scope["tally"]
    return error_response(request.url.path, tally.on_error(error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    told = {404: f"there is no {request.url.path} here", 405: f"{request.method} does not work on {request.url.path}"}
    response = error_response(request.url.path, Problem(error.status_code, told.get(error.status_code, error.detail)))
    response.headers.update(error.headers or {})
    return response


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """A path or query parameter; bodies are read by broker.gateway.fields."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return error_response(request.url.path, Problem(400, f"{first['loc'][-1]}: {first['msg']}"))


async def _on_bug(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, Problem(500, "the gateway has a bug; its log says more", code="internal"))
