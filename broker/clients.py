"""Who is connected to the front: hops, each with a lease, and the clients behind them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.actions import Route
from mesh.messages import Hello
from mesh.security.keys import MEMBER

if TYPE_CHECKING:
    from broker.request import Request
    from broker.timers import Timer


class Account:
    """What one caller has here, against its limits. All connections of a named client share one; a member is trusted
    to be one caller for each connection, and whoever comes through another broker for each route."""

    __slots__ = ("num_connections", "num_queued", "num_requests", "queued_bytes")

    def __init__(self) -> None:
        self.num_connections = 0
        self.num_requests = 0  # unfinished
        self.num_queued = 0
        self.queued_bytes = 0


class Client:
    """One route and its unfinished requests. A broker that is our requester brings many of these over one hop."""

    __slots__ = ("account", "codecs", "hop", "requests", "route")

    def __init__(self, route: Route, hop: Hop) -> None:
        self.route = route
        self.hop = hop
        self.codecs: tuple[str, ...] = ()  # what it said it can unpack, with its last Submit
        self.requests: dict[int, Request] = {}
        self.account = hop.account if len(route) == 1 else Account()


class Hop:
    """One connection to the front: a client, or a broker with clients of its own. The lease is the hop's."""

    __slots__ = (
        "account",
        "clients",
        "epoch",
        "last_heard",
        "log_level",
        "name",
        "num_by_model",
        "num_tokens",
        "role",
        "route_id",
        "timer",
        "user",
    )

    def __init__(self, route_id: bytes, user: str, hello: Hello, now: float, account: Account | None = None) -> None:
        self.route_id = route_id
        self.account = account or Account()
        self.user = user  # "member" or "client:NAME", proved by its key
        self.role = hello.role
        self.name = hello.name
        self.epoch = hello.epoch
        self.last_heard = now
        self.clients: dict[Route, Client] = {}
        self.num_by_model: Counter[str] = Counter()  # unfinished requests: `num_yours` of its Pongs
        self.num_tokens = 0  # given to it
        self.timer: Timer | None = None
        self.log_level = logging.INFO  # of the lines about its coming and going


class Clients:
    """The hops that said Hello, and their clients by route. Clients behind a broker live as long as their requests."""

    def __init__(self) -> None:
        self.hops: dict[bytes, Hop] = {}
        self._named: dict[str, Account] = {}  # of those who have a key of their own

    def __len__(self) -> int:
        return len(self.hops)

    def __iter__(self) -> Iterator[Client]:
        return (client for hop in self.hops.values() for client in hop.clients.values())

    def account(self, user: str) -> Account:
        """Of somebody who connects."""
        if user == MEMBER:
            return Account()
        return self._named.get(user) or Account()

    def join(self, hop: Hop) -> None:
        self.hops[hop.route_id] = hop
        hop.account.num_connections += 1
        if hop.user != MEMBER:
            self._named[hop.user] = hop.account

    def leave(self, route_id: bytes) -> Hop | None:
        """None if nobody of that route is here. Its requests are for the caller to end."""
        hop = self.hops.pop(route_id, None)
        if hop is not None:
            hop.account.num_connections -= 1
            if not hop.account.num_connections:
                self._named.pop(hop.user, None)
        return hop

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
