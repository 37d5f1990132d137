"""Who is connected to this node: brokers and direct clients, each with a lease that any message renews."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mesh.log_budget import LogBudget
from mesh.messages import ROLES, Hello

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Requester:
    """One connection. It is known by its route's first frame, which ZeroMQ makes anew for each connection."""

    hop: bytes
    user: str  # "member" or "client:NAME", proved by its key
    role: str
    name: str
    last_heard_at: float
    log_level: int = logging.INFO  # of the lines about its coming and going


class Requesters:
    """All connections that said Hello and are still heard."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._by_hop: dict[bytes, Requester] = {}
        self._budget = LogBudget()

    def __len__(self) -> int:
        return len(self._by_hop)

    def __contains__(self, hop: object) -> bool:
        return hop in self._by_hop

    def is_broker(self, hop: bytes) -> bool:
        """Whether it brings the requests of others."""
        requester = self._by_hop.get(hop)
        return requester is not None and requester.role == "broker"

    def welcome(self, hop: bytes, user: str, hello: Hello, now: float) -> None:
        """Greeted again, it is who it says it is now."""
        known = self._by_hop.get(hop)
        level = known.log_level if known is not None else self._budget.level(now)
        requester = self._by_hop[hop] = Requester(hop, user, hello.role, hello.name, now, level)
        if known is None:
            # The name is what somebody chose to say: shown so that it cannot pass for another line of the log.
            logger.log(level, "connected role=%s name=%.100r user=%s", requester.role, requester.name, user)

    def user_of(self, hop: bytes) -> str:
        """Empty for a connection that has not said Hello."""
        requester = self._by_hop.get(hop)
        return requester.user if requester is not None else ""

    def of_users(self, users: set[str]) -> list[Requester]:
        return [r for r in self._by_hop.values() if r.user in users]

    @property
    def users(self) -> set[str]:
        return {r.user for r in self._by_hop.values()}

    def brokers(self) -> list[Requester]:
        return [r for r in self._by_hop.values() if r.role == "broker"]

    def num_by_role(self) -> dict[str, int]:
        """Of each role, those there are none of too."""
        counted = Counter(r.role for r in self._by_hop.values())
        return {role: counted[role] for role in ROLES}

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
