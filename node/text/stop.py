"""Stop strings in a growing text."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string to be completed, and how much text surely does not belong to one.

    The text ends at the first character that completes a stop string; if it completes several, the longest counts. So
    the result depends on the text alone and not on how it arrived.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Raises ValueError for an empty string, which would stop everything before it starts."""
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        self._stop = tuple(dict.fromkeys(stop))
        self._first_chars = frozenset(text[0] for text in self._stop)

    def __bool__(self) -> bool:
        return bool(self._stop)

    def scan(self, text: str) -> tuple[int, str]:
        """(number of characters that may be shown, the stop string that follows them or "")."""
        matches = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if matches:
            _, start, stop = min(matches)
            return start, stop
        for start, char in enumerate(text):
            if char in self._first_chars and any(stop.startswith(text[start:]) for stop in self._stop):
                return start, ""
        return len(text), ""
