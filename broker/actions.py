"""What the core wants done. The server carries these out in order; nothing else comes out of the core."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Route = tuple[bytes, ...]  # ZeroMQ's way back to whoever sent a message; the first frame is the hop next to us


class Redial(StrEnum):
    """When an address whose connection was closed may be tried again."""

    SOON = "soon"  # with the usual back-off
    SLOWLY = "slowly"  # it refused us: only a person can change that
    DUPLICATE = "duplicate"  # another address leads to the same node: once that one is gone
    NEVER = "never"  # it leads to ourselves


@dataclass(slots=True)
class ToClient:
    """Send on the front. `frames` begin with the route."""

    frames: list[bytes]


@dataclass(slots=True)
class ToNode:
    """Send on the connection `peer`."""

    peer: int
    frames: list[bytes]


@dataclass(slots=True)
class HangUp:
    """Close the connection `peer`; the core has already forgotten it."""

    peer: int
    reason: str
    redial: Redial


Action = ToClient | ToNode | HangUp
