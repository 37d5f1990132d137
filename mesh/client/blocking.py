"""The client for programs without an event loop: AsyncClient on a thread of its own, waited for."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Generic, Literal, Self, TypedDict, TypeVar, Unpack, overload

from mesh.client.aio import AsyncClient
from mesh.client.call import Outcome
from mesh.client.gathering import Gathering, OnProgress
from mesh.client.iterators import Burst, Stream
from mesh.client.loop_thread import LoopThread
from mesh.client.params import Item, Message, Parameters
from mesh.client.results import Chunk, Completion
from mesh.report import ModelReport, StatusReport

T = TypeVar("T")


class ClientArguments(TypedDict, total=False):
    """See AsyncClient."""

    token: str | None
    mesh: str
    insecure: bool | None
    name: str | None
    connect_timeout_s: float
    reconnect_timeout_s: float
    max_attempts: int
    patience_s: float
    overload_patience_s: float | None


class Client:
    """AsyncClient without `await`; see there for what each call does. May be used from several threads, and in a
    notebook. A program that forgets `close` ends all the same."""

    def __init__(self, address: str | Sequence[str] | None = None, **arguments: Unpack[ClientArguments]) -> None:
        self._client = AsyncClient(address, **arguments)
        self._thread = LoopThread("mesh-client")
        self._finalizer = weakref.finalize(self, _stop, self._thread, self._client)

    def generate(self, prompt: str, **params: Unpack[Parameters]) -> Completion:
        return self._thread.run(lambda: self._client.generate(prompt, **params))

    def chat(self, messages: Sequence[Message], **params: Unpack[Parameters]) -> Completion:
        return self._thread.run(lambda: self._client.chat(messages, **params))

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **params: Unpack[Parameters],
    ) -> BlockingStream:
        """An iterator of Chunk with `result` after its end. Leaving it early (`break`, `close`) cancels the request."""

        async def start() -> Stream:
            return self._client.stream(prompt, messages=messages, **params)

        return BlockingStream(self, self._thread, self._thread.run(start))

    @overload
    def generate_batch(
        self,
        prompts: Iterable[Item],
        *,
        on_progress: OnProgress | None = None,
        return_errors: Literal[False] = False,
        **params: Unpack[Parameters],
    ) -> list[Completion]: ...

    @overload
    def generate_batch(
        self,
        prompts: Iterable[Item],
        *,
        on_progress: OnProgress | None = None,
        return_errors: bool,
        **params: Unpack[Parameters],
    ) -> list[Outcome]: ...

    def generate_batch(
        self,
        prompts: Iterable[Item],
        *,
        on_progress: OnProgress | None = None,
        return_errors: bool = False,
        **params: Unpack[Parameters],
    ) -> list[Completion] | list[Outcome]:
        """`on_progress` is called on the caller's thread, so it may take its time and use this client."""
        items = list(prompts)
        gathering = Gathering(len(items), on_progress, return_errors=return_errors)
        with self.as_completed(items, **params) as results:
            for index, outcome in results:
                gathering.add(index, outcome)
        return gathering.outcomes()

    def as_completed(
        self, prompts: Iterable[Item], **params: Unpack[Parameters]
    ) -> BlockingIterator[tuple[int, Outcome]]:
        items = list(prompts)  # here: a generator of the caller's should run on the caller's thread

        async def start() -> Burst[tuple[int, Outcome]]:
            return self._client.as_completed(items, **params)

        return BlockingIterator(self, self._thread, self._thread.run(start))

    def models(self) -> list[ModelReport]:
        return self._thread.run(self._client.models)

    def status(self) -> StatusReport:
        return self._thread.run(self._client.status)

    def drain(self, target: str) -> str:
        return self._thread.run(lambda: self._client.drain(target))

    def undrain(self, target: str) -> str:
        return self._thread.run(lambda: self._client.undrain(target))

    def close(self) -> None:
        """End what is unfinished with Cancelled, free the sockets, end the thread."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockingIterator(Generic[T], Iterator[T]):
    """An async iterator, a burst at a time: one change of threads for all that has come meanwhile."""

    def __init__(self, client: Client, thread: LoopThread, source: Burst[T]) -> None:
        self._client = client  # held, or a client that nobody else holds would close under its own iterator
        self._thread = thread
        self._source = source
        self._taken: deque[T] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._taken:
            self._taken.extend(self._thread.run(self._source.take))
        if not self._taken:
            raise StopIteration
        return self._taken.popleft()

    def close(self) -> None:
        """Cancel what is unfinished."""
        self._source.cancel_soon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockingStream(BlockingIterator[Chunk]):
    """The chunks of one answer; then `result` has the whole."""

    def __init__(self, client: Client, thread: LoopThread, source: Stream) -> None:
        super().__init__(client, thread, source)
        self._stream = source

    @property
    def result(self) -> Completion:
        """The whole answer, once the stream has ended. Raises the error it ended with; RuntimeError before the end."""
        if self._taken:
            raise RuntimeError("the stream has not ended: read it to its end first")
        return self._stream.result


def _stop(thread: LoopThread, client: AsyncClient) -> None:
    thread.stop(client.close)
