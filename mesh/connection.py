"""One DEALER to one server, with its socket monitor. One connection, one socket: never reconnected behind our back.

ZeroMQ's own reconnect would keep queued messages and give the server a new route; here a broken connection is a fact
that is reported once, and the owner dials again with a new object.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from mesh.link import Context, Frames, Link, Socket, new_socket
from mesh.security.reasons import DOWN, UP, DownReason, down_reason

logger = logging.getLogger(__name__)

ConfigureSocket = Callable[[Socket], None]


class Connection:
    """`on_up` once when the handshake is done; then `on_frames` for each message and `on_drained` after each burst;
    `on_down(reason)` once when it is over, unless this side closed it."""

    def __init__(
        self,
        context: Context,
        address: str,
        *,
        on_up: Callable[[], None],
        on_down: Callable[[DownReason], None],
        on_frames: Callable[[Frames], None],
        on_drained: Callable[[], None] | None = None,
        configure: ConfigureSocket | None = None,
        looks_late: bool = False,
    ) -> None:
        """`looks_late` is for `mesh.link.Link`."""
        self.address = address
        self._on_up = on_up
        self._on_down = on_down
        self._was_up = False
        self._over = False
        socket = new_socket(context, zmq.DEALER, ipv6="[" in address)
        socket.reconnect_ivl = -1
        if configure is not None:
            configure(socket)
        self._is_encrypted = socket.mechanism == zmq.CURVE
        monitor = socket.get_monitor_socket(sum(int(event) for event in (UP, *DOWN)))
        self._link = Link(socket, on_frames, on_drained, looks_late=looks_late)
        self._monitor = Link(monitor, self._on_event)
        try:
            socket.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, frames: Sequence[bytes]) -> None:
        """Send one message (without the empty delimiter's route). Raises zmq.Again when the queue is full."""
        self._link.send(frames)

    def drain(self) -> None:
        """Take what has already arrived, now."""
        self._link.drain()

    def close(self, linger_s: float = 0.0) -> None:
        """Close without a call to `on_down`."""
        self._over = True
        if not self._link.closed:
            self._link.socket.disable_monitor()
        self._monitor.close()
        self._link.close(linger_s)

    def _on_event(self, frames: Frames) -> None:
        told = parse_monitor_message(frames)
        event, value = zmq.Event(told["event"]), int(told["value"])
        if event == UP:
            self._was_up = True
            self._on_up()
        elif event in DOWN and not self._over:
            self._link.drain()  # the last words of the other side, such as Refused, are in the queue
            if not self._over:
                self.close()
                reason = down_reason(event, value, was_up=self._was_up, is_encrypted=self._is_encrypted)
                self._on_down(reason)
