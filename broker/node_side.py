"""What nodes say, and what is done about it: handshake, heartbeats, and the relay of answers to clients."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from broker.actions import Redial, Route
from broker.book import Book
from broker.health import judge, next_check
from broker.outbox import Outbox
from broker.registry import AbsentNode, Node, Registry
from broker.states import NodeState
from broker.timers import Timers
from mesh.bodies import CODECS
from mesh.codec import decode
from mesh.errors import BadMessage, VersionMismatch
from mesh.messages import Admin, Bye, Done, Hello, Message, Ping, Pong, Refused, Welcome

logger = logging.getLogger(__name__)

_HELLO_TIMEOUT_S = 5.0  # a process that has just started may be slow to answer
_QUIET = {NodeState.READY, NodeState.BUSY}  # a change between these is not worth a line in the log
_MAX_MODELS = 256
_MAX_BLANKS = 3  # Pongs in a row that deny all our requests, before we believe them


class NodeSide:
    """Keeps the registry true: joins, beats, judges and loses nodes. Answers to clients go to `relay`."""

    def __init__(
        self, book: Book, registry: Registry, outbox: Outbox, timers: Timers, node_id: str, epoch: int
    ) -> None:
        self._book = book
        self._registry = registry
        self._config = book.config
        self._outbox = outbox
        self._timers = timers
        self._node_id = node_id
        self._epoch = epoch
        self.is_draining = False
        # A table from type to handler; each takes a message of its own type, which the table's type cannot say.
        self._handlers: dict[type[Message], Callable[[Node, Any, float], None]] = {
            Welcome: self._on_welcome,
            Pong: self._on_pong,
            Refused: self._on_refused,
            Done: self._on_done,
        }

    # --- connections ---

    def connected(self, peer: int, address: str, found_by: str, now: float) -> None:
        node = Node(peer, address, found_by, now, heartbeat_s=self._config.heartbeat_s, last_heard=now)
        self._registry.add(node)
        node.timer = self._timers.at(now + _HELLO_TIMEOUT_S, partial(self._no_welcome, node))
        hello = Hello("broker", self._config.name, self._epoch, self._config.mesh, CODECS)
        self._outbox.to_node(peer, hello)

    def disconnected(self, peer: int, reason: str, now: float) -> None:
        node = self._registry.nodes.get(peer)
        if node is not None:
            self._lose(node, reason, now)

    def slow(self, peer: int, now: float) -> None:
        node = self._registry.nodes.get(peer)
        if node is not None:
            self.hang_up(node, "does not read what it is sent", Redial.SOON, now)

    def absent(self, address: str, found_by: str, reason: str) -> None:
        """The address was tried and there is nobody; the report says so."""
        known = self._registry.absent.get(address) or AbsentNode(address, found_by, NodeState.JOINING, reason)
        note = f"{known.lost_because}; since then: {reason}" if known.lost_because else reason
        self._registry.absent[address] = dataclasses.replace(known, found_by=found_by, note=note)

    def address_forgotten(self, address: str) -> None:
        self._registry.absent.pop(address, None)

    def uses_process(self, epoch: int) -> bool:
        """Whether the process with this epoch is one of our nodes."""
        return any(node.welcome is not None and node.welcome.epoch == epoch for node in self._registry)

    # --- messages ---

    def decode(self, peer: int, frames: Sequence[bytes], now: float) -> tuple[Node, Route, Message] | None:
        """Node, route and message; an empty route means it is for this broker. None when the node broke the contract:
        it is hung up on, because an ending may have been in what could not be read."""
        node = self._registry.nodes.get(peer)
        if node is None:
            return None  # hung up on already
        node.last_heard = now
        if node.state is NodeState.SUSPECT:
            self.judge(node, now)
        try:
            cut = frames.index(b"")
            return node, tuple(frames[:cut]), decode(frames[cut + 1])
        except (BadMessage, VersionMismatch, ValueError, IndexError) as error:
            self._book.counters["malformed"] += 1
            self.hang_up(node, f"sent what is not in the protocol: {error}", Redial.SLOWLY, now)
            return None

    def receive(self, node: Node, message: Message, now: float) -> None:
        """A message for the broker itself."""
        handler = self._handlers.get(type(message))
        if handler is not None and len(getattr(message, "models", ())) > _MAX_MODELS:
            # All callers are told of all models, so that one node's list must not fill everybody's messages.
            self.hang_up(node, f"serves more than {_MAX_MODELS} models", Redial.SLOWLY, now)
        elif handler is not None:
            handler(node, message, now)
        else:
            self._book.counters["late_frames"] += 1

    def _on_welcome(self, node: Node, welcome: Welcome, now: float) -> None:
        if node.welcome is not None:
            return
        if welcome.mesh != self._config.mesh:
            self.hang_up(node, f"belongs to mesh {welcome.mesh!r}, not {self._config.mesh!r}", Redial.SLOWLY, now)
            return
        if welcome.node_id == self._node_id:
            self.hang_up(node, "leads to this broker itself", Redial.NEVER, now)
            return
        for other in self._registry.by_id(welcome.node_id):
            if other.welcome is not None and other.welcome.epoch == welcome.epoch:
                self.hang_up(node, f"the same node as {other.address}", Redial.DUPLICATE, now)
                return
            # Another process. If it is the one before a restart, its connection says so soon; but machines that were
            # cloned have one id too, and neither must throw the other out.
            logger.warning("node_id_twice id=%s at=%s and=%s", welcome.node_id, other.address, node.address)
        self._registry.register(node, welcome)
        node.heartbeat_s = min(self._config.heartbeat_s, max(0.01, welcome.heartbeat_s))
        node.reported_state = "ready" if welcome.models else "joining"
        self._registry.update_models(node, welcome.models, self._config.prefetch)
        if node.timer is not None:
            self._timers.cancel(node.timer)
        logger.info(
            "node_joined node=%s id=%s address=%s found_by=%s models=%s",
            welcome.name, welcome.node_id, node.address, node.found_by, ",".join(node.served),
        )  # fmt: skip
        self._beat(node, now)

    def _on_pong(self, node: Node, pong: Pong, now: float) -> None:
        if node.welcome is None:
            return
        if pong.epoch != node.welcome.epoch:
            self.hang_up(node, "restarted", Redial.SOON, now)
            return
        if node.reported_state == "draining" and pong.state != "draining":
            node.is_drained = False  # undrained, perhaps through another broker
        node.reported_state = pong.state
        node.step_age_s = pong.last_step_age_s
        node.is_stalled = pong.last_step_age_s > self._config.stall_s
        for served in self._registry.update_models(node, pong.models, self._config.prefetch):
            self._book.lose(list(served.in_flight), node.label, f"{served.name} is no longer served there")
            if served.name in self._registry.models:
                self._book.check_orphans(self._registry.models[served.name], now)
        self._registry.update_facts(node, pong.facts)
        if pong.sequence == node.ping_sequence:
            self._book.times.heartbeat.add(now - node.pinged_at)
            self._look_for_strays(node, pong)
        self.judge(node, now)
        for name in node.served:
            self._book.reconsider(self._registry.models[name])

    def _look_for_strays(self, node: Node, pong: Pong) -> None:
        """Messages keep their order, so what was sent before a Ping is known to the node in its Pong, unless its end is
        on the way already. A node that denies having anything of ours, again and again, has lost it."""
        for load in pong.models:
            served = node.served[load.name]
            strays = [r for r in served.in_flight if r.dispatched_at < node.pinged_at] if not load.num_yours else []
            served.num_blanks = served.num_blanks + 1 if strays else 0
            if served.num_blanks >= _MAX_BLANKS:
                served.num_blanks = 0
                logger.warning("requests_strayed node=%s model=%s count=%d", node.label, load.name, len(strays))
                self._book.lose(strays, node.label, "the node does not know of it", cancel=True)

    def _on_refused(self, node: Node, refused: Refused, now: float) -> None:
        """Before Welcome it is final until somebody changes something; after it, the node has forgotten us, and a new
        handshake helps."""
        redial = Redial.SOON if node.welcome is not None else Redial.SLOWLY
        self.hang_up(node, f"refused: {refused.text} ({refused.code})", redial, now)

    def _on_done(self, node: Node, done: Done, now: float) -> None:
        if not node.num_admins:
            return  # it answers what nobody asked
        node.num_admins -= 1
        if not done.ok:
            logger.warning("admin_failed node=%s text=%r", node.label, done.text)

    # --- time and health ---

    def _no_welcome(self, node: Node, now: float) -> None:
        self.hang_up(node, f"no answer to Hello for {_HELLO_TIMEOUT_S:g} s", Redial.SOON, now)

    def _beat(self, node: Node, now: float) -> None:
        lease_s = node.heartbeat_s * self._config.liveness
        if now - node.last_heard >= lease_s:
            self.hang_up(node, f"silent for {now - node.last_heard:.1f} s", Redial.SOON, now)
            return
        if now >= node.pinged_at + node.heartbeat_s:
            node.ping_sequence += 1
            node.pinged_at = now
            self._outbox.to_node(node.peer, Ping(node.ping_sequence))
        self.judge(node, now)
        node.timer = self._timers.at(next_check(node, now, lease_s), partial(self._beat, node))

    def forgive_silence(self, now: float) -> None:
        """This process did not run for a while, so that it is not the nodes that were silent."""
        for node in self._registry:
            node.last_heard = max(node.last_heard, now - node.heartbeat_s)

    def judge(self, node: Node, now: float) -> None:
        """Take the consequences of what is known of the node now."""
        before = node.state
        state, why = judge(node, now)
        if state is before:
            return
        node.enter(state)
        level = logging.DEBUG if {before, node.state} <= _QUIET else logging.INFO
        logger.log(level, "node_state node=%s from=%s to=%s why=%r", node.label, before, node.state, why)
        if node.state is NodeState.STALLED:
            for served in list(node.served.values()):
                self._book.lose(list(served.in_flight), node.label, why, cancel=True)
        for name in node.served:
            model = self._registry.models[name]
            self._book.check_orphans(model, now)
            if node.takes_work:
                self._book.reconsider(model)

    def administer(self, action: str, target: str, now: float) -> str:
        """Drain a node or take that back. Returns what was wrong, or nothing."""
        if target in (self._config.name, self._node_id):
            self.drain_all(action == "drain")
            return ""
        nodes = self._registry.named(target)
        if len(nodes) > 1:
            addresses = ", ".join(sorted(node.address for node in nodes))
            return f"{len(nodes)} nodes are called {target!r}: name one by its address: {addresses}"
        if not nodes:
            names = ", ".join(sorted(node.name for node in self._registry if node.welcome)) or "none"
            return f"no node is called {target!r}; known: {names}"
        node = nodes[0]
        node.is_drained = action == "drain"
        if action == "undrain" and node.reported_state == "draining":
            node.reported_state = "ready" if node.served else "joining"  # its next Pong knows better
        self._outbox.to_node(node.peer, Admin(0, action, node.node_id))
        node.num_admins += 1
        logger.info("node_%sed node=%s by=operator", action, node.label)
        self.judge(node, now)
        return ""

    def drain_all(self, is_draining: bool) -> None:
        """This broker as a whole, for whoever uses it as a node: hand everything over, or come back."""
        self.is_draining = self._book.admission.is_closed = is_draining
        if is_draining:
            self._book.lose_all("the broker is draining", cancel=True)

    def leave(self) -> None:
        """Say goodbye to all nodes, which cancels what they still run for us."""
        for node in list(self._registry):
            if node.welcome is not None:
                self._outbox.to_node(node.peer, Bye())
            self._outbox.hang_up(node.peer, "this broker stops", Redial.NEVER)

    def hang_up(self, node: Node, reason: str, redial: Redial, now: float) -> None:
        """End the connection from this side."""
        self._outbox.hang_up(node.peer, reason, redial)
        if redial in (Redial.DUPLICATE, Redial.NEVER):
            logger.debug("node_not_used address=%s reason=%r", node.address, reason)
            self._forget(node, now)
        else:
            self._lose(node, reason, now)

    def _lose(self, node: Node, reason: str, now: float) -> None:
        num_in_flight = node.num_in_flight
        for served in list(node.served.values()):
            self._book.lose(list(served.in_flight), node.label, reason)
        self._forget(node, now)
        self._registry.absent[node.address] = AbsentNode(
            node.address, node.found_by, NodeState.LOST, reason, node.name, node.node_id, lost_because=reason
        )
        if node.welcome is not None:
            self._book.counters["nodes_lost"] += 1
            logger.warning("node_lost node=%s reason=%r in_flight=%d", node.label, reason, num_in_flight)
        else:
            logger.warning("node_refused address=%s reason=%r", node.address, reason)

    def _forget(self, node: Node, now: float) -> None:
        if node.timer is not None:
            self._timers.cancel(node.timer)
        names = list(node.served)
        self._registry.remove(node)
        node.enter(NodeState.LOST)
        for name in names:
            if name in self._registry.models:
                self._book.check_orphans(self._registry.models[name], now)
