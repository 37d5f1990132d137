"""The page's stream: one frame for each status report, made once however many pages are open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from broker.gateway.page.events import Changes
from broker.gateway.page.history import History, Shares
from broker.gateway.page.log import EventLog
from broker.gateway.page.naming import short
from broker.gateway.page.view import MeshView, caller_key, view_of
from broker.gateway.problems import Problem
from broker.gateway.watch import EVERY_S, NO_ANSWER_YET, Watch
from broker.gateway.wire import to_json

MAX_PAGES = 256
_MIN_GAP_S = 0.9 * EVERY_S  # requests may ask for reports, too, when no node is ready
_QUIET_S = 1.5 * EVERY_S  # without an answer for so long, the pages are told how long it has been


class Feed:
    """`run` watches; a Reader for each page. What has happened is kept while nobody looks."""

    def __init__(self, watch: Watch, *, mesh: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._watch = watch
        self._mesh = mesh
        self._clock = clock
        self._changes = Changes()
        self._history = History()
        self._shares = Shares()
        self._view: MeshView | None = None
        self._answered_at = clock()
        self._frame: bytes | None = None
        self._next_turn = asyncio.Event()
        self.log = EventLog()
        self.num_readers = 0
        self.is_leaving = False

    async def run(self) -> None:
        """For ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_QUIET_S):
                    await self._watch.answered()
            self.turn()
            await asyncio.sleep(_MIN_GAP_S)

    def turn(self) -> None:
        """Take in what the watch has now, and tell the readers."""
        now, report = self._clock(), self._watch.report
        trouble = "" if self._watch.trouble == NO_ANSWER_YET else self._watch.trouble
        for event in self._changes.to(report, trouble):
            self.log.add(event, now)
        self._view = view_of(report) if report is not None else None
        if report is not None and self._view is not None:
            got = self._shares.add({caller_key(client): client.num_tokens for client in report.clients})
            for caller in self._view["callers"]:
                caller["tokens"] = got[caller["key"]]
            self._answered_at = self._watch.answered_at
        self._history.add(self._view)
        self._frame = None
        self._wake()

    def leave_soon(self) -> None:
        """The gateway stops: the readers end, so that it need not wait for them."""
        self.is_leaving = True
        self._wake()

    async def next_turn(self) -> None:
        """Until there is something new to read."""
        await self._next_turn.wait()

    def past(self) -> bytes:
        """What a page that opens now has missed, apart from events."""
        return sse_event("past", self._history.lines())

    def frame(self) -> bytes:
        """The mesh as it is."""
        if self._frame is None:
            now = self._clock()
            told = {
                "now": round(now, 2),
                "mesh": self._mesh,
                "is_up": self._view is not None,
                "trouble": short(self._watch.trouble),
                "quiet_s": round(max(0.0, now - self._answered_at), 1),
                "view": self._view,
            }
            self._frame = sse_event("mesh", told)
        return self._frame

    def _wake(self) -> None:
        self._next_turn.set()
        self._next_turn = asyncio.Event()


class Reader:
    """One open page. Slow ones miss frames, never events."""

    def __init__(self, feed: Feed) -> None:
        """Raises Problem 503 when too many are open. `close` it."""
        if feed.num_readers >= MAX_PAGES:
            raise Problem(503, f"{MAX_PAGES} pages are open already", code="too_many_pages", retry_after_s=5.0)
        self._feed = feed
        self._change = 0
        feed.num_readers += 1

    def close(self) -> None:
        self._feed.num_readers -= 1

    def first(self) -> bytes:
        return self._feed.past() + self.next()

    def next(self) -> bytes:
        """The last frame, and the events since the one read before. A page needs the frame's clock for them."""
        log, since = self._feed.log, self._change
        self._change = log.change
        frame = self._feed.frame()
        return frame + sse_event("events", log.since(since)) if log.change > since else frame


def sse_event(name: str, data: object) -> bytes:
    """As a server-sent event. JSON as it is written here has no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(data))
