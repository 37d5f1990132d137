"""Signs of life in a stream that has nothing to say: proxies cut off connections that are silent for too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class KeepAlive:
    """Calls `nudge` whenever the stream has been silent for `every_s`.

    One timer for each stream and not one for each token: when it rings, it looks at when the last tokens came.
    """

    __slots__ = ("_every_s", "_last_at", "_nudge", "_timer")

    def __init__(self, every_s: float, last_at: Callable[[], float], nudge: Callable[[], None]) -> None:
        """`last_at` tells when the stream last had something, by time.monotonic; 0: not yet. With an `every_s` of 0
        nothing ever happens."""
        self._every_s = every_s
        self._last_at = last_at
        self._nudge = nudge
        self._timer: asyncio.TimerHandle | None = None
        if every_s:
            self._ring_in(every_s, time.monotonic())

    def stop(self) -> None:
        """No more calls."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring_in(self, delay_s: float, spoken_at: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring, spoken_at)

    def _ring(self, spoken_at: float) -> None:
        """`spoken_at`: when the stream began, or gave its last sign of life."""
        now = time.monotonic()
        spoken_at = max(spoken_at, self._last_at())
        if now - spoken_at >= self._every_s:
            spoken_at = now
            self._nudge()
        self._ring_in(spoken_at + self._every_s - now, spoken_at)
