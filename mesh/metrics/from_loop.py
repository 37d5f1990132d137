"""From the event loop to the thread that answers Prometheus: taken on the loop, written down elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

T = TypeVar("T")

WITHIN_S = 5.0  # half of the time that Prometheus grants a scrape by default


class Unavailable(Exception):
    """The loop did not answer: it hangs, or it has ended."""


class FromLoop(Collector, Generic[T]):
    """`take` runs on the loop and must be short: it returns values that nobody changes any more. `families` makes
    metrics of them in the thread that asks."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, take: Callable[[], T], families: Callable[[T], Iterable[Metric]]
    ) -> None:
        self._loop = loop
        self._take = take
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Raises Unavailable."""
        yield from self._families(self._taken())

    def _taken(self) -> T:
        taken: Future[T] = Future()
        try:
            self._loop.call_soon_threadsafe(self._answer, taken)
            return taken.result(WITHIN_S)
        except TimeoutError:
            taken.cancel()
            raise Unavailable(f"the event loop has not answered for {WITHIN_S:g} s") from None
        except RuntimeError:
            raise Unavailable("the event loop has ended") from None

    def _answer(self, taken: Future[T]) -> None:
        if not taken.set_running_or_notify_cancel():
            return  # nobody waits any more
        try:
            taken.set_result(self._take())
        except Exception as error:  # belongs to whoever asked, not to the loop
            taken.set_exception(error)
