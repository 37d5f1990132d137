"""The two async iterators a caller holds: a streamed answer, and the answers of a batch as they come.

Dropping one, closing it or leaving its `async with` cancels what is unfinished.
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Self, TypeVar

from mesh.client.call import Call, Outcome
from mesh.client.results import Chunk, Completion
from mesh.errors import MeshError

T = TypeVar("T")


class Burst(Generic[T]):
    """An async iterator over a call, which can also hand out at once all that has come: `take`."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._taken: list[T] = []  # in reverse: the next is at the end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._taken:
            self._taken = (await self.take())[::-1]
        if not self._taken:
            raise StopAsyncIteration
        return self._taken.pop()

    async def take(self) -> list[T]:
        """What has come, at least one; empty once nothing more will."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Cancel what is unfinished. What has come can still be read."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def cancel_soon(self) -> None:
        """The same from any thread."""
        self._call.cancel_soon()

    def __del__(self) -> None:
        self.cancel_soon()  # dropped by a `break`: perhaps by another thread's garbage collection


class Stream(Burst[Chunk]):
    """The chunks of one answer (or of its n choices, interleaved); then `result` has the whole."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._outcome: Outcome | None = None

    async def __anext__(self) -> Chunk:
        # Not by way of `take`: for each token of each stream that is two more calls and two more lists.
        call = self._call
        if not call.chunks:
            await call.wait()
        if call.chunks:
            return call.chunks.popleft()
        self._end()
        raise StopAsyncIteration

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._call.is_over and not (self._call.chunks or self._call.ended)

    def nudge(self) -> None:
        """Let a `take` that waits return with nothing, before the end."""
        self._call.nudge()

    @property
    def result(self) -> Completion:
        """The whole answer, once the stream has ended. Raises the error it ended with; RuntimeError before the end."""
        if self._outcome is None and self._call.ended and not self._call.chunks:
            self._outcome = self._call.ended[0][1]
        if self._outcome is None:
            raise RuntimeError("the stream has not ended: read it to its end first")
        if isinstance(self._outcome, MeshError):
            raise self._outcome
        return self._outcome

    async def take(self) -> list[Chunk]:
        """All chunks that have come. Raises the error the request ended with, after the chunks before it."""
        call = self._call
        await call.wait()
        if call.chunks:
            chunks = list(call.chunks)
            call.chunks.clear()
            return chunks
        self._end()
        return []

    def _end(self) -> None:
        """Take the outcome, if there is one. Raises it if it is an error."""
        if self._call.ended:
            self._outcome = self._call.ended.popleft()[1]
            if isinstance(self._outcome, MeshError):
                raise self._outcome


class Results(Burst[tuple[int, Outcome]]):
    """`(index, Completion or error)` in the order in which the answers come."""

    async def take(self) -> list[tuple[int, Outcome]]:
        await self._call.wait()
        results = list(self._call.ended)
        self._call.ended.clear()
        return results
