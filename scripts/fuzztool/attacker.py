"""One hostile connection: sends as fast as the server takes it, and counts what comes back."""

from __future__ import annotations

from collections import Counter

import zmq

from mesh import messages as m
from mesh.codec import decode, encode
from mesh.connection import ConfigureSocket
from mesh.errors import ProtocolError
from mesh.link import Context, new_socket
from scripts.fuzztool.inputs import Frames, Inputs

_AT_ONCE = 100


class Attacker:
    """It may be dropped and forgotten at any time; ZeroMQ connects again, and it goes on."""

    def __init__(self, context: Context, address: str, configure: ConfigureSocket | None, inputs: Inputs) -> None:
        self.num_sent = 0
        self.sent: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._inputs = inputs
        self._unsent: tuple[str, Frames] | None = None
        self._last_pong = 0
        self.socket = new_socket(context, zmq.DEALER, high_water_mark=1_000)
        if configure is not None:
            configure(self.socket)
        self.socket.connect(address)

    def attack(self) -> bool:
        """Send some, and read all there is. False if nothing went out: the server is busy."""
        before = self.num_sent
        for _ in range(_AT_ONCE):
            kind, frames = self._unsent or self._inputs.next()
            self._unsent = None
            if not self._send(frames):
                self._unsent = kind, frames
                break
            self.sent[kind] += 1
            self.num_sent += 1
        self.listen()
        return self.num_sent > before

    def listen(self) -> None:
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._count(frames)

    def is_done(self, sequence: int) -> bool:
        """Ask whether all is digested: an answer to this Ping can only come after everything that was sent before."""
        hello = m.Hello("client", "fuzz", 1, self._inputs.mesh)
        self._send([b"", encode(hello)])
        self._send([b"", encode(m.Ping(sequence))])
        self.socket.poll(50)
        self.listen()
        return self._last_pong >= sequence

    def close(self) -> None:
        self.socket.close(0)

    def _send(self, frames: Frames) -> bool:
        try:
            self.socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def _count(self, frames: list[bytes]) -> None:
        try:
            message = decode(frames[frames.index(b"") + 1])
        except (ProtocolError, ValueError, IndexError):
            self.answers["UNREADABLE"] += 1  # a server that cannot be read by others is as bad as one that crashes
            return
        if isinstance(message, m.Pong) and message.sequence < 1 << 40:
            self._last_pong = max(self._last_pong, message.sequence)
        code = getattr(message, "code", "")
        self.answers[f"{type(message).__name__} {code}".strip()] += 1
