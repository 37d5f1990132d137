"""Many alarms on one loop timer: a heap with lazy deletion."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

_COMPACT_FROM = 1024


class Alarms:
    """Calls `ring(key, now)` once for each alarm set. There is no unset: an alarm nobody needs any more rings in vain.

    So that the alarms of requests long finished do not pile up until their deadlines, a heap that has doubled is
    cleared of keys that `is_live` denies.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ring: Callable[[int, float], object], is_live: Callable[[int], bool]
    ) -> None:
        self._loop = loop
        self._ring = ring
        self._is_live = is_live
        self._heap: list[tuple[float, int]] = []
        self._compact_at = _COMPACT_FROM
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0  # kept here: what uvloop's call_at returns for a time that has come cannot tell it

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, when: float, key: int) -> None:
        """Ring at loop time `when`."""
        heapq.heappush(self._heap, (when, key))
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if self._is_live(entry[1])]
            heapq.heapify(self._heap)
            self._compact_at = max(_COMPACT_FROM, 2 * len(self._heap))
        self._arm()

    def close(self) -> None:
        self._heap.clear()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            if self._heap and self._rings_at <= self._heap[0][0]:
                return  # rings early at worst, and is set again then
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._rings_at = self._heap[0][0]
            self._timer = self._loop.call_at(self._rings_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # A loop may fire a clock tick early: what is due within a millisecond is due.
        now = self._loop.time() + 0.001
        while self._heap and self._heap[0][0] <= now:
            self._ring(heapq.heappop(self._heap)[1], now)
        self._arm()
