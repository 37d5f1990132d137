"""`grpc.health.v1.Health`: SERVING only while a node is ready. Needs no key, as probes have none."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

from broker.gateway.grpc_api.entrance import Context
from broker.gateway.watch import Watch as MeshWatch

_LOOK_EVERY_S = 0.25  # at what the gateway's watch knows anyway


class Health(HealthServicer):
    """The empty service name stands for the whole. Watchers are told of changes, and let go at the end."""

    def __init__(self, watch: MeshWatch, services: Collection[str]) -> None:
        self._watch = watch
        self._services = frozenset(("", *services))
        self._is_leaving = False
        self._changed = asyncio.Condition()

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r} here")
        if not self._watch.is_ready:
            await self._watch.refresh()
        return self._answer(request.service)

    async def Watch(self, request: HealthCheckRequest, context: Context) -> None:
        answer = self._answer(request.service)
        await context.write(answer)
        while not self._is_leaving:
            async with self._changed:
                await self._changed.wait()
            last, answer = answer, self._answer(request.service)
            if answer != last:
                await context.write(answer)

    async def follow(self) -> None:
        """For ever: look, and wake those who watch."""
        while True:
            await self._wake()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def leave(self) -> None:
        """Not serving from now on, whatever the nodes are."""
        self._is_leaving = True
        await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _answer(self, service: str) -> HealthCheckResponse:
        if service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        is_serving = self._watch.is_ready and not self._is_leaving
        return HealthCheckResponse(
            status=HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
        )
