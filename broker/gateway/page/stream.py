"""The feed as an answer over HTTP, until one of the two ends leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broker.gateway.page.feed import Feed, Reader, sse_event
from broker.gateway.problems import Problem


class FeedStream(Response):
    """`check` raises Problem when the caller may not read on: its key may be withdrawn meanwhile."""

    def __init__(self, feed: Feed, check: Callable[[], object], headers: dict[str, str]) -> None:
        super().__init__(status_code=200, headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._feed = feed
        self._check = check
        self._reader = Reader(feed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_left(receive))
        writing = asyncio.ensure_future(self._write(send))
        try:
            await asyncio.wait((gone, writing), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            gone.cancel()
            writing.cancel()
            self._reader.close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body, is_over = self._reader.first(), False
        while not is_over:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if not self._feed.is_leaving:
                await self._feed.next_turn()
            body, is_over = self._next()
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _next(self) -> tuple[bytes, bool]:
        if self._feed.is_leaving:
            return sse_event("end", {"code": "leaving", "message": "the gateway stops"}), True
        try:
            self._check()
        except Problem as problem:
            return sse_event("end", {"code": problem.code, "message": problem.message}), True
        return self._reader.next(), False


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
