"""The last events, numbered, so that a page that opens late has them too. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from broker.gateway.page.events import Event, counted

MAX_EVENTS = 100
_ADDS_UP_S = 15.0  # what comes again within this time is the same event, with a larger number
_LOOKS_BACK = 12


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int  # names it
    change: int  # counts up with every change of any entry
    at: float
    event: Event


class EventLog:
    """`since(change)` is everything that is new or different after that change."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._entries: deque[_Entry] = deque(maxlen=max_events)
        self._number = 0
        self.change = 0

    def add(self, event: Event, now: float) -> None:
        self.change += 1
        alike = self._alike(event, now) if event.num else None
        if alike is None:
            self._number += 1
            self._entries.append(_Entry(self._number, self.change, now, event))
        else:
            self._entries.remove(alike)
            event = counted(event.kind, alike.event.num + event.num)
            self._entries.append(_Entry(alike.number, self.change, now, event))

    def since(self, change: int) -> list[dict[str, Any]]:
        """Oldest first. `at` is on the clock that `now` was of."""
        return [
            {
                "id": entry.number,
                "at": round(entry.at, 2),
                "kind": entry.event.kind,
                "level": entry.event.level,
                "subject": entry.event.subject,
                "text": entry.event.text,
            }
            for entry in self._entries
            if entry.change > change
        ]

    def _alike(self, event: Event, now: float) -> _Entry | None:
        for back in range(1, min(len(self._entries), _LOOKS_BACK) + 1):
            entry = self._entries[-back]
            if entry.event.kind == event.kind and entry.event.num and now - entry.at <= _ADDS_UP_S:
                return entry
        return None
