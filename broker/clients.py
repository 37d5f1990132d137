"""Who is connected to the front: hops, each with a lease, and the clients behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.actions import Route
from mesh.messages import Hello

if TYPE_CHECKING:
    from broker.request import Request
    from broker.timers import Timer


class Client:
    """One route and its unfinished requests. A broker that is our requester brings many of these over one hop."""

    __slots__ = ("codecs", "hop", "num_queued", "requests", "route")

    def __init__(self, route: Route, hop: Hop) -> None:
        self.route = route
        self.hop = hop
        self.codecs: tuple[str, ...] = ()  # what it said it can unpack, with its last Submit
        self.requests: dict[int, Request] = {}
        self.num_queued = 0


class Hop:
    """One connection to the front: a client, or a broker with clients of its own. The lease is the hop's."""

    __slots__ = ("clients", "epoch", "last_heard", "name", "num_by_model", "role", "route_id", "timer", "user")

    def __init__(self, route_id: bytes, user: str, hello: Hello, now: float) -> None:
        self.route_id = route_id
        self.user = user  # "member" or "client:NAME", proved by its key
        self.role = hello.role
        self.name = hello.name
        self.epoch = hello.epoch
        self.last_heard = now
        self.clients: dict[Route, Client] = {}
        self.num_by_model: Counter[str] = Counter()  # unfinished requests: `num_yours` of its Pongs
        self.timer: Timer | None = None


class Clients:
    """The hops that said Hello, and their clients by route. Clients behind a broker live as long as their requests."""

    def __init__(self) -> None:
        self.hops: dict[bytes, Hop] = {}

    def __len__(self) -> int:
        return len(self.hops)

    def __iter__(self) -> Iterator[Client]:
        return (client for hop in self.hops.values() for client in hop.clients.values())

    def find(self, route: Route) -> Client | None:
        hop = self.hops.get(route[0])
        return None if hop is None else hop.clients.get(route)

    def get(self, hop: Hop, route: Route) -> Client:
        client = hop.clients.get(route)
        if client is None:
            client = hop.clients[route] = Client(route, hop)
        return client

    def drop_if_idle(self, client: Client) -> bool:
        """A client on its own hop lives as long as that; one behind a broker may never come back, and is dropped."""
        if client.requests or len(client.route) == 1:
            return False
        client.hop.clients.pop(client.route, None)
        return True
