"""Watches who fails at the door of a server before any key is judged: other meshes, plain text, noise."""

from __future__ import annotations

import logging
import os
import secrets
import socket as posix
from contextlib import closing, suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

from mesh.link import Frames, Link, Socket
from mesh.security.refusals import Refusals

_FAILED = {zmq.Event.HANDSHAKE_FAILED_PROTOCOL, zmq.Event.HANDSHAKE_FAILED_NO_DETAIL}
_WATCHED = _FAILED | {zmq.Event.ACCEPTED, zmq.Event.DISCONNECTED, zmq.Event.MONITOR_STOPPED}
_REASONS = {
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "wrong_mesh",
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "not_encrypted",
}


class Door:
    """The socket monitor of one server. It knows addresses by file descriptor only, and the reason comes in the event
    before: libzmq reports a failure and the disconnection that follows it in one go."""

    def __init__(self, socket: Socket, refusals: Refusals) -> None:
        self._refusals = refusals
        self._callers: dict[int, str] = {}
        self._reason: str | None = None
        address = f"inproc://door-{secrets.token_hex(8)}"
        socket.monitor(address, sum(int(event) for event in _WATCHED))
        monitor: Socket = socket.context.socket(zmq.PAIR)
        monitor.linger = 0
        # No limit, unlike pyzmq's get_monitor_socket: at the limit libzmq's I/O thread waits for us, and the server
        # takes no connections (measured: 3,000 of them while the loop stands still are enough).
        monitor.rcvhwm = 0
        monitor.connect(address)
        self._socket = socket
        self._link = Link(monitor, self._on_event)

    @property
    def is_open(self) -> bool:
        return not self._link.closed

    def close(self) -> None:
        if not self._socket.closed:
            self._socket.disable_monitor()
        self._link.close()

    def _on_event(self, frames: Frames) -> None:
        told = parse_monitor_message(frames)
        event, value = zmq.Event(told["event"]), int(told["value"])
        if event == zmq.Event.ACCEPTED:
            self._callers[value] = _address(value)
        elif event == zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
            self._reason = _REASONS.get(value, "bad_handshake")
        elif event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            self._reason = "no_handshake"
        elif event == zmq.Event.DISCONNECTED:
            self._on_gone(self._callers.pop(value, "?"))
        elif event == zmq.Event.MONITOR_STOPPED:  # the server socket was closed
            self._link.close()

    def _on_gone(self, address: str) -> None:
        reason, self._reason = self._reason, None
        if reason is not None:
            # Who only hangs up may be the probe of a load balancer, or talk in plain text and have left first.
            self._refusals.refuse(address, reason, logging.INFO if reason == "no_handshake" else logging.WARNING)


def _address(descriptor: int) -> str:
    """Who is at the other end, for a log. If the connection is gone by now, nobody knows (measured on an idle loop: 5 %
    of those that libzmq refuses by itself)."""
    with suppress(OSError), closing(posix.socket(fileno=os.dup(descriptor))) as copy:
        return str(copy.getpeername()[0])
    return "?"
