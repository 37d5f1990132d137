"""Those who never finish a handshake: connections opened and dropped, half-open, in plain text, and with a good key
for a moment."""

from __future__ import annotations

import random
import socket
from collections import Counter, deque
from contextlib import suppress

import zmq

from mesh import messages as m
from mesh.codec import encode
from mesh.connection import ConfigureSocket
from mesh.link import Context, new_socket

_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01CURVE".ljust(54, b"\0")
_MAX_OPEN = 200


class Strangers:
    """`knock` opens one connection; the oldest go when there are too many."""

    def __init__(
        self, context: Context, ports: list[int], configure: ConfigureSocket | None, rng: random.Random
    ) -> None:
        self.sent: Counter[str] = Counter()
        self._context = context
        self._ports = ports
        self._configure = configure
        self._rng = rng
        self._open: deque[socket.socket] = deque()

    def knock(self) -> None:
        port = self._rng.choice(self._ports)
        if self._rng.random() < 0.1:
            self._visit(port)
            return
        with suppress(OSError):  # the server's own limits may refuse it, which is one of the right answers
            caller = socket.create_connection(("127.0.0.1", port), timeout=1)
            self._open.append(caller)
            caller.sendall(
                self._rng.choice((b"", _GREETING[: self._rng.randrange(65)], _GREETING + bytes(300), b"GET /"))
            )
        self.sent["half-open handshake"] += 1
        if self._rng.random() < 0.5:
            self._drop()
        while len(self._open) > _MAX_OPEN:
            self._drop()

    def close(self) -> None:
        while self._open:
            self._drop()

    def _drop(self) -> None:
        if self._open:
            self._open.popleft().close()

    def _visit(self, port: int) -> None:
        """Let in, and gone before the answer."""
        visitor = new_socket(self._context, zmq.DEALER)
        if self._configure is not None:
            self._configure(visitor)
        visitor.connect(f"tcp://127.0.0.1:{port}")
        with suppress(zmq.Again):
            visitor.send_multipart([b"", encode(m.Hello("client", "visitor", 1, "any"))], zmq.DONTWAIT)
        visitor.close(0)
        self.sent["opened and dropped"] += 1
