"""The broker's decisions: messages and time in, actions out. No socket, no clock, no asyncio in here or below."""

from __future__ import annotations

import random

from broker.actions import Action
from broker.book import Book
from broker.client_side import ClientSide
from broker.clients import Clients
from broker.config import BrokerConfig
from broker.invariants import check
from broker.node_side import NodeSide
from broker.outbox import Outbox
from broker.registry import Registry
from broker.relay import Relay
from broker.reports import Reporter
from broker.timers import Timers
from broker.times import Times
from mesh.report import StatusReport
from mesh.security.keys import MEMBER

_OVERSLEPT = 2.0  # heartbeats between two ticks, when one was due: this process stood still, not the others


class BrokerCore:
    """All state of a broker, behind facts and one method that takes the actions out.

    Call `tick` when `next_deadline` has come, and `take_actions` at the end of every turn: what arrived together leaves
    together. `now` is monotonic, in seconds, and the same clock everywhere.
    """

    def __init__(self, config: BrokerConfig, *, node_id: str, epoch: int, rng: random.Random, now: float) -> None:
        self.config = config
        self._timers = Timers()
        self._registry = Registry()
        self._clients = Clients()
        self._outbox = Outbox()
        self._book = Book(config, self._registry, self._clients, self._outbox, self._timers, rng)
        self._nodes = NodeSide(self._book, self._registry, self._outbox, self._timers, node_id, epoch)
        self._relay = Relay(self._book, self._clients, self._outbox)
        self._reporter = Reporter(self._book, self._registry, self._clients, node_id, epoch, now)
        self._front = ClientSide(self._clients, self._book, self._nodes, self._reporter, self._outbox, self._timers)
        self._ticked_at = now

    # --- the front ---

    def bound_to(self, address: str) -> None:
        """What the report shows as this broker's own address."""
        self._reporter.address = address

    def from_client(self, frames: list[bytes], now: float, user: str = MEMBER) -> None:
        """One message from the front: `[route…, b"", header, body…]`, and who its key proves the sender to be."""
        self._front.receive(user, frames, now)

    @property
    def users(self) -> set[str]:
        """Who is connected to the front."""
        return self._front.users

    def end_access(self, users: set[str]) -> None:
        """The keys of these were revoked."""
        self._front.end_access(users)

    def client_unreachable(self, route_id: bytes) -> None:
        """The front knows no such connection (any more)."""
        self._front.gone(route_id, "connection lost")

    def client_slow(self, route_id: bytes) -> None:
        """Its queue is full."""
        self._front.slow(route_id)

    # --- nodes ---

    def node_connected(self, peer: int, address: str, found_by: str, now: float) -> None:
        """A connection stands. `peer` names it and is never used again; `found_by` is for the report."""
        self._nodes.connected(peer, address, found_by, now)

    def from_node(self, peer: int, frames: list[bytes], now: float) -> None:
        """One message from a node: `[route…, b"", header, body…]`, the route being a client's, or empty."""
        told = self._nodes.decode(peer, frames, now)
        if told is None:
            return
        node, route, message = told
        if route:
            self._relay.receive(node, route, message, frames, now)
        else:
            self._nodes.receive(node, message, now)

    def node_disconnected(self, peer: int, reason: str, now: float) -> None:
        """The connection broke. Unknown peers are those the core hung up on."""
        self._nodes.disconnected(peer, reason, now)

    def node_slow(self, peer: int, now: float) -> None:
        """The queue to it is full: it is up and does not read."""
        self._nodes.slow(peer, now)

    def node_absent(self, address: str, found_by: str, reason: str) -> None:
        """The address was tried in vain; the report shows it with the reason."""
        self._nodes.absent(address, found_by, reason)

    def address_forgotten(self, address: str) -> None:
        """Nobody names this address any more, so the report need not show it."""
        self._nodes.address_forgotten(address)

    # --- time ---

    def tick(self, now: float) -> None:
        """Let time pass: heartbeats, leases, deadlines. Read the sockets before, so that nobody is called silent whose
        words have arrived."""
        if now - self._ticked_at > _OVERSLEPT * self.config.heartbeat_s:
            self._nodes.forgive_silence(now)
        self._ticked_at = now
        self._book.admission.measure(now)
        self._timers.run_due(now)

    def next_deadline(self) -> float:
        """When `tick` is due; infinity if nothing is."""
        return self._timers.next()

    def take_actions(self, now: float) -> list[Action]:
        """End the turn: place what can be placed, and hand out all that is to be done."""
        self._book.place(now)
        self._reporter.turn_over()
        return self._outbox.take()

    def stop(self) -> None:
        """Leave: clients go on elsewhere with what they have, nodes forget us."""
        self._book.admission.is_closed = True
        self._book.lose_all("the broker stops", cancel=False)
        self._nodes.leave()

    # --- looking in ---

    @property
    def times(self) -> Times:
        """How long things take here."""
        return self._book.times

    def status(self, now: float) -> StatusReport:
        return self._reporter.status(now)

    def check_invariants(self) -> None:
        """Raises AssertionError when the books do not agree. For tests; it looks at everything."""
        check(self._book, self._registry, self._clients)
