"""What one call of the API waits for: items, each answered by one request or by the n of its choices."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from mesh.client.core import Core
from mesh.client.params import Ask
from mesh.client.results import Choice, Chunk, Completion
from mesh.errors import MeshError

Outcome = Completion | MeshError


class Call:
    """The sink of its requests. Whoever waits is woken once for a burst, not once for a token.

    The core holds it until its last request has ended, so it must not be what the caller holds: an iterator that is
    dropped has to be noticed.
    """

    def __init__(self, core: Core, items: Sequence[Sequence[Ask]], *, wants_chunks: bool = False) -> None:
        """Starts every request. Raises ConfigError if the client cannot be used here."""
        core.check_usable()
        self.chunks: deque[Chunk] = deque()
        self.ended: deque[tuple[int, Outcome]] = deque()
        self._core = core
        self._num_choices = [len(asks) for asks in items]
        self._choices: dict[int, list[Choice]] = {}  # of items that have some and await more
        self._waiter: asyncio.Future[None] | None = None
        self._requests: dict[int, list[int]] = {
            item: [core.start(ask, self, item, wants_chunks=wants_chunks) for ask in asks]
            for item, asks in enumerate(items)
        }

    @property
    def is_over(self) -> bool:
        """Whether every item has ended (and is in `ended`, if nobody took it from there)."""
        return not self._requests

    async def wait(self) -> None:
        """Until `chunks` or `ended` has something, or nothing more can come. Cancelled while waiting, it cancels."""
        if self.chunks or self.ended or self.is_over:
            return
        self._waiter = self._core.loop.create_future()
        try:
            await self._waiter
        except BaseException:
            self.cancel()
            raise
        finally:
            self._waiter = None

    def nudge(self) -> None:
        """Let `wait` return although nothing has come."""
        self._wake()

    async def only(self) -> Completion:
        """The answer to the only item, or its error raised."""
        while not self.ended:
            await self.wait()
        outcome = self.ended.popleft()[1]
        if isinstance(outcome, MeshError):
            raise outcome
        return outcome

    def cancel(self) -> None:
        """Cancel whatever is unfinished."""
        requests, self._requests = self._requests, {}
        for request_ids in requests.values():
            self._cancel_all(request_ids)
        self._wake()

    def cancel_soon(self) -> None:
        """From any thread, with or without a loop that still runs."""
        if self._requests and not self._core.loop.is_closed() and not self._core.is_forked:
            try:
                self._core.loop.call_soon_threadsafe(self.cancel)
            except RuntimeError:
                return  # closed just now, and the requests went with it

    def on_chunk(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self._wake()

    def on_end(self, item: int, outcome: Choice | MeshError) -> None:
        if isinstance(outcome, MeshError):
            self._finish(item, outcome)
            return
        choices = self._choices.setdefault(item, [])
        choices.append(outcome)
        if len(choices) == self._num_choices[item]:
            self._finish(item, Completion.of(tuple(sorted(choices, key=lambda choice: choice.index))))

    def _finish(self, item: int, outcome: Outcome) -> None:
        request_ids = self._requests.pop(item, None)
        self._choices.pop(item, None)
        if request_ids is None:
            return  # another of its choices failed before
        if isinstance(outcome, MeshError):
            self._cancel_all(request_ids)
        self.ended.append((item, outcome))
        self._wake()

    def _cancel_all(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            self._core.cancel(request_id)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
