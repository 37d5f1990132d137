"""Who was turned away and why: always counted, told in a bounded number of lines."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger(__name__)

_WINDOW_S = 60.0
_MAX_LINES = 20  # in one window, whatever the number of addresses


class Refusals:
    """One line for each address and reason in a minute, and not too many of those: a flood must not fill the disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counters: Counter[str] = Counter()
        self._clock = clock
        self._window_from = clock()
        self._told: set[tuple[str, str]] = set()
        self._num_untold = 0

    def refuse(self, address: str, reason: str, level: int = logging.WARNING) -> None:
        """Count it, and tell it if there is room."""
        self.counters[reason] += 1
        now = self._clock()
        if now - self._window_from >= _WINDOW_S:
            if self._num_untold:
                logger.warning("refused_more count=%d in_s=%.0f", self._num_untold, now - self._window_from)
            self._window_from, self._num_untold = now, 0
            self._told.clear()
        if (address, reason) in self._told or len(self._told) >= _MAX_LINES:
            self._num_untold += 1
            return
        self._told.add((address, reason))
        logger.log(level, "refused address=%s reason=%s", address, reason)
