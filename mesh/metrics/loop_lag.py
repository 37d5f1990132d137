"""How late the event loop runs what is due: the first thing to look at when everything is slow at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mesh.metrics.buckets import LATENESS_S, Buckets

EVERY_S = 0.1  # a loop that stands still for less is seen with this chance only; it costs ten wake-ups a second


class LoopLag:
    """Measures from `start` to `stop`. `also(now)` is called at each measurement, for what else is to be looked at."""

    def __init__(self, also: Callable[[float], None] | None = None) -> None:
        self.buckets = Buckets(LATENESS_S)
        self._also = also
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Call it on the loop."""
        self._loop = asyncio.get_running_loop()
        self._arm(time.monotonic())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, now: float) -> None:
        self._due = now + EVERY_S
        self._timer = self._loop.call_later(EVERY_S, self._on_time)

    def _on_time(self) -> None:
        now = time.monotonic()
        self.buckets.add(max(0.0, now - self._due))  # uvloop counts in milliseconds and may be early by one
        if self._also is not None:
            self._also(now)
        self._arm(now)
