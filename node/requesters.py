"""Who is connected to this node: brokers and direct clients, each with a lease that any message renews."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mesh.messages import Hello


@dataclass(slots=True)
class Requester:
    """One connection. It is known by its route's first frame, which ZeroMQ makes anew for each connection."""

    hop: bytes
    user: str  # "member" or "client:NAME", proved by its key
    role: str
    name: str
    last_heard_at: float


class Requesters:
    """All connections that said Hello and are still heard."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._by_hop: dict[bytes, Requester] = {}

    def __len__(self) -> int:
        return len(self._by_hop)

    def __contains__(self, hop: object) -> bool:
        return hop in self._by_hop

    def welcome(self, hop: bytes, user: str, hello: Hello, now: float) -> None:
        self._by_hop[hop] = Requester(hop, user, hello.role, hello.name, now)

    def user_of(self, hop: bytes) -> str:
        """Empty for a connection that has not said Hello."""
        requester = self._by_hop.get(hop)
        return requester.user if requester is not None else ""

    def of_users(self, users: set[str]) -> list[Requester]:
        return [r for r in self._by_hop.values() if r.user in users]

    @property
    def users(self) -> set[str]:
        return {r.user for r in self._by_hop.values()}

    def heard(self, hop: bytes, now: float) -> bool:
        """Renew the lease. False for a connection that has not said Hello."""
        requester = self._by_hop.get(hop)
        if requester is None:
            return False
        requester.last_heard_at = now
        return True

    def forget(self, hop: bytes) -> Requester | None:
        return self._by_hop.pop(hop, None)

    def expired(self, now: float) -> Iterator[Requester]:
        """Those not heard for the lease. There are few, so a scan at each heartbeat is cheap."""
        return iter([r for r in self._by_hop.values() if now - r.last_heard_at > self._lease_s])
