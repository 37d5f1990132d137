"""One generation for one HTTP request, whichever API it came through: admission, the caller's leaving, the books."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from broker.gateway.door import Ticket
from broker.gateway.gateway import Gateway
from broker.gateway.keep_alive import KeepAlive
from broker.gateway.problems import CALLER_LEFT, Problem
from broker.gateway.tally import Tally
from mesh import Chunk, Completion, Stream

T = TypeVar("T")
Values = Mapping[str, Any]  # parameters of the client library, the prompt or the messages among them


class Generation:
    """Made after the caller has been identified and the body understood; used once."""

    def __init__(self, gateway: Gateway, request: Request, share: str, values: Values) -> None:
        self._gateway = gateway
        self._receive = request.receive
        self._tally: Tally = request.scope["tally"]
        self._tally.is_own_deadline = "timeout_s" in values
        self._share = gateway.fair_share(share, values.get("affinity", ""))
        self._client = gateway.clients.of(self._share)
        self._values = gateway.completed(share, values)

    async def complete(self) -> Completion:
        """The whole answer. Raises Problem or MeshError."""
        return (await self.complete_all([{}]))[0]

    async def complete_all(self, items: list[Values]) -> list[Completion]:
        """One answer for each item, which holds what differs from the shared values."""
        async with self._admitted(len(items)) as ticket:
            batch = self._client.generate_batch([{**self._values, **item} for item in items])
            completions = await _unless_left(self._receive, batch)
            ticket.first_token(time.monotonic())
        self._tally.on_whole(completions)
        return completions

    @asynccontextmanager
    async def streaming(self, receive: Receive) -> AsyncIterator[Bursts]:
        """The answer as it comes. A caller that leaves ends it: nothing more comes then."""
        async with self._admitted(1) as ticket:
            stream = self._client.stream(**self._values)
            gone = asyncio.create_task(_left(receive))
            gone.add_done_callback(lambda _: stream.cancel_soon())
            tally = self._tally
            keep_alive = KeepAlive(self._gateway.config.keep_alive_s, lambda: tally.last_token_at, stream.nudge)
            try:
                yield Bursts(stream, gone, ticket, tally)
            finally:
                keep_alive.stop()
                gone.cancel()
                await stream.aclose()

    @asynccontextmanager
    async def _admitted(self, num_items: int) -> AsyncIterator[Ticket]:
        await self._gateway.watch.require_ready()
        num = num_items * self._values.get("n", 1)
        ticket = self._gateway.door.enter(self._share, num, time.monotonic())
        try:
            yield ticket
        finally:
            ticket.leave()


class Bursts:
    """What has come of a streamed answer, in as few pieces as the reader is slow."""

    def __init__(self, stream: Stream, gone: asyncio.Task[None], ticket: Ticket, tally: Tally) -> None:
        self._stream = stream
        self._gone = gone
        self._ticket = ticket
        self.tally = tally
        self.is_left = False  # the caller is gone

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.is_left or self._stream.is_over

    async def take(self) -> list[Chunk]:
        """At least one chunk; empty after the end, when the caller has left, and when it is time for a sign of life.
        Raises MeshError."""
        chunks = await self._stream.take()
        if self._gone.done():
            self.is_left = True
            self.tally.on_left()
            return []
        if chunks:
            now = time.monotonic()
            self._ticket.first_token(now)
            self.tally.on_tokens(now)
        return chunks

    def result(self) -> Completion:
        """The whole, after the end."""
        completion = self._stream.result
        self.tally.on_finished(completion)
        return completion


async def _unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled if the caller leaves: a Problem then, that nobody reads."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Problem(CALLER_LEFT, "the caller left")
    finally:
        working.cancel()
        gone.cancel()


async def _left(receive: Receive) -> None:
    """Until the connection is closed. The body has been read by now, so nothing else comes."""
    while (await receive())["type"] != "http.disconnect":
        pass
