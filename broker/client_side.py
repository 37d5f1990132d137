"""What clients say, and what is done about it. A client may be a broker with clients of its own behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from broker.actions import Route
from broker.book import Book
from broker.clients import Account, Client, Clients, Hop
from broker.node_side import NodeSide
from broker.outbox import Outbox
from broker.reports import Reporter
from broker.timers import Timers
from mesh.codec import decode
from mesh.errors import BadMessage, VersionMismatch
from mesh.log_budget import LogBudget
from mesh.messages import (
    MAX_HELLO_BYTES,
    ROLES,
    Admin,
    Bye,
    Cancel,
    Done,
    Hello,
    Message,
    Ping,
    Query,
    Refused,
    Report,
    RequestHead,
    Submit,
)
from mesh.security.keys import MEMBER

logger = logging.getLogger(__name__)

_SAY_HELLO = "say Hello first: this broker does not know the connection (any more)"
MAX_HOPS = 8  # brokers behind brokers; more are surely connected in a circle


class ClientSide:
    """Answers every message of a requester. Nothing that arrives here can raise."""

    def __init__(
        self, clients: Clients, book: Book, nodes: NodeSide, reporter: Reporter, outbox: Outbox, timers: Timers
    ) -> None:
        self._clients = clients
        self._book = book
        self._nodes = nodes
        self._reporter = reporter
        self._config = book.config
        self._outbox = outbox
        self._timers = timers
        self._log_budget = LogBudget()
        # A table from type to handler; each takes a message of its own type, which the table's type cannot say.
        self._handlers: dict[type[Message], Callable[[Hop, Route, Any, Sequence[bytes], float], None]] = {
            Ping: self._on_ping,
            Submit: self._on_submit,
            Cancel: self._on_cancel,
            Query: self._on_query,
            Admin: self._on_admin,
            Bye: self._on_bye,
        }

    def receive(self, user: str, frames: list[bytes], now: float) -> None:
        """One message from the front: `[route…, b"", header, body…]`. `user` is who its key proves it to be."""
        try:
            cut = frames.index(b"", 1)  # the ROUTER has put the first frame there
            route, header = tuple(frames[:cut]), frames[cut + 1]
        except (ValueError, IndexError):
            self._malformed(tuple(frames[:1]), "frames: no empty delimiter with a header after it")
            return
        hop = self._clients.hops.get(route[0])
        if hop is not None:
            hop.last_heard = now
        try:
            if hop is None and len(header) > MAX_HELLO_BYTES:
                self._refuse(route, "no_hello", _SAY_HELLO)  # it may be a large Submit of a client that was forgotten
                return
            message = decode(header)
            if len(route) > MAX_HOPS:
                raise BadMessage("route", f"{len(route)} brokers deep: are they connected in a circle?")
            if len(route) > 1 and hop is not None and hop.role != "broker":
                raise BadMessage("route", "only a broker may pass on what others say")
            self._handle(user, hop, route, message, frames[cut + 2 :], now)
        except VersionMismatch as error:
            self._refuse(route, VersionMismatch.code, str(error))
        except BadMessage as error:
            self._malformed(route, str(error))

    def gone(self, route_id: bytes, reason: str) -> None:
        """The hop is not reachable, or nobody is left there: cancel all it has and forget it."""
        hop = self._clients.leave(route_id)
        if hop is None:
            return
        num_requests = sum(len(client.requests) for client in hop.clients.values())
        for client in list(hop.clients.values()):
            self._book.drop_client(client, "abandoned")
        if hop.timer is not None:
            self._timers.cancel(hop.timer)
        self._book.counters["clients_gone"] += 1
        logger.log(hop.log_level, "client_gone name=%.100r reason=%r cancelled=%d", hop.name, reason, num_requests)

    @property
    def users(self) -> set[str]:
        """Who is connected."""
        return {hop.user for hop in self._clients.hops.values()}

    def end_access(self, users: set[str]) -> None:
        """These were let in and would not be any more: their keys were revoked."""
        for hop in [hop for hop in self._clients.hops.values() if hop.user in users]:
            self._refuse((hop.route_id,), "revoked_key", "this key was revoked; ask for a new token")
            self.gone(hop.route_id, "its key was revoked")

    def slow(self, route_id: bytes) -> None:
        """It does not read what it gets. Waiting for it would make everybody wait."""
        if route_id in self._clients.hops:
            self._book.counters["clients_shed"] += 1
            self.gone(route_id, "does not read its answers")

    def _handle(
        self, user: str, hop: Hop | None, route: Route, message: Message, bodies: list[bytes], now: float
    ) -> None:
        if type(message) is Hello:
            self._on_hello(user, hop, route, message, now)
        elif hop is None:
            self._refuse(route, "no_hello", _SAY_HELLO)
        else:
            handler = self._handlers.get(type(message))
            if handler is None:
                raise BadMessage("tag", f"{type(message).__name__} is not for a broker to receive from a client")
            handler(hop, route, message, bodies, now)

    def _on_hello(self, user: str, hop: Hop | None, route: Route, hello: Hello, now: float) -> None:
        if hello.role not in ROLES:
            raise BadMessage("Hello.role", f"must be one of {', '.join(ROLES)}")
        if len(route) > 1:
            raise BadMessage("Hello", "is between neighbours and cannot be passed on")
        if hello.mesh != self._config.mesh:
            self._refuse(route, "wrong_mesh", f"this is mesh {self._config.mesh!r}, not {hello.mesh!r}")
            return
        if hello.role == "broker" and user != MEMBER:
            self._refuse(route, "forbidden", "this is a client's key, and only a member may be a broker")
            return
        if hello.role == "broker" and self._nodes.uses_process(hello.epoch):
            self._refuse(route, "forbidden", "this broker uses you as a node: two brokers cannot serve each other")
            return
        if hop is not None and hop.epoch != hello.epoch:
            self.gone(hop.route_id, "another process on the same connection")
            hop = None
        if hop is None:
            account = self._clients.account(user)
            if problem := self._too_many(user, account):
                self._refuse(route, "too_many_connections", problem)
                return
            hop = Hop(route[0], user, hello, now, account)
            self._clients.join(hop)
            self._clients.get(hop, route)
            self._check_lease(hop, now)
            # The name is what somebody chose to say: shown so that it cannot pass for another line of the log.
            hop.log_level = self._log_budget.level(now)
            logger.log(hop.log_level, "client_joined name=%.100r role=%s user=%s", hello.name, hello.role, user)
        self._outbox.to_client(route, self._reporter.welcome(hop, now))

    def _too_many(self, user: str, account: Account) -> str:
        """Why one more may not connect; empty if it may."""
        if len(self._clients) >= self._config.max_connections:
            return f"{len(self._clients)} are connected to this broker already, which is its limit"
        if user != MEMBER and account.num_connections >= self._config.max_connections_per_client:
            return f"this client has {account.num_connections} connections already, which is the limit"
        return ""

    def _on_ping(self, hop: Hop, route: Route, message: Ping, bodies: Sequence[bytes], now: float) -> None:
        self._outbox.to_client(route, self._reporter.pong(message.sequence, hop, now))

    def _on_submit(self, hop: Hop, route: Route, message: Submit, bodies: Sequence[bytes], now: float) -> None:
        heads = message.requests
        if len(heads) != len(bodies):
            raise BadMessage("Submit", f"{len(heads)} requests but {len(bodies)} body frames")
        client = self._clients.get(hop, route)
        client.codecs = message.codecs
        if len(heads) > self._config.max_batch:
            self._reject_batch(client, heads)
        else:
            self._book.submit(client, heads, bodies, now)
        self._clients.drop_if_idle(client)

    def _reject_batch(self, client: Client, heads: Sequence[RequestHead]) -> None:
        text = f"{len(heads)} requests in one message; at most {self._config.max_batch}"
        for head in heads:
            self._book.reject(client, head, "invalid_request", text)

    def _on_cancel(self, hop: Hop, route: Route, message: Cancel, bodies: Sequence[bytes], now: float) -> None:
        client = hop.clients.get(route)
        if client is not None:
            self._book.cancel(client, message.request_ids)

    def _on_query(self, hop: Hop, route: Route, message: Query, bodies: Sequence[bytes], now: float) -> None:
        if message.what != "status":
            raise BadMessage("Query.what", f"{message.what[:100]!r} is unknown; there is 'status'")
        self._outbox.to_client(route, Report(message.query_id), self._reporter.status_body(hop, now))

    def _on_admin(self, hop: Hop, route: Route, message: Admin, bodies: Sequence[bytes], now: float) -> None:
        if message.action not in ("drain", "undrain"):
            raise BadMessage("Admin.action", "must be 'drain' or 'undrain'")
        if not self._may_administer(hop):
            done = Done(message.query_id, False, "this is a client's key: only a member may do that")
        else:
            problem = self._nodes.administer(message.action, message.target, now)
            done = Done(message.query_id, not problem, problem)
        self._outbox.to_client(route, done)

    def _may_administer(self, hop: Hop) -> bool:
        return hop.user == MEMBER

    def _on_bye(self, hop: Hop, route: Route, message: Bye, bodies: Sequence[bytes], now: float) -> None:
        if len(route) == 1:
            self.gone(hop.route_id, "said goodbye")
        elif (client := hop.clients.get(route)) is not None:
            self._book.drop_client(client, "abandoned")

    def _check_lease(self, hop: Hop, now: float) -> None:
        due = hop.last_heard + self._config.lease_s
        if now >= due:
            self.gone(hop.route_id, f"silent for {now - hop.last_heard:.1f} s")
        else:
            hop.timer = self._timers.at(due, partial(self._check_lease, hop))

    def _refuse(self, route: Route, code: str, text: str) -> None:
        self._book.counters[f"refused_{code}"] += 1
        self._outbox.to_client(route, Refused(code, text))

    def _malformed(self, route: Route, text: str) -> None:
        self._book.counters["malformed"] += 1
        self._refuse(route, BadMessage.code, text)
