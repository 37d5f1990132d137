"""A broker's core on a fake clock, spoken to in the words of the domain. Everything goes through the real codec."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from broker.actions import HangUp, Redial, ToClient, ToNode
from broker.config import BrokerConfig
from broker.core import BrokerCore
from mesh.codec import decode, encode
from mesh.messages import (
    Accepted,
    Admin,
    Bye,
    Cancel,
    Done,
    Failed,
    Hello,
    Lost,
    Message,
    ModelLoad,
    NodeFacts,
    Ping,
    Pong,
    Query,
    Rejected,
    RequestHead,
    Submit,
    Tokens,
    Welcome,
)
from mesh.report import NodeReport, StatusReport

BROKER_ID = "the-broker"


@dataclass(frozen=True)
class Asked:
    """A request as its client knows it."""

    client: str
    request_id: int
    attempt: int = 1

    @property
    def key(self) -> tuple[int, int]:
        return self.request_id, self.attempt

    def again(self) -> Asked:
        return replace(self, attempt=self.attempt + 1)


class FakeNodeState:
    """What a node of the harness would know: it answers pings while `is_silent` is false."""

    def __init__(self, name: str, peer: int, epoch: int, models: dict[str, int]) -> None:
        self.name, self.peer, self.epoch, self.models = name, peer, epoch, models
        self.holds: dict[tuple[str, int], int] = {}  # (client, request id) -> attempt
        self.model_of: dict[tuple[str, int], str] = {}
        self.others: dict[str, int] = dict.fromkeys(models, 0)
        self.received: list[tuple[str, Message]] = []
        self.is_silent = False
        self.denies_all = False
        self.state = "ready"
        self.step_age_s = 0.0
        self.facts = NodeFacts()
        self.heartbeat_s = 0.5

    def loads(self) -> tuple[ModelLoad, ...]:
        yours = {name: sum(1 for model in self.model_of.values() if model == name) for name in self.models}
        if self.denies_all:
            yours = dict.fromkeys(yours, 0)
        return tuple(
            ModelLoad(name, 4096, slots, yours[name] + self.others[name], 0, yours[name])
            for name, slots in self.models.items()
        )


class BrokerHarness:
    """A core, its nodes and its clients. Nodes answer heartbeats by themselves; clients ping unless silent."""

    def __init__(self, **options: Any) -> None:
        self.config = BrokerConfig(**{"name": "broker", "mdns": False, **options})
        self.now = 1000.0
        self.core = BrokerCore(self.config, node_id=BROKER_ID, epoch=77, rng=random.Random(7), now=self.now)
        self.nodes: dict[str, FakeNodeState] = {}
        self.clients: dict[str, list[tuple[Message, list[bytes]]]] = {}
        self.silent_clients: set[str] = set()
        self.hung_up: dict[int, tuple[str, Redial]] = {}
        self.unreachable: set[str] = set()
        self._hops: set[str] = set()
        self._peer = 0
        self._next_id = 0
        self._step_s = 0.05

    # --- nodes ---

    def connects(self, name: str, *, address: str = "") -> int:
        """A connection stands; the node has not answered Hello yet."""
        self._peer += 1
        self.core.node_connected(self._peer, address or f"tcp://{name}:5560", "static", self.now)
        self.settle()
        return self._peer

    def joins(
        self, name: str, slots: int = 4, *, model: str = "phi3", epoch: int = 1, node_id: str = "", **welcome: Any
    ) -> FakeNodeState:
        """It connects and is welcomed. `welcome` replaces fields of its Welcome; `called` is its name if not `name`."""
        models = welcome.pop("models", None) or {model: slots}
        peer = self.connects(name, address=welcome.pop("address", ""))
        node = FakeNodeState(name, peer, epoch, models)
        self.nodes[name] = node
        fields: dict[str, Any] = {
            "kind": "node", "name": welcome.pop("called", name), "node_id": node_id or f"id-{name}", "epoch": epoch,
            "mesh": self.config.mesh, "heartbeat_s": 0.5, "liveness": 3, "max_batch": 256, "max_body_bytes": 1 << 20,
            "models": node.loads(),
        }  # fmt: skip
        self.from_node(name, Welcome(**{**fields, **welcome}))
        return node

    def from_node(self, name: str, message: Message, *, to: str = "", body: bytes | None = None) -> None:
        node = self.nodes[name]
        frames = [*_route(to), b"", encode(message)] + ([] if body is None else [body])
        self.core.from_node(node.peer, frames, self.now)
        self.settle()

    def hears_tokens(self, name: str, *asked: Asked, done: bool = False) -> None:
        """The node sends one Tokens message for these requests of one client; `done` ends them."""
        finished = tuple(one.key for one in asked) if done else ()
        if done:
            self._node_forgets(name, asked)
        self.from_node(name, Tokens(finished, len(asked)), to=asked[0].client, body=b"\0tokens")

    def hears_rejected(self, name: str, asked: Asked, code: str, retry_after_s: float = 0.0) -> None:
        self._node_forgets(name, [asked])
        self.from_node(name, Rejected(*asked.key, code, "because", retry_after_s, name), to=asked.client)

    def hears_failed(self, name: str, asked: Asked) -> None:
        self._node_forgets(name, [asked])
        self.from_node(name, Failed(*asked.key, "engine_failed", "it broke", name), to=asked.client)

    def hears_lost(self, name: str, *asked: Asked) -> None:
        self._node_forgets(name, asked)
        self.from_node(name, Lost(tuple(one.key for one in asked), name, "draining"), to=asked[0].client)

    def dies(self, name: str) -> None:
        """The connection breaks."""
        self.core.node_disconnected(self.nodes.pop(name).peer, "connection lost", self.now)
        self.settle()

    def reports(self, name: str) -> None:
        """The node answers the last ping once more, with what it knows now."""
        node = self.nodes[name]
        pings = [message for _, message in node.received if isinstance(message, Ping)]
        self._pong(node, pings[-1].sequence if pings else 0)
        self.settle()

    # --- clients ---

    def greets(self, client: str, **hello: Any) -> None:
        fields: dict[str, Any] = {"role": "client", "name": client, "epoch": 5, "mesh": self.config.mesh}
        self._hops.add(client.split("/")[0])
        self.from_client(client.split("/")[0], Hello(**{**fields, **hello}))

    def from_client(self, client: str, message: Message, *bodies: bytes) -> None:
        self.raw_from_client(client, encode(message), *bodies)

    def raw_from_client(self, client: str, *frames: bytes) -> None:
        self.clients.setdefault(client, [])
        self.core.from_client([*_route(client), b"", *frames], self.now)
        self.settle()

    def submits(self, client: str = "alice", count: int = 1, *, body: bytes = b"\0body", **head: Any) -> list[Asked]:
        """One message with this many new requests."""
        asked = []
        for _ in range(count):
            self._next_id += 1
            asked.append(Asked(client, self._next_id))
        self.resubmits(*asked, body=body, **head)
        return asked

    def submits_one(self, client: str = "alice", **head: Any) -> Asked:
        return self.submits(client, **head)[0]

    def resubmits(self, *asked: Asked, body: bytes = b"\0body", **head: Any) -> None:
        client = asked[0].client
        if client.split("/")[0] not in self._hops:
            self.greets(client)
        heads = tuple(RequestHead(*one.key, **head) for one in asked)
        self.from_client(client, Submit(heads), *[body] * len(heads))

    def cancels(self, *asked: Asked) -> None:
        self.from_client(asked[0].client, Cancel(tuple(one.request_id for one in asked)))

    def sent_to_client(self, asked: Asked) -> list[Message]:
        """All the client was told of this very attempt, in order; Accepted and tokens without an end left out."""
        return [message for message, _ in self.clients.get(asked.client, []) if _concerns(message, asked)]

    def heard_by(self, client: str, kind: type[Message]) -> list[Any]:
        return [message for message, _ in self.clients.get(client, []) if isinstance(message, kind)]

    def was_accepted(self, asked: Asked) -> bool:
        return any(asked.request_id in message.request_ids for message in self.heard_by(asked.client, Accepted))

    def drains(self, target: str, action: str = "drain") -> Done:
        self.greets("operator")
        self.from_client("operator", Admin(1, action, target))
        done: Done = self.heard_by("operator", Done)[-1]
        return done

    # --- looking ---

    def where_is(self, asked: Asked) -> str | None:
        """The node that holds this attempt; "queue" while it waits; None when the broker does not know it."""
        for name, node in self.nodes.items():
            if node.holds.get((asked.client, asked.request_id)) == asked.attempt:
                return name
        hop = self.core._clients.hops.get(asked.client.split("/")[0].encode())
        client = hop and hop.clients.get(tuple(_route(asked.client)))
        request = client and client.requests.get(asked.request_id)
        return "queue" if request and request.head.attempt == asked.attempt else None

    def report(self) -> StatusReport:
        self.greets("operator")
        self.from_client("operator", Query(1))
        return StatusReport.from_body(self.clients["operator"][-1][1][0])

    def node_report(self, name: str) -> NodeReport:
        return next(node for node in self.report().nodes if name in (node.name, node.address))

    @property
    def counters(self) -> dict[str, int]:
        return self.core.status(self.now).counters

    # --- time ---

    def time_passes(self, seconds: float) -> None:
        """In small steps; those who are not silent beat meanwhile."""
        until = self.now + seconds
        next_ping = self.now
        while self.now < until:
            self.now = min(until, self.now + self._step_s)
            if self.now >= next_ping:
                next_ping = self.now + self.config.heartbeat_s
                self._clients_beat()
            if self.core.next_deadline() <= self.now:
                self.core.tick(self.now)
            self.settle()

    def stands_still(self, seconds: float) -> None:
        """The broker's own process gets no CPU for so long; what clients say meanwhile waits in its socket."""
        self.now += seconds
        self._clients_beat()
        self.core.tick(self.now)
        self.settle()

    def settle(self) -> None:
        """Carry out what the core wants, and let nodes answer, until there is nothing more."""
        while actions := self.core.take_actions(self.now):
            for action in actions:
                if isinstance(action, ToClient):
                    self._to_client(action.frames)
                elif isinstance(action, ToNode):
                    self._to_node(action)
                elif isinstance(action, HangUp):
                    self.hung_up[action.peer] = (action.reason, action.redial)
        self.core.check_invariants()

    def _clients_beat(self) -> None:
        for client in sorted(self._hops - self.silent_clients):
            self.core.from_client([client.encode(), b"", encode(Ping(1))], self.now)

    def _to_client(self, frames: list[bytes]) -> None:
        cut = frames.index(b"")
        client = "/".join(frame.decode(errors="backslashreplace") for frame in frames[:cut])
        if client.split("/")[0] in self.unreachable:
            self.core.client_unreachable(frames[0])
            return
        self.clients.setdefault(client, []).append((decode(frames[cut + 1]), frames[cut + 2 :]))

    def _to_node(self, action: ToNode) -> None:
        node = next((node for node in self.nodes.values() if node.peer == action.peer), None)
        if node is None:
            return
        cut = action.frames.index(b"")
        client = "/".join(frame.decode(errors="backslashreplace") for frame in action.frames[:cut])
        message = decode(action.frames[cut + 1])
        node.received.append((client, message))
        if isinstance(message, Submit):
            assert len(message.requests) == len(action.frames) - cut - 2
            for head in message.requests:
                node.holds[client, head.request_id] = head.attempt
                node.model_of[client, head.request_id] = head.model or next(iter(node.models))
        elif isinstance(message, Cancel):
            for request_id in message.request_ids:
                node.holds.pop((client, request_id), None)
                node.model_of.pop((client, request_id), None)
        elif isinstance(message, Ping) and not node.is_silent:
            self._pong(node, message.sequence)
        elif isinstance(message, Bye):
            node.holds.clear()
            node.model_of.clear()

    def _pong(self, node: FakeNodeState, sequence: int) -> None:
        pong = Pong(sequence, node.epoch, node.state, 1, node.step_age_s, node.loads(), node.facts)
        self.core.from_node(node.peer, [b"", encode(pong)], self.now)

    def _node_forgets(self, name: str, asked: Iterable[Asked]) -> None:
        for one in asked:
            self.nodes[name].holds.pop((one.client, one.request_id), None)
            self.nodes[name].model_of.pop((one.client, one.request_id), None)


def _route(client: str) -> list[bytes]:
    return [frame.encode() for frame in client.split("/")] if client else []


def _concerns(message: Message, asked: Asked) -> bool:
    if isinstance(message, Tokens):
        return asked.key in message.finished
    if isinstance(message, Lost):
        return asked.key in message.requests
    return isinstance(message, Rejected | Failed) and (message.request_id, message.attempt) == asked.key
