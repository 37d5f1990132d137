"""Admission: how many answers may wait here for their first token. Pure.

Waiting for a mesh that is full is right for a job and wrong for HTTP, where somebody holds a connection. So what waits
is counted here, and past the limit the door says 429 at once. What the mesh itself turns away gets its 429 after
`--overload-patience`.
"""

from __future__ import annotations

from collections import Counter, deque

from broker.gateway.problems import Problem

_SHARE = 4  # a share may have this many times the free places: one caller alone cannot lock the others out
_WINDOW = 64  # first tokens over which the pace is taken
_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 30.0


class Ticket:
    """One request inside. `first_token` and `leave` may be called in any order, any number of times."""

    __slots__ = ("_door", "_is_inside", "_is_waiting", "_num", "_share")

    def __init__(self, door: Door, share: str, num: int) -> None:
        self._door = door
        self._share = share
        self._num = num
        self._is_waiting = self._is_inside = True

    def first_token(self, now: float) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._door.served(self._share, self._num, now)

    def leave(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._door.stopped_waiting(self._share, self._num)
        if self._is_inside:
            self._is_inside = False
            self._door.num_inside -= self._num


class Door:
    """Invariant: `num_waiting` is the sum over the tickets that have neither a first token nor left."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._by_share: Counter[str] = Counter()
        self._served_at: deque[float] = deque(maxlen=_WINDOW)
        self.num_waiting = 0
        self.num_inside = 0

    def enter(self, share: str, num: int, now: float) -> Ticket:
        """Raises Problem 429."""
        free = self._max_waiting - self.num_waiting
        if num > free or self._by_share[share] + num > _SHARE * free:
            raise Problem(
                429,
                f"{self.num_waiting} answers are waiting for a node already: try again later",
                code="overloaded",
                retry_after_s=self._retry_after_s(now),
            )
        self.num_waiting += num
        self.num_inside += num
        self._by_share[share] += num
        return Ticket(self, share, num)

    def served(self, share: str, num: int, now: float) -> None:
        self._served_at.append(now)
        self.stopped_waiting(share, num)

    def stopped_waiting(self, share: str, num: int) -> None:
        self.num_waiting -= num
        self._by_share[share] -= num
        if not self._by_share[share]:
            del self._by_share[share]

    def _retry_after_s(self, now: float) -> float:
        """When a quarter of what waits will have been served, at the pace of late."""
        if len(self._served_at) < 2:
            return _MIN_RETRY_S
        per_s = len(self._served_at) / max(now - self._served_at[0], 0.001)
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, self.num_waiting / 4 / per_s))
