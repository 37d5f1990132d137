"""A client that speaks the protocol and does nothing besides: it keeps requests in flight, or asks one by one."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import zmq

from mesh.bodies import CODECS, pack
from mesh.codec import decode, encode
from mesh.messages import Accepted, Bye, Hello, Message, Ping, Pong, Query, Report, RequestHead, Submit, Tokens, Welcome
from mesh.report import StatusReport
from mesh.request import WireRequest
from mesh.security.loading import client_credentials
from mesh.security.sockets import secure_client

PROMPT = "Say in one sentence what a mesh of computers is, and in another one what it is good for. " * 3
_ANSWER_WITHIN_MS = 30_000
Context = zmq.Context[zmq.Socket[bytes]]

_NOW = int(zmq.DONTWAIT)
_PING_EVERY_S = 0.5


class LoadClient:
    """One connection. `home` is where its key lies; None: plain text."""

    def __init__(
        self, address: str, mesh: str, *, home: Path | None, greets: bool = True, context: Context | None = None
    ) -> None:
        """`greets=False` leaves out Hello, for what is no server of the mesh and only passes messages on. With a
        `context` it is one of many that share one."""
        self._context = context or zmq.Context()
        self._owns_context = context is None
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = 100_000
        if home is not None:
            credentials = client_credentials(home=home, env={})
            secure_client(credentials)(self.socket)
            mesh = credentials.mesh_id(mesh)
        self.socket.connect(address)
        self.bodies: list[bytes] = []  # of the message received last
        self._last_id = 0
        self._pinged_at = time.monotonic()
        self._hello = Hello("client", "load", secrets.randbits(62), mesh, CODECS) if greets else None
        self.greet()

    def greet(self) -> None:
        """Say Hello, again after a silence: whoever does not ping is forgotten."""
        if self._hello is not None:
            self._send(self._hello)
            self._expect(Welcome)

    def submit(self, count: int, max_tokens: int) -> range:
        """So many requests in one message. Returns their ids."""
        ids = range(self._last_id + 1, self._last_id + 1 + count)
        self._last_id += count
        heads = tuple([RequestHead(request_id, 1, "", 64, max_tokens) for request_id in ids])
        self._send(Submit(heads, CODECS), *[_body(max_tokens)] * count)
        return ids

    def receive(self, wait_ms: int = _ANSWER_WITHIN_MS) -> Message | None:
        """The next message of any kind; None when none came in time. Pings as a client must."""
        if self._hello is not None and time.monotonic() - self._pinged_at > _PING_EVERY_S:
            self._pinged_at = time.monotonic()
            self._send(Ping(1))
        try:
            frames = [self.socket.recv(_NOW)]
        except zmq.Again:
            if not wait_ms or not self.socket.poll(wait_ms):
                return None
            frames = [self.socket.recv()]
        while self.socket.rcvmore:
            frames.append(self.socket.recv())
        self.bodies = frames[2:]
        return decode(frames[1])

    def keep_in_flight(self, window: int, per_message: int, num_requests: int) -> float:
        """Have `window` requests under way, in messages of so many, until so many are done. Returns seconds."""
        self.greet()
        began = time.perf_counter()
        num_sent = num_done = 0
        room = window
        while num_done < num_requests:
            while room >= per_message and num_sent < num_requests:
                self.submit(per_message, 1)
                num_sent += per_message
                room -= per_message
            finished = self._finished()
            num_done += finished
            room += finished
        return time.perf_counter() - began

    def one_by_one(self, num_requests: int) -> list[float]:
        """Seconds from each request to its answer, with nothing else under way."""
        self.greet()
        times = []
        for _ in range(num_requests):
            began = time.perf_counter()
            self.submit(1, 1)
            self._finished()
            times.append(time.perf_counter() - began)
        return times

    def wait_until_ready(self, num_nodes: int, within_s: float = 30.0) -> None:
        """Until so many nodes are ready behind the broker."""
        self.greet()
        deadline = time.monotonic() + within_s
        while True:
            self._send(Query(1, "status"))
            self._expect(Report)
            if StatusReport.from_body(self.bodies[0]).num_ready >= num_nodes:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{num_nodes} nodes were not ready within {within_s:g} s")
            time.sleep(0.05)

    def close(self) -> None:
        if self._hello is not None:
            self.socket.linger = 200
            self._send(Bye())
        self.socket.close()
        if self._owns_context:
            self._context.term()

    def _finished(self) -> int:
        """Wait for endings; how many came."""
        while True:
            message = self.receive()
            if type(message) is Tokens and message.finished:
                return len(message.finished)
            if type(message) not in (Tokens, Accepted, Pong):
                raise RuntimeError(f"a request was not answered: {message}")

    def _expect(self, kind: type[Message]) -> None:
        while True:
            message = self.receive()
            if type(message) is kind:
                return
            if type(message) not in (Pong, Accepted, Tokens):
                raise RuntimeError(f"no {kind.__name__}, but {message}")

    def _send(self, message: Message, *bodies: bytes) -> None:
        frames: Sequence[bytes] = (b"", encode(message), *bodies)
        for frame in frames[:-1]:
            self.socket.send(frame, zmq.SNDMORE)
        self.socket.send(frames[-1])


_BODIES: dict[int, bytes] = {}


def _body(max_tokens: int) -> bytes:
    if max_tokens not in _BODIES:
        _BODIES[max_tokens] = pack(WireRequest(prompt=PROMPT, max_tokens=max_tokens).to_body())
    return _BODIES[max_tokens]
