"""A server whose every answer the test decides: a real ROUTER on loopback, the real codec, a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import zmq

from mesh import bodies, codec, messages
from mesh.link import Frames, Link, new_socket
from mesh.messages import Message, RequestHead, Welcome
from mesh.report import ModelReport, StatusReport
from tests.support.story import entry_of

T = TypeVar("T")

LIVENESS = 3
MAX_BATCH = 64
MAX_BODY_BYTES = 1 << 20


@dataclass
class Request:
    """One attempt that has arrived, with the answers a test can give. Call them in the script, or with `server.do`."""

    server: FakeServer
    route: bytes
    head: RequestHead
    body: dict[str, Any]
    num_sent: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_sent = len(self.body.get("resume", ()))

    @property
    def max_tokens(self) -> int:
        return int(self.body.get("max_tokens", 256))

    def tokens(self, count: int, *, ends: bool = False, start: int | None = None, attempt: int | None = None) -> None:
        """The next tokens, or others to provoke the client."""
        start = self.num_sent if start is None else start
        attempt = self.head.attempt if attempt is None else attempt
        entry = entry_of(self.body, self.head.request_id, attempt, start, start + count, ends=ends)
        finished = ((self.head.request_id, attempt),) if ends else ()
        self.num_sent = max(self.num_sent, start + count)
        self.server.send(self.route, messages.Tokens(finished, count), bodies.pack_entries([entry]))

    def finish(self, *, in_steps_of: int = 1_000_000) -> None:
        while self.max_tokens - self.num_sent > in_steps_of:
            self.tokens(in_steps_of)
        self.tokens(self.max_tokens - self.num_sent, ends=True)

    def lost(self, reason: str = "died", node: str = "n1") -> None:
        self.server.send(self.route, messages.Lost(((self.head.request_id, self.head.attempt),), node, reason))

    def reject(self, code: str, text: str = "no", retry_after_s: float = 0.0) -> None:
        head = self.head
        self.server.send(self.route, messages.Rejected(head.request_id, head.attempt, code, text, retry_after_s, "n1"))

    def fail(self, code: str, text: str = "broken") -> None:
        self.server.send(self.route, messages.Failed(self.head.request_id, self.head.attempt, code, text, "n1"))


Script = Callable[[Request], None]


def answer(request: Request) -> None:
    """The default script: the whole answer at once."""
    request.finish()


class FakeServer:
    """What it receives is in `requests`, `cancelled` and `messages`; what it does is `script`."""

    def __init__(
        self,
        script: Script = answer,
        *,
        address: str = "tcp://127.0.0.1:*",
        mesh: str = "default",
        heartbeat_s: float = 1.0,  # long, so that a busy test machine is not taken for a dead one
    ) -> None:
        self.script = script
        self.welcome = Welcome("broker", "fake", "fake-id", 1, mesh, heartbeat_s, LIVENESS, MAX_BATCH, MAX_BODY_BYTES)
        self.is_silent = False  # reads, and says nothing more
        self.num_forgotten = 0  # so many of the next queries come from somebody it does not know any more
        self.num_garbled = 0  # so many of the next messages leave as bytes that mean nothing
        self.hello_answer: Callable[[messages.Hello], Message] = lambda hello: self.welcome
        self.requests: list[Request] = []
        self.cancelled: list[int] = []
        self.messages: list[Message] = []
        self.address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-server", daemon=True)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._link: Link

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self._bind)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Die: connections break, nothing is said."""
        if self._loop.is_closed():
            return
        self.do(self._link.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
        self._context.term()

    def do(self, action: Callable[[], T]) -> T:
        """Run something on the server's thread and wait for it."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def act() -> None:
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        return done.result(5)

    def send(self, route: bytes, message: Message, *body: bytes) -> None:
        if self.is_silent:
            return
        header = codec.encode(message)
        if self.num_garbled:
            self.num_garbled -= 1
            header = b"\xc1 not MessagePack"
        self._link.send((route, b"", header, *body))

    def received(self, kind: type[Message]) -> list[Any]:
        return [message for message in list(self.messages) if type(message) is kind]

    def _bind(self) -> None:
        socket = new_socket(self._context, zmq.ROUTER)
        socket.bind(self.address)
        self.address = str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        self._link = Link(socket, self._on_frames)

    def _on_frames(self, frames: Frames) -> None:
        route, _, header, *body = frames
        message = codec.decode(header)
        self.messages.append(message)
        match message:
            case messages.Hello():
                self.send(route, self.hello_answer(message))
            case messages.Ping(sequence):
                self.send(route, messages.Pong(sequence, 1, "ready", 0, 0.0))
            case messages.Cancel(request_ids):
                self.cancelled.extend(request_ids)
            case messages.Query() if self.num_forgotten:
                self.num_forgotten -= 1
                self.send(route, messages.Refused("no_hello", "who are you?"))
            case messages.Query(query_id):
                report = StatusReport(kind="broker", name="fake", node_id="x", models=(ModelReport(name="fake-model"),))
                self.send(route, messages.Report(query_id), report.to_body())
            case messages.Admin(query_id, action, target):
                is_known = target == "n1"
                self.send(
                    route, messages.Done(query_id, is_known, f"{action} {target}" if is_known else "no such node")
                )
            case messages.Submit(heads):
                self.send(route, messages.Accepted(tuple(head.request_id for head in heads)))
                for head, frame in zip(heads, body, strict=True):
                    request = Request(self, route, head, bodies.unpack(frame))
                    self.requests.append(request)
                    self.script(request)
