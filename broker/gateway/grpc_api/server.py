"""The gRPC server of a gateway: its address, its services, its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from broker.gateway.config import GatewayConfig
from broker.gateway.gateway import Gateway
from broker.gateway.grpc_api import kserve_v2_pb2, phi3_inference_pb2
from broker.gateway.grpc_api.entrance import Entrance
from broker.gateway.grpc_api.health import Health
from broker.gateway.grpc_api.kserve import GRPCInferenceService
from broker.gateway.grpc_api.kserve_v2_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from broker.gateway.grpc_api.phi3 import Phi3Inference
from broker.gateway.grpc_api.phi3_inference_pb2_grpc import add_Phi3InferenceServicer_to_server
from broker.gateway.grpc_api.reflection import add_reflection
from mesh.discovery.addresses import Endpoint
from mesh.errors import ConfigError

logger = logging.getLogger(__name__)

_PING_EVERY_MS = 20_000  # and as long to answer: a caller that is gone without a word holds no slot for ever
_CALLER_PINGS_MS = 5_000  # who pings more often is cut off; gRPC's own limit of five minutes cuts off too many


class GrpcServer:
    """Listens from the start on, answers within `running`. Made on the event loop that the gateway lives on."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint) -> None:
        """Raises ConfigError for an address that is taken."""
        self._config = gateway.config
        self._leaving: asyncio.Task[None] | None = None
        services = [
            phi3_inference_pb2.DESCRIPTOR.services_by_name["Phi3Inference"].full_name,
            kserve_v2_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name,
        ]
        self._health = Health(gateway.watch, services)
        self._server = grpc.aio.server(options=_options(self._config))
        entrance = Entrance(gateway)
        add_Phi3InferenceServicer_to_server(Phi3Inference(entrance), self._server)
        add_GRPCInferenceServiceServicer_to_server(GRPCInferenceService(entrance), self._server)
        add_HealthServicer_to_server(self._health, self._server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        add_reflection((*services, health_name), self._server)
        self._address = self._listen(endpoint)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Calls that still run at the end have `drain_s` from then, or from `leave_soon` if that was before."""
        await self._server.start()
        following = asyncio.create_task(self._health.follow())
        logger.info("serving_grpc address=%s tls=%s", self._address, "yes" if self._config.tls_cert else "no")
        try:
            yield
        finally:
            self.leave_soon()
            assert self._leaving is not None
            await self._leaving
            following.cancel()

    def leave_soon(self) -> None:
        """Take no more calls."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        await self._health.leave()
        await self._server.stop(self._config.drain_s)

    def _listen(self, endpoint: Endpoint) -> str:
        host = "[::]" if endpoint.host == "*" else f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        address = f"{host}:{endpoint.port}"
        try:
            if self._config.tls_cert is not None and self._config.tls_key is not None:
                pair = (self._config.tls_key.read_bytes(), self._config.tls_cert.read_bytes())
                port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            else:
                port = self._server.add_insecure_port(address)
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"--grpc-bind: cannot listen on {address}: {error}") from None
        return f"{host}:{port}"


def _options(config: GatewayConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # or a second gateway on the same port would take half of the calls unnoticed
        ("grpc.max_receive_message_length", config.max_request_bytes),
        ("grpc.max_metadata_size", config.max_header_bytes),
        ("grpc.keepalive_time_ms", _PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", _PING_EVERY_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _CALLER_PINGS_MS),
        ("grpc.absolute_max_metadata_size", config.max_header_bytes),
    ]
