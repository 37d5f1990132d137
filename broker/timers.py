"""Deadlines in one heap. Setting and cancelling cost O(log n) and O(1); nothing is ever searched."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

OnDue = Callable[[float], None]

_SLACK = 64  # cancelled entries that are not worth a rebuild


class Timer:
    """A handle for `Timers.cancel`."""

    __slots__ = ("on_due",)

    def __init__(self, on_due: OnDue) -> None:
        self.on_due: OnDue | None = on_due  # None: cancelled or done


class Timers:
    """Calls each `on_due(now)` once, not before its time. A cancelled timer holds on to nothing, and the heap never has
    more cancelled entries than live ones plus a few."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._num_dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._num_dead

    def at(self, when: float, on_due: OnDue) -> Timer:
        timer = Timer(on_due)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        if timer.on_due is None:
            return
        timer.on_due = None
        self._num_dead += 1
        if self._num_dead > _SLACK and self._num_dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].on_due is not None]
            heapq.heapify(self._heap)
            self._num_dead = 0

    def run_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            on_due, timer.on_due = timer.on_due, None
            if on_due is None:
                self._num_dead -= 1
            else:
                on_due(now)

    def next(self) -> float:
        """When the earliest is due; infinity when there is none."""
        while self._heap and self._heap[0][2].on_due is None:
            heapq.heappop(self._heap)
            self._num_dead -= 1
        return self._heap[0][0] if self._heap else math.inf
