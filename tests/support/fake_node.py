"""A node without an engine, in this process: a real ROUTER and the real codec, and answers when the test says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import zmq

from mesh import bodies
from mesh.bodies import End, TokenEntry
from mesh.codec import decode, encode
from mesh.link import Frames, Link, new_socket
from mesh.messages import (
    Accepted,
    Admin,
    Bye,
    Cancel,
    Done,
    Hello,
    Lost,
    Message,
    ModelLoad,
    NodeFacts,
    Ping,
    Pong,
    RequestHead,
    Submit,
    Tokens,
    Welcome,
)

Route = tuple[bytes, ...]


@dataclass
class Held:
    """A request that this node has."""

    route: Route
    head: RequestHead
    body: bytes
    num_sent: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.head.request_id, self.head.attempt


class FakeNode:
    """`answers_with` tokens to each request at once; None holds requests until `says` or `finishes` is called."""

    def __init__(
        self,
        name: str,
        *,
        slots: int = 4,
        model: str = "phi3",
        mesh: str = "default",
        answers_with: int | None = None,
        epoch: int = 1,
        heartbeat_s: float = 0.5,
        address: str = "tcp://127.0.0.1:*",
    ) -> None:
        self.name, self.slots, self.model, self.mesh, self.epoch = name, slots, model, mesh, epoch
        self.heartbeat_s = heartbeat_s
        self.answers_with = answers_with
        self.is_silent = False
        self.is_draining = False
        self.received: list[Message] = []
        self.held: dict[tuple[Route, int], Held] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = new_socket(self._context, zmq.ROUTER, ipv6=False)
        socket.bind(address)
        self.address = bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).decode()
        self._socket = socket
        self._link = Link(socket, self._on_frames)

    @property
    def requests(self) -> list[Held]:
        return list(self.held.values())

    def says(self, held: Iterable[Held], num_tokens: int, *, ends: bool = False) -> None:
        """One Tokens message for each client with the next tokens of these requests."""
        by_route: dict[Route, list[Held]] = {}
        for one in held:
            by_route.setdefault(one.route, []).append(one)
        for route, group in by_route.items():
            entries = [self._entry(one, num_tokens, ends) for one in group]
            finished = tuple(one.key for one in group) if ends else ()
            self._send(route, Tokens(finished, num_tokens * len(group)), bodies.pack_entries(entries))
            for one in group:
                one.num_sent += num_tokens
                if ends:
                    self.held.pop((route, one.head.request_id), None)

    def loses(self, held: Iterable[Held]) -> None:
        for one in held:
            self._send(one.route, Lost((one.key,), self.name, "draining"))
            self.held.pop((one.route, one.head.request_id), None)

    def also_at(self, address: str) -> str:
        """A second address that leads here."""
        self._socket.bind(address)
        return bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).decode()

    def close(self) -> None:
        """As if killed: not a word to anyone."""
        if not self._link.closed:
            self._link.close()
            self._context.term()

    def _entry(self, one: Held, num_tokens: int, ends: bool) -> TokenEntry:
        index = one.num_sent
        total = index + num_tokens
        end = End("length", 3, total, 0, self.name, self.model, 0.01) if ends else None
        return TokenEntry(*one.key, index, tuple(range(index, total)), "x" * num_tokens, None, end)

    def _send(self, route: Route, message: Message, *body: bytes) -> None:
        self._link.send([*route, b"", encode(message), *body])

    def _on_frames(self, frames: Frames) -> None:
        if self.is_silent:
            return
        cut = frames.index(b"")
        route, message, body = tuple(frames[:cut]), decode(frames[cut + 1]), frames[cut + 2 :]
        self.received.append(message)
        if isinstance(message, Hello):
            self._send(route, self._welcome())
        elif isinstance(message, Ping):
            state = "draining" if self.is_draining else "ready"
            pong = Pong(message.sequence, self.epoch, state, 1, 0.0, self._loads(route[0]), NodeFacts(engine="fake"))
            self._send(route, pong)
        elif isinstance(message, Submit):
            self._take_in(route, message, body)
        elif isinstance(message, Cancel):
            for request_id in message.request_ids:
                self.held.pop((route, request_id), None)
        elif isinstance(message, Admin):
            self.is_draining = message.action == "drain"
            self._send(route, Done(message.query_id, True))
            if self.is_draining:
                self.loses(self.requests)
        elif isinstance(message, Bye):
            self.held = {key: one for key, one in self.held.items() if key[0][0] != route[0]}

    def _take_in(self, route: Route, submit: Submit, body: list[bytes]) -> None:
        self._send(route, Accepted(tuple(head.request_id for head in submit.requests)))
        taken = [Held(route, head, frame) for head, frame in zip(submit.requests, body, strict=True)]
        self.held |= {(route, one.head.request_id): one for one in taken}
        if self.answers_with is not None:
            self.says(taken, self.answers_with, ends=True)

    def _welcome(self) -> Welcome:
        return Welcome(
            "node", self.name, f"id-{self.name}", self.epoch, self.mesh, self.heartbeat_s, 3, 256, 16 << 20, (),
            self._loads(b""),
        )  # fmt: skip

    def _loads(self, hop: bytes) -> tuple[ModelLoad, ...]:
        yours = sum(1 for one in self.held.values() if one.route[0] == hop)
        return (ModelLoad(self.model, 4096, self.slots, len(self.held), 0, yours),)
