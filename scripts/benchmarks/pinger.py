"""Heartbeats as a broker sends them, only more often, from a process of its own: how late is each answer?"""

from __future__ import annotations

import multiprocessing
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import zmq

from mesh.codec import decode, encode
from mesh.messages import Hello, Ping, Pong, Welcome
from mesh.security.loading import client_credentials
from mesh.security.sockets import secure_client
from scripts.benchmarks.processes import MESH

EVERY_S = 0.01


class Pinger:
    """Pings all the time; `take` says how late the answers were that have come since the last `take`."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def take(self) -> list[float]:
        """Seconds from each Ping to its Pong; one that is still unanswered counts with the time it has waited."""
        self._pipe.send("take")
        delays: list[float] = self._pipe.recv()
        return delays


@contextmanager
def pinger(address: str, home: Path) -> Iterator[Pinger]:
    """Pings the server at this address, which has its key in `home`."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_ping, args=(address, home, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield Pinger(ours)
    finally:
        ours.close()
        process.join(10)


def _ping(address: str, home: Path, pipe: Connection) -> None:
    """The process: sends at fixed times, whatever became of the Pings before."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    credentials = client_credentials(home=home, env={})
    secure_client(credentials)(socket)
    socket.connect(address)
    _send(socket, Hello("client", "pinger", secrets.randbits(62), credentials.mesh_id(MESH)))
    if not isinstance(_receive(socket), Welcome):
        raise RuntimeError("not welcome")
    pipe.send("ready")
    sent: dict[int, float] = {}
    delays: list[float] = []
    sequence, due = 0, time.monotonic()
    while True:
        while socket.poll(max(0, int(1000 * (due - time.monotonic())))):
            pong = _receive(socket)
            if isinstance(pong, Pong):
                delays.append(time.monotonic() - sent.pop(pong.sequence))
        if pipe.poll():
            try:
                pipe.recv()
            except EOFError:
                return
            now = time.monotonic()
            pipe.send(delays + [now - at for at in sent.values()])
            delays = []
        if time.monotonic() >= due:
            sequence += 1
            sent[sequence] = time.monotonic()
            _send(socket, Ping(sequence))
            due = max(due + EVERY_S, time.monotonic())


def _send(socket: zmq.Socket[bytes], message: Hello | Ping) -> None:
    socket.send(b"", zmq.SNDMORE)
    socket.send(encode(message))


def _receive(socket: zmq.Socket[bytes]) -> object:
    return decode(socket.recv_multipart()[1])
