"""The words for the state of a node, wherever a person meets them."""

from __future__ import annotations

from enum import StrEnum


class NodeState(StrEnum):
    JOINING = "joining"  # connected, or trying to; or its model is still loading
    READY = "ready"
    BUSY = "busy"  # no free slot
    SUSPECT = "suspect"  # one heartbeat missed: nothing new, nothing taken away
    STALLED = "stalled"  # has work and makes no step
    DRAINING = "draining"
    LOST = "lost"
