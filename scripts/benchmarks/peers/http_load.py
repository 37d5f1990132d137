"""HTTP callers that do nothing besides: connections that are kept, one request at a time on each, over raw sockets."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from scripts.benchmarks.load import PROMPT

_ANSWER_WITHIN_S = 120.0
_EVENT = b"data: "


def completion(model: str, address: str, **more: Any) -> bytes:
    """A request for a completion of the same prompt that goes through the mesh."""
    body = json.dumps({"model": model, "prompt": PROMPT, "max_tokens": 1, **more}).encode()
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


class Connection:
    """One kept connection and the answer that comes over it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("http://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=_ANSWER_WITHIN_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own timeout: with Python's, MSG_DONTWAIT below would wait all the same.
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(_ANSWER_WITHIN_S), 0))
        self.is_done = False
        self._head, self._tail = b"", b""
        self._length: int | None = None  # unknown yet; -1: chunked
        self._size = 0

    def ask(self, request: bytes) -> None:
        self.is_done = False
        self._head, self._tail = b"", b""
        self._length, self._size = None, 0
        self.socket.sendall(request)

    def receive(self) -> int:
        """What has come, or the next that comes. Returns how many events began in it. Raises RuntimeError when the
        answer is no good."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise RuntimeError(f"the connection was closed within an answer: {self._head + self._tail!r}")
        if self._length is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return 0
            self._head, data = self._head[:end], self._head[end + 4 :]
            self._length = self._stated_length()
        self._size += len(data)
        joined = self._tail + data
        events = joined.count(_EVENT) - self._tail.count(_EVENT)
        self._tail = joined[-(len(_EVENT) + 3) :]
        self.is_done = self._size >= self._length if self._length >= 0 else self._tail.endswith(b"0\r\n\r\n")
        return events

    @property
    def is_closed(self) -> bool:
        """By either side."""
        if self.socket.fileno() < 0:
            return True
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.socket.close()

    def _stated_length(self) -> int:
        status, *lines = self._head.decode("latin-1").split("\r\n")
        if " 200" not in status:
            raise RuntimeError(f"answered with {status}")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(headers["content-length"]) if "content-length" in headers else -1


class HttpLoad:
    """Callers of one address. Connections are made when they are needed, and kept."""

    def __init__(self, address: str, request: bytes) -> None:
        self.address, self.request = address, request
        self._connections: list[Connection] = []

    def keep_in_flight(self, window: int, num_requests: int) -> float:
        """Have `window` requests under way until so many are done. Returns seconds."""
        connections = self._take(window)
        began = time.perf_counter()
        num_left = num_requests - window
        for connection in connections:
            connection.ask(self.request)

        def on_done(connection: Connection) -> None:
            nonlocal num_left
            num_left -= 1
            if num_left >= 0:
                connection.ask(self.request)

        _drive(connections, num_requests, lambda *_: None, on_done)
        return time.perf_counter() - began

    def one_by_one(self, num_requests: int) -> list[float]:
        """Seconds from each request to its first event, or to its end if it is no stream."""
        (connection,) = self._take(1)
        times = []
        for _ in range(num_requests):
            began = time.perf_counter()
            connection.ask(self.request)
            first_at = 0.0
            while not connection.is_done:
                if connection.receive() and not first_at:
                    first_at = time.perf_counter()
            times.append((first_at or time.perf_counter()) - began)
        return times

    def streams(self, num_streams: int, on_events: Callable[[int, int, bool], None]) -> None:
        """One request on each of so many connections, to their ends. `on_events(stream, events, is_done)`."""
        connections = self._take(num_streams)
        numbers: Mapping[Connection, int] = {connection: number for number, connection in enumerate(connections)}
        for connection in connections:
            connection.ask(self.request)
        _drive(connections, num_streams, lambda c, events: on_events(numbers[c], events, c.is_done), lambda _: None)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _take(self, count: int) -> list[Connection]:
        self._connections = [connection for connection in self._connections if not connection.is_closed]
        while len(self._connections) < count:
            self._connections.append(Connection(self.address))
        return self._connections[:count]


def _drive(
    connections: list[Connection],
    num_answers: int,
    on_receive: Callable[[Connection, int], None],
    on_done: Callable[[Connection], None],
) -> None:
    """Read whatever comes until so many answers are whole."""
    poll = select.epoll()
    by_fd = {connection.socket.fileno(): connection for connection in connections}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    progress_at = time.monotonic()
    try:
        while num_answers:
            ready = poll.poll(_ANSWER_WITHIN_S)
            if time.monotonic() - progress_at > _ANSWER_WITHIN_S:  # signs of life in a stream are none of progress
                raise TimeoutError(f"{num_answers} answers did not come within {_ANSWER_WITHIN_S:g} s")
            for fd, _ in ready:
                connection = by_fd[fd]
                if connection.is_done:  # closed after its answer, which servers may do
                    poll.unregister(fd)
                    connection.close()
                    continue
                events = connection.receive()
                on_receive(connection, events)
                if events or connection.is_done:
                    progress_at = time.monotonic()
                if connection.is_done:
                    num_answers -= 1
                    on_done(connection)
    finally:
        poll.close()
