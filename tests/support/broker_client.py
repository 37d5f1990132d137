"""A client without a library: a DEALER that says what a test wants, and keeps what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import zmq

from mesh.bodies import TokenEntry, unpack_entries
from mesh.codec import decode, encode
from mesh.link import Context, Frames, Link, new_socket
from mesh.messages import Hello, Message, Ping, RequestHead, Submit, Tokens

T = TypeVar("T")


class RawClient:
    """After `greets` it beats by itself every `beat_s` seconds; 0 = it never says anything by itself."""

    def __init__(self, context: Context, address: str, *, name: str = "raw", beat_s: float = 0.1) -> None:
        self.heard: list[tuple[Message, list[bytes]]] = []
        socket = new_socket(context, zmq.DEALER)
        socket.connect(address)
        self._link = Link(socket, self._on_frames)
        self._loop = asyncio.get_running_loop()
        self._beat_s = beat_s
        self._name = name
        self._timer: asyncio.TimerHandle | None = None

    def greets(self, mesh: str = "default", epoch: int = 1) -> None:
        self.sends(Hello("client", self._name, epoch, mesh))
        if self._beat_s and self._timer is None:
            self._beat()

    def submits(self, *request_ids: int, body: bytes = b"\0\x80", attempt: int = 1, model: str = "") -> None:
        heads = tuple(RequestHead(request_id, attempt, model) for request_id in request_ids)
        self.sends(Submit(heads), *[body] * len(heads))

    def sends(self, message: Message, *body: bytes) -> None:
        self.sends_raw(encode(message), *body)

    def sends_raw(self, *frames: bytes) -> None:
        self._link.send([b"", *frames])

    def of(self, kind: type[T]) -> list[T]:
        return [message for message, _ in self.heard if isinstance(message, kind)]

    @property
    def entries(self) -> list[TokenEntry]:
        return [
            entry for message, body in self.heard if isinstance(message, Tokens) for entry in unpack_entries(body[0])
        ]

    def stops_reading(self) -> None:
        """What comes from now on fills the queues. It must not send any more either: sending looks for answers."""
        self._loop.remove_reader(int(self._link.socket.getsockopt(zmq.FD)))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._link.close()

    def _beat(self) -> None:
        self.sends(Ping(1))
        self._timer = self._loop.call_later(self._beat_s, self._beat)

    def _on_frames(self, frames: Frames) -> None:
        self.heard.append((decode(frames[1]), frames[2:]))


async def until(probe: Callable[[], T], within_s: float = 5.0) -> T:
    """The first truthy value of `probe`, while the loop goes on. Fails with the last value if none comes."""
    give_up_at = asyncio.get_running_loop().time() + within_s
    while not (value := probe()):
        if asyncio.get_running_loop().time() > give_up_at:
            raise AssertionError(f"not within {within_s} s; the last value was {value!r}")
        await asyncio.sleep(0.001)
    return value
