"""One request, from the door to its ending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.dispatch import GUESSED_TOKENS
from mesh.messages import RequestHead

if TYPE_CHECKING:
    from broker.clients import Client
    from broker.registry import Model, ServedModel
    from broker.timers import Timer


class Request:
    """Queued while `served` is None, in flight after that, and nobody's once `is_over`.

    The body stays until the end, because a node may turn a request away and another must get it.
    """

    __slots__ = (
        "accepted_at",
        "body",
        "client",
        "cost",
        "dispatched_at",
        "head",
        "is_over",
        "model",
        "num_bounces",
        "sequence",
        "served",
        "timer",
    )

    def __init__(self, client: Client, head: RequestHead, body: bytes, model: Model, sequence: int, now: float) -> None:
        self.client = client
        self.head = head
        self.body = body
        self.model = model
        self.sequence = sequence  # the order of arrival, kept when a node turns it away
        self.cost = (head.prompt_tokens + head.max_tokens) or GUESSED_TOKENS
        self.accepted_at = now
        self.dispatched_at = 0.0
        self.served: ServedModel | None = None
        self.timer: Timer | None = None
        self.num_bounces = 0
        self.is_over = False

    @property
    def key(self) -> tuple[int, int]:
        return self.head.request_id, self.head.attempt

    @property
    def affinity_key(self) -> bytes:
        """The caller's key, else the client: one client's requests share a prefix more often than not."""
        return self.head.affinity.encode() or b"".join(self.client.route)
