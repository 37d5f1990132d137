"""How long things take in a broker, kept where they happen and shown by its metrics."""

from __future__ import annotations

from mesh.metrics.buckets import DURATION_S, LATENESS_S, WAIT_S, Buckets


class Times:
    """Histograms, in seconds. Adding to one costs so little that nobody asks first whether it is wanted."""

    __slots__ = ("duration", "heartbeat", "queue")

    def __init__(self) -> None:
        self.queue = Buckets(WAIT_S)  # from the door to a node, each time that it goes to one
        self.duration = Buckets(DURATION_S)  # from the door to the node's last word
        self.heartbeat = Buckets(LATENESS_S)  # from a Ping to its Pong

    def copy(self) -> Times:
        other = Times()
        other.queue, other.duration, other.heartbeat = self.queue.copy(), self.duration.copy(), self.heartbeat.copy()
        return other
