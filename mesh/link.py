"""A ZeroMQ socket on an asyncio loop: `add_reader` on its FD and a bounded, non-blocking drain.

Not zmq.asyncio: that makes a Future for each receive (DESIGN.md §10 has the measurement).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import zmq
import zmq.backend

logger = logging.getLogger(__name__)

Frames = list[bytes]
Socket = zmq.Socket[bytes]
Context = zmq.Context[zmq.Socket[bytes]]

BURST, TURN_S = 256, 0.02  # messages taken in one turn and its length, so that timers and other sockets get theirs
MAX_FRAMES = 16_384  # of one message; libzmq has no limit, and each is an object here
# Plain integers, and frame by frame: send_multipart and recv_multipart compute with enums for each frame, which costs
# more than the sending (measured: 4 and 1.5 times as much in all).
_NOW = int(zmq.DONTWAIT)
_NOW_AND_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)
_EVENTS = int(zmq.EVENTS)
# Of the class below zmq.Socket, whose own methods see to routing ids and groups, which a mesh has no use for: half the
# cost.
_send, _get = zmq.backend.Socket.send, zmq.backend.Socket.get
MAX_FRAME_BYTES = 32 << 20  # ZMQ_MAXMSGSIZE; bodies are bounded more tightly, after decompression


class Link:
    """Moves frames and decides nothing. `on_frames` is called for each message, `on_drained` once after each burst,
    which is the place to send what the burst gave rise to in one piece.

    The FD of a ZeroMQ socket is edge-triggered: after every receive and every send EVENTS must be asked again, or the
    loop hangs. `_look`, after each turn and after sends, sees to that.
    """

    def __init__(
        self,
        socket: Socket,
        on_frames: Callable[[Frames], None],
        on_drained: Callable[[], None] | None = None,
        *,
        looks_late: bool = False,
    ) -> None:
        """`looks_late`: EVENTS is asked once after all sends of a callback, not after each. For a server that is
        cheaper; for a client, which sends one message at a time and on a slower loop, it is dearer."""
        self._socket = socket
        self._looks_late = looks_late
        self._on_frames = on_frames
        self._on_drained = on_drained
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._again: asyncio.Handle | None = None
        self._in_turn = False
        self._has_sent = False  # in this turn
        self._loop.add_reader(self._fd, self._turn)
        self._again = self._loop.call_soon(self._turn)

    @property
    def socket(self) -> Socket:
        return self._socket

    @property
    def closed(self) -> bool:
        return self._socket.closed

    def send(self, frames: Sequence[bytes]) -> None:
        """Send one message, or raise at once.

        Raises: zmq.Again when the peer's queue is full; zmq.ZMQError EHOSTUNREACH when a ROUTER does not know the
        route.
        """
        socket = self._socket
        try:
            for frame in frames[:-1]:
                _send(socket, frame, _NOW_AND_MORE)
            _send(socket, frames[-1], _NOW)
        finally:
            if self._in_turn:
                self._has_sent = True
            elif not self._looks_late:
                self._look()
            elif self._again is None:
                self._again = self._loop.call_soon(self._after_sends)

    def drain(self) -> None:
        """Take what has already arrived, now: for the owner that is about to close."""
        self._turn()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket; what is still queued has `linger_s` to leave."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._fd)
        if self._again is not None:
            self._again.cancel()
        self._socket.close(linger=int(linger_s * 1000))

    def _deliver(self, first: zmq.Frame, frames: Frames) -> None:
        """For a subclass that wants to know what only the first frame tells: who sent it."""
        self._on_frames(frames)

    def _after_sends(self) -> None:
        self._again = None
        self._look()

    def _look(self) -> None:
        """Ask EVENTS, as one must after each use of the socket, and come back if there is something to read."""
        if self._again is None and not self._socket.closed and self._is_readable():
            self._again = self._loop.call_soon(self._turn)

    def _is_readable(self) -> bool:
        return bool(int(_get(self._socket, _EVENTS)) & _READABLE)

    def _turn(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._socket.closed:
            return
        self._in_turn, self._has_sent = True, False
        received, is_empty = 0, False
        over_at = time.monotonic() + TURN_S
        try:
            while received < BURST and not self._socket.closed:
                try:
                    first = frame = self._socket.recv(_NOW, copy=False)
                except zmq.Again:
                    break
                frames = [frame.bytes]
                while frame.more:
                    frame = self._socket.recv(_NOW, copy=False)
                    if len(frames) <= MAX_FRAMES:  # no message of ours has more; whoever counts them will see it
                        frames.append(frame.bytes)
                received += 1
                self._deliver(first, frames)
                # Mostly there is one message, and to ask is cheaper than to try in vain; in a burst it is not.
                if received == 1:
                    is_empty = not self._socket.closed and not self._is_readable()
                    if is_empty:
                        break
                elif time.monotonic() > over_at:
                    break
            if received and self._on_drained is not None:
                self._on_drained()
        finally:
            self._in_turn = False
            if self._has_sent or not is_empty:
                self._look()


def new_socket(context: Context, kind: int, *, ipv6: bool = False, high_water_mark: int = 10_000) -> Socket:
    """A ROUTER or DEALER with every limit set: nothing is dropped without a word, nothing waits for ever."""
    socket = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = high_water_mark
    socket.rcvhwm = high_water_mark
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.ipv6 = ipv6  # off for IPv4: with it, addresses read ::ffff:1.2.3.4 and localhost may mean ::1
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = 30
    if kind == zmq.ROUTER:
        socket.router_mandatory = True  # an unknown or full route is an error, not a silent drop
    return socket
