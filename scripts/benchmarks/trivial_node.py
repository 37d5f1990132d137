"""A node without an engine, as lean as a node can be: what it costs is not measured, so it must not be in the way.

    python -m scripts.benchmarks.trivial_node [--tokens N] [--step S] [--insecure]

It speaks the protocol of the mesh as far as a broker or a client needs it. The first token of a request comes at once,
the others one for each step: one Tokens message for each client with what all its streams got, as a real node sends
them. Not a line of it is the real node's, so that what is measured beside it cannot profit from both being one program.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from collections import defaultdict
from typing import Any

import msgpack
import zmq

from mesh.bodies import PLAIN
from mesh.codec import decode, encode
from mesh.messages import Accepted, Bye, Cancel, Hello, ModelLoad, NodeFacts, Ping, Pong, Submit, Tokens, Welcome
from mesh.security.loading import member_credentials
from mesh.security.sockets import secure_server

MODEL = "trivial"
WORD = " word"  # the text of every token
_SLOTS = 4096
_NOW = int(zmq.DONTWAIT)

Route = tuple[bytes, ...]


class TrivialNode:
    """`tokens` for each request, whatever it asks for; 0: as many as it asks for."""

    def __init__(self, *, tokens: int, step_s: float, is_insecure: bool, says_accepted: bool) -> None:
        self._tokens, self._step_s, self._says_accepted = tokens, step_s, says_accepted
        self._mesh = "bench"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0  # a peer that is gone keeps nobody from leaving
        self._socket.sndhwm = self._socket.rcvhwm = 100_000
        if not is_insecure:
            member = member_credentials()
            secure_server(self._socket, member)
            self._socket.zap_enforce_domain = False  # nobody is turned away here; what is measured is elsewhere
            self._mesh = member.mesh_id(self._mesh)
        self._socket.bind("tcp://127.0.0.1:*")
        self.address = bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).decode()
        self._epoch = secrets.randbits(62)
        self._steps = 0
        self._brokers: set[bytes] = set()  # who says Accepted to their own clients
        self._streams: dict[Route, dict[int, list[int]]] = defaultdict(dict)  # request id → [attempt, sent, asked]

    def run(self) -> None:
        """For ever."""
        due = time.monotonic()
        while True:
            if not self._streams:
                self._socket.poll()
                due = time.monotonic() + self._step_s
            elif (left := due - time.monotonic()) > 0:
                self._socket.poll(max(1, int(left * 1000)) if left > 0.0005 else 0)
            self._receive()
            now = time.monotonic()
            if self._streams and now >= due:
                self._step()
                due = max(due + self._step_s, now)

    def _receive(self) -> None:
        while True:
            try:
                frames = [self._socket.recv(_NOW)]
            except zmq.Again:
                return
            while self._socket.rcvmore:
                frames.append(self._socket.recv(_NOW))
            cut = frames.index(b"", 1)
            self._handle(tuple(frames[:cut]), decode(frames[cut + 1]))

    def _handle(self, route: Route, message: Any) -> None:
        kind = type(message)
        if kind is Submit:
            self._take_in(route, message)
        elif kind is Hello:
            if message.role == "broker":
                self._brokers.add(route[0])
            self._send(
                route,
                Welcome("node", MODEL, f"{self._epoch:x}", self._epoch, self._mesh, 0.5, 3, 1024, 16 << 20, (),
                        self._loads(route)),
            )  # fmt: skip
        elif kind is Ping:
            pong = Pong(message.sequence, self._epoch, "ready", self._steps, 0.0, self._loads(route), NodeFacts())
            self._send(route, pong)
        elif kind is Cancel:
            for request_id in message.request_ids:
                self._streams.get(route, {}).pop(request_id, None)
        elif kind is Bye:
            for other in [other for other in self._streams if other[0] == route[0]]:
                del self._streams[other]

    def _take_in(self, route: Route, submit: Submit) -> None:
        if self._says_accepted and route[0] not in self._brokers:
            self._send(route, Accepted(tuple([head.request_id for head in submit.requests])))
        new = {head.request_id: [head.attempt, 0, self._tokens or head.max_tokens or 1] for head in submit.requests}
        self._say(route, new)
        if new:
            self._streams[route].update(new)

    def _step(self) -> None:
        self._steps += 1
        for route in list(self._streams):
            self._say(route, self._streams[route])
            if not self._streams[route]:
                del self._streams[route]

    def _say(self, route: Route, streams: dict[int, list[int]]) -> None:
        """The next token of each; those that end here are taken out."""
        entries: list[tuple[Any, ...]] = []
        finished: list[tuple[int, int]] = []
        for request_id, state in streams.items():
            attempt, sent, asked = state
            state[1] = sent + 1
            end = None
            if sent + 1 >= asked:
                finished.append((request_id, attempt))
                end = ("length", 8, asked, 0, MODEL, MODEL, 0.001)
            entries.append((request_id, attempt, sent, (sent % 1000,), WORD, None, end))
        for request_id, _ in finished:
            del streams[request_id]
        body = bytes([PLAIN]) + msgpack.packb(entries)
        self._send(route, Tokens(tuple(finished), len(entries)), body)

    def _loads(self, route: Route) -> tuple[ModelLoad, ...]:
        mine = sum(len(streams) for other, streams in self._streams.items() if other[0] == route[0])
        running = sum(len(streams) for streams in self._streams.values())
        return (ModelLoad(MODEL, 1 << 20, _SLOTS, running, 0, mine),)

    def _send(self, route: Route, message: Any, *body: bytes) -> None:
        frames = [*route, b"", encode(message), *body]
        for frame in frames[:-1]:
            self._socket.send(frame, zmq.SNDMORE)
        self._socket.send(frames[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--step", type=float, default=0.02)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--no-accepted", action="store_true", help="answer with tokens alone, as an echo would")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    node = TrivialNode(
        tokens=given.tokens,
        step_s=given.step,
        is_insecure=given.insecure,
        says_accepted=not given.no_accepted,
    )
    print(f"address={node.address}", flush=True)
    node.run()


if __name__ == "__main__":
    main()
