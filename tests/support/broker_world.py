"""Brokers, fake nodes and raw clients in one process, on loopback, with everything closed at the end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import zmq

from broker.config import BrokerConfig
from broker.server import BrokerServer
from mesh.messages import Ping, Pong, Welcome
from tests.support.broker_client import RawClient, until
from tests.support.fake_node import FakeNode


class World:
    """Its mesh has a name of its own, so that worlds in other processes do not meet it."""

    def __init__(self) -> None:
        self.mesh = f"test-{uuid.uuid4().hex[:8]}"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.nodes: list[FakeNode] = []
        self.brokers: list[BrokerServer] = []
        self.clients: list[RawClient] = []

    def node(self, name: str, **options: Any) -> FakeNode:
        node = FakeNode(name, mesh=self.mesh, **options)
        self.nodes.append(node)
        return node

    async def broker(self, *addresses: str, **options: Any) -> BrokerServer:
        """A broker that uses these nodes (or brokers)."""
        fields = {"name": f"broker-{len(self.brokers)}", "bind": "127.0.0.1:0", "mdns": False, "mesh": self.mesh}
        fields["insecure"] = True  # the nodes and clients of this world are scripted on raw sockets
        nodes = tuple(address.removeprefix("tcp://") for address in addresses)
        server = BrokerServer(BrokerConfig(**{**fields, "node": nodes, **options}))  # type: ignore[arg-type]
        await server.start()
        self.brokers.append(server)
        return server

    async def client(self, address: str, *, slots: int = 1, beat_s: float = 0.1) -> RawClient:
        """Welcomed, and told that this many slots are ready."""
        client = RawClient(self.context, address, beat_s=beat_s)
        self.clients.append(client)
        client.greets(self.mesh)
        await until(lambda: client.of(Welcome))
        await self.sees_slots(client, slots)
        return client

    async def sees_slots(self, client: RawClient, slots: int) -> None:
        def has_them() -> bool:
            client.sends(Ping(7))
            pongs = client.of(Pong)
            return bool(pongs) and sum(model.slots_total for model in pongs[-1].models) == slots

        await until(has_them)

    async def close(self) -> None:
        for client in self.clients:
            client.close()
        for server in self.brokers:
            await server.stop()
        for node in self.nodes:
            node.close()
        self.context.term()


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        await made.close()


def in_world(story: Callable[[World], Awaitable[None]]) -> None:
    """Run a test that is a coroutine."""

    async def run() -> None:
        async with world() as made:
            await story(made)

    asyncio.run(run())
