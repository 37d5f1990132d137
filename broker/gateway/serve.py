"""The gateway's process: sockets, uvicorn, signals, and the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from broker.gateway.app import build_app
from broker.gateway.config import GatewayConfig
from broker.gateway.gateway import Gateway
from broker.gateway.http_protocol import BoundedHttpProtocol
from broker.gateway.operations import exposition
from mesh.errors import ConfigError

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_KEEP_ALIVE_S = 75  # longer than clients keep a connection, so that none closes under a request being sent


def serve(config: GatewayConfig) -> None:
    """Until SIGINT or SIGTERM. Raises ConfigError for an address, a key file or a certificate that will not do."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
    uvloop.run(_serve(config))


async def _serve(config: GatewayConfig) -> None:
    gateway = Gateway(config)
    listener = _listen(config.endpoint.host, config.endpoint.port, "--bind")
    app = build_app(gateway)
    servers = [(_server(app, config, is_public=True), listener)]
    stops: list[Callable[[], None]] = [gateway.feed.leave_soon]
    if config.grpc_endpoint is not None:
        from broker.gateway.grpc_api.server import GrpcServer  # only who wants it needs grpcio

        grpc_server = GrpcServer(gateway, config.grpc_endpoint)
        stops.append(grpc_server.leave_soon)
        _run_within(app, grpc_server.running)
    if config.metrics_port:
        metrics_listener = _listen(config.endpoint.host, config.metrics_port, "--metrics-port")
        servers.append((_server(_metrics_app(gateway), config, is_public=False), metrics_listener))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, number, [server for server, _ in servers], stops)
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.tls_cert else "http"
    logger.info(
        "serving address=%s://%s:%d mesh=%s broker=%s keys=%s",
        scheme, f"[{host}]" if ":" in host else host, port, config.mesh, config.broker or "to be found",
        "none" if gateway.keys is None else len(gateway.keys.names),
    )  # fmt: skip
    await asyncio.gather(*(server.serve(sockets=[listening]) for server, listening in servers))
    logger.info("stopped")


def _listen(host: str, port: int, flag: str) -> socket.socket:
    host = "" if host == "*" else host
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"{flag}: cannot listen on {host or '*'}:{port}: {error.strerror}") from None


def _server(app: ASGIApp, config: GatewayConfig, *, is_public: bool) -> Server:
    told = uvicorn.Config(
        app,
        loop="none",
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="on" if is_public else "off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(config.drain_s)),
        ssl_certfile=config.tls_cert if is_public else None,
        ssl_keyfile=config.tls_key if is_public else None,
    )
    try:
        told.load()
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"--tls-cert, --tls-key: cannot be used: {error}") from None
    return Server(told)


class Server(uvicorn.Server):
    """Leaves the signals to us: uvicorn would raise them again at the end, and the exit status would tell of a kill."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _run_within(app: FastAPI, running: Callable[[], AbstractAsyncContextManager[None]]) -> None:
    """Also run this as long as the application, and end it before what the application runs itself."""
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with inner(app), running():
            yield

    app.router.lifespan_context = lifespan


def _on_signal(number: signal.Signals, servers: list[Server], stops: list[Callable[[], None]]) -> None:
    if any(server.should_exit for server in servers):
        logger.warning("stopping_hard signal=%s", number.name)
        os._exit(128 + number)  # whoever asks twice does not want to wait for anything
    logger.info("stopping signal=%s", number.name)
    for server in servers:
        server.should_exit = True
    for stop in stops:
        stop()


def _metrics_app(gateway: Gateway) -> Starlette:
    async def metrics(request: Request) -> Response:
        return exposition(gateway.metrics.registry, request)

    return Starlette(routes=[Route("/metrics", metrics)])
