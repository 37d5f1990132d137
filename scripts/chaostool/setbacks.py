"""What the client library noticed, read from its log: when it was told of a loss, and of whose."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from scripts.chaostool.records import Pause, Setback

_MAX_KEPT = 500


class Setbacks(logging.Handler):
    """Attached to the client's loggers. Keeps the last few hundred, in order of time."""

    def __init__(self, tell: Callable[[Setback], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell
        self._recent: list[Setback] = []
        for name in ("mesh.client.core", "mesh.client.session"):
            logger = logging.getLogger(name)
            logger.setLevel(logging.INFO)
            logger.addHandler(self)
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        event = str(record.msg).partition(" ")[0]
        args = record.args if isinstance(record.args, tuple) else ()
        if event == "handed_back":
            node, reason, num_requests = args
            self._add(Setback(time.monotonic(), str(node), str(reason), int(str(num_requests))))
        elif event == "session_ended":
            address, reason = args
            self._add(Setback(time.monotonic(), str(address), str(reason)))

    def _add(self, setback: Setback) -> None:
        self._recent.append(setback)
        del self._recent[:-_MAX_KEPT]
        self._tell(setback)

    def pauses(self, times: Sequence[float], attempts: int) -> tuple[Pause, ...]:
        """The holes in a stream that setbacks explain: as many as it had attempts beyond the first, the longest ones,
        because a setback of another stream may fall between any two of this one's chunks."""
        moments = [setback.at for setback in self._recent]
        found = []
        for at, until in pairwise(times):
            within = self._recent[bisect_left(moments, at) : bisect_right(moments, until)]
            if within:
                found.append(Pause(at, until, tuple(within)))
        longest = sorted(found, key=lambda pause: pause.at - pause.until)[: attempts - 1]
        return tuple(longest)
