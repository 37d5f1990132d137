"""Answers of nodes on their way to clients. Frames pass unchanged; only the header is read, to free what has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.actions import Route
from broker.book import Book
from broker.clients import Client, Clients
from broker.outbox import Outbox
from broker.registry import Node
from mesh.messages import Accepted, Failed, Lost, Message, Rejected, Tokens

_TURNED_AWAY = ("overloaded", "not_ready")  # backpressure: another node, or this one a little later


class Relay:
    """Passes on what concerns a request and frees its place when it ends. Late words about requests that are gone are
    dropped and counted; the client would drop them as well."""

    def __init__(self, book: Book, clients: Clients, outbox: Outbox) -> None:
        self._book = book
        self._clients = clients
        self._outbox = outbox
        # A table from type to handler; each takes a message of its own type, which the table's type cannot say.
        self._handlers: dict[type[Message], Callable[[Node, Client, Any, list[bytes], float], None]] = {
            Tokens: self._on_tokens,
            Accepted: self._on_accepted,
            Rejected: self._on_rejected,
            Lost: self._on_lost,
            Failed: self._on_failed,
        }

    def receive(self, node: Node, route: Route, message: Message, frames: list[bytes], now: float) -> None:
        """A message for a client."""
        client = self._clients.find(route)
        handler = self._handlers.get(type(message))
        if client is None or handler is None or not client.requests:
            self._book.counters["late_frames"] += 1
            return
        handler(node, client, message, frames, now)

    def _on_tokens(self, node: Node, client: Client, tokens: Tokens, frames: list[bytes], now: float) -> None:
        # The body names requests too, which the broker does not read: what is old in it, the client drops by attempt.
        self._outbox.relay(frames)
        book = self._book
        book.num_tokens += tokens.num_tokens
        client.hop.num_tokens += tokens.num_tokens
        for key in tokens.finished:
            request = book.find(client, key, node)
            if request is not None:
                book.end(request, "finished", now)

    def _on_accepted(self, node: Node, client: Client, accepted: Accepted, frames: list[bytes], now: float) -> None:
        """From a server that says it to brokers as well. The client hears from this broker whether it waits."""

    def _on_rejected(self, node: Node, client: Client, rejected: Rejected, frames: list[bytes], now: float) -> None:
        request = self._book.find(client, (rejected.request_id, rejected.attempt), node)
        if request is None:
            self._book.counters["late_frames"] += 1
        elif rejected.code not in _TURNED_AWAY or not self._book.bounce(request, rejected.retry_after_s, now):
            self._outbox.relay(frames)
            self._book.end(request, f"rejected_{_known(rejected.code)}", now)

    def _on_failed(self, node: Node, client: Client, failed: Failed, frames: list[bytes], now: float) -> None:
        request = self._book.find(client, (failed.request_id, failed.attempt), node)
        if request is None:
            self._book.counters["late_frames"] += 1
            return
        self._outbox.relay(frames)
        self._book.end(request, "failed", now)

    def _on_lost(self, node: Node, client: Client, lost: Lost, frames: list[bytes], now: float) -> None:
        requests = [request for key in lost.requests if (request := self._book.find(client, key, node))]
        if not requests:
            self._book.counters["late_frames"] += 1
            return
        self._outbox.relay(frames)
        for request in requests:
            self._book.end(request, "lost", now)


_CODES = ("invalid_request", "no_such_model", "prompt_too_long", "forbidden", "deadline_exceeded", *_TURNED_AWAY)


def _known(code: str) -> str:
    """A counter must not grow by what nodes invent."""
    return code if code in _CODES else "other"
