"""Gathers what is to be sent, so that a client gets one Tokens message for each engine step and not one per token.

The first token of a request leaves at once, and so does an ending. Later tokens of a streaming caller wait at most
`STREAM_GATHER_S` after the last message to that client: an engine whose steps take longer than that is never delayed.
Callers that do not stream need tokens only for a failover, so theirs wait longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from node.requests import ActiveRequest, Route

STREAM_GATHER_S = 0.020
BATCH_GATHER_S = 0.250


@dataclass(slots=True)
class _Client:
    last_sent_at: float = -1e9
    due_at: float = float("inf")
    requests: dict[int, ActiveRequest] = field(default_factory=dict)  # by engine_id, in order of arrival


class Outbox:
    """What is unsent, by client. Pure: it says what is due, the agent sends it."""

    def __init__(self) -> None:
        self._clients: dict[Route, _Client] = {}

    def add(self, request: ActiveRequest, now: float, *, urgent: bool) -> None:
        """Note that this request has something unsent."""
        client = self._clients.get(request.route)
        if client is None:
            client = self._clients[request.route] = _Client()
        client.requests[request.engine_id] = request
        gather_s = 0.0 if urgent else STREAM_GATHER_S if request.head.stream else BATCH_GATHER_S
        client.due_at = min(client.due_at, now if urgent else client.last_sent_at + gather_s)

    def take_due(self, now: float) -> Iterable[tuple[Route, list[ActiveRequest]]]:
        """Each client whose time has come, with all that it has unsent."""
        due = [(route, client) for route, client in self._clients.items() if client.due_at <= now]
        for route, client in due:
            requests = list(client.requests.values())
            client.requests.clear()
            client.due_at = float("inf")
            client.last_sent_at = now
            yield route, requests
        self._forget_idle(now)

    def take_request(self, request: ActiveRequest) -> bool:
        """Take one request out, sent or not. True if it had something unsent."""
        client = self._clients.get(request.route)
        if client is None or client.requests.pop(request.engine_id, None) is None:
            return False
        if not client.requests:
            client.due_at = float("inf")  # nothing is left to be sent, and nothing must not be due
        return True

    def _forget_idle(self, now: float) -> None:
        idle = [r for r, c in self._clients.items() if not c.requests and c.last_sent_at < now - BATCH_GATHER_S]
        for route in idle:
            del self._clients[route]

    def forget(self, hop: bytes) -> None:
        """A connection ended: nobody is there to send to."""
        for route in [route for route in self._clients if route[0] == hop]:
            del self._clients[route]

    def next_due(self) -> float:
        """When `take_due` has something next; infinite when nothing is unsent."""
        return min((client.due_at for client in self._clients.values()), default=float("inf"))
