"""Lines of a log that strangers cause: as many as a person wants to read, and the rest only for who looks closely."""

from __future__ import annotations

import logging

_WINDOW_S, _MAX_LINES = 60.0, 200


class LogBudget:
    """Whoever greets and leaves a thousand times in a second must not fill the disk."""

    def __init__(self) -> None:
        self._window_from = float("-inf")
        self._num_lines = 0

    def level(self, now: float) -> int:
        """For the next line: INFO while there is room in this minute, DEBUG after that."""
        if now - self._window_from >= _WINDOW_S:
            self._window_from, self._num_lines = now, 0
        self._num_lines += 1
        return logging.INFO if self._num_lines <= _MAX_LINES else logging.DEBUG
