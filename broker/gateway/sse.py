"""A streamed answer as server-sent events. No task group, no queue: what has come goes out in one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broker.gateway.generation import Generation
from broker.gateway.problems import Problem
from mesh import Chunk, Completion
from mesh.errors import MeshError

KEEP_ALIVE = b": keep-alive\n\n"  # a comment: clients read past it, proxies see that the connection lives
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx would collect the tokens
]


class Frames(Protocol):
    """How an API writes a stream down. Pure: `tokens` and `idle` any number of times, then `end` or `error`."""

    def tokens(self, chunks: Sequence[Chunk]) -> bytes: ...
    def idle(self) -> bytes: ...
    def end(self, completion: Completion) -> bytes: ...
    def error(self, problem: Problem) -> bytes: ...


class EventStream(Response):
    """Begins with the first token or the first sign of life, so what goes wrong before has a status of its own."""

    def __init__(self, generation: Generation, frames: Frames) -> None:
        self.status_code = 200
        self.background = None
        self._generation = generation
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._generation.streaming(receive) as bursts:
            chunks = await bursts.take()
            if bursts.is_left:
                return
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            try:
                while not bursts.is_over or chunks:
                    body = self._frames.tokens(chunks) if chunks else self._frames.idle()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    chunks = await bursts.take()
                last = b"" if bursts.is_left else self._frames.end(bursts.result())
            except MeshError as error:
                last = self._frames.error(bursts.tally.on_error(error))
            await send({"type": "http.response.body", "body": last, "more_body": False})
