"""Connections to nodes: one for each address that a source names, dialled again with back-off when it breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import zmq

from broker.actions import Redial
from mesh.connection import ConfigureSocket, Connection
from mesh.link import Context, Frames
from mesh.security.reasons import DownReason

_DIAL_TIMEOUT_S = 3.0
_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 5.0
_SLOW_DELAY_S = 15.0  # it refused us, or leads where we are already
_STEADY_AFTER_S = 5.0  # a connection that stood so long was a good one: begin with short delays again
_GOODBYE_S = 0.2  # for the last words to leave
_FINAL = ("unknown_key", "revoked_key", "not_encrypted", "encrypted")  # only a person can change that


class DialerEvents(Protocol):
    """What the dialer tells its owner."""

    def node_up(self, peer: int, address: str, found_by: str) -> None: ...
    def node_down(self, peer: int, reason: str) -> None: ...
    def node_absent(self, address: str, found_by: str, reason: str) -> None: ...
    def node_forgotten(self, address: str) -> None: ...
    def node_frames(self, peer: int, frames: Frames) -> None: ...
    def turn_over(self) -> None: ...


class _Target:
    """One address: connected, being dialled, waiting to be dialled, or given up."""

    __slots__ = ("address", "connection", "is_up", "num_failures", "peer", "sources", "timer", "up_at", "waits_for")

    def __init__(self, address: str) -> None:
        self.address = address
        self.sources: list[str] = []  # who names it; the first one is shown
        self.connection: Connection | None = None
        self.peer = 0
        self.is_up = False
        self.up_at = 0.0
        self.num_failures = 0
        self.timer: asyncio.TimerHandle | None = None  # of the dial that goes on, or of the next one
        self.waits_for: Redial | None = None  # why it is not dialled with the usual back-off

    @property
    def found_by(self) -> str:
        return self.sources[0].partition(" ")[0] if self.sources else ""


class Dialer:
    """Sources say where nodes may be; the connection decides whether that is so. An address that a source takes back
    keeps its connection: discovery is a hint, and only the connection knows who lives."""

    def __init__(
        self, context: Context, events: DialerEvents, rng: random.Random, configure: ConfigureSocket | None = None
    ) -> None:
        """`configure` sets up each socket before it connects: the place for keys."""
        self._context = context
        self._configure = configure
        self._events = events
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._targets: dict[str, _Target] = {}
        self._by_peer: dict[int, _Target] = {}
        self._num_dials = 0
        self._is_closed = False

    def found(self, source: str, address: str) -> None:
        """A source names this address, for the first time or because something about it changed."""
        target = self._targets.get(address)
        if target is None:
            target = self._targets[address] = _Target(address)
        if source not in target.sources:
            target.sources.append(source)
        if target.connection is None:
            target.num_failures = 0
            self._dial(target)

    def gone(self, source: str, address: str) -> None:
        """A source takes it back."""
        target = self._targets.get(address)
        if target is None or source not in target.sources:
            return
        target.sources.remove(source)
        if not target.is_up:
            self._forget_if_unnamed(target)

    def send(self, peer: int, frames: Sequence[bytes]) -> None:
        """Nothing happens if the connection is gone; its owner knows or will hear. Raises zmq.Again when the node does
        not read."""
        target = self._by_peer.get(peer)
        if target is not None and target.connection is not None:
            target.connection.send(frames)

    def hang_up(self, peer: int, redial: Redial) -> None:
        """Close a connection, and dial again as told."""
        target = self._by_peer.get(peer)
        if target is None:
            return
        self._disconnect(target, linger_s=_GOODBYE_S)
        self._redial(target, redial)

    def drain(self) -> None:
        """Read what has arrived on any connection, now."""
        for target in list(self._by_peer.values()):
            if target.connection is not None:
                target.connection.drain()

    def close(self) -> None:
        self._is_closed = True
        for target in self._targets.values():
            self._disconnect(target, linger_s=_GOODBYE_S)
        self._targets.clear()

    def _dial(self, target: _Target) -> None:
        if self._is_closed:
            return
        self._stop_timer(target)
        target.waits_for = None
        self._num_dials += 1
        target.peer = self._num_dials
        try:
            target.connection = Connection(
                self._context,
                target.address,
                on_up=partial(self._on_up, target),
                on_down=partial(self._on_down, target),
                on_frames=partial(self._events.node_frames, target.peer),
                on_drained=self._events.turn_over,
                configure=self._configure,
                looks_late=True,
            )
        except zmq.ZMQError as error:
            self._events.node_absent(target.address, target.found_by, f"cannot connect: {error}")
            self._redial(target, Redial.SLOWLY)
            return
        self._by_peer[target.peer] = target
        target.timer = self._loop.call_later(_DIAL_TIMEOUT_S, self._on_timeout, target)

    def _on_up(self, target: _Target) -> None:
        self._stop_timer(target)
        target.is_up = True
        target.up_at = self._loop.time()
        self._events.node_up(target.peer, target.address, target.found_by)
        self._events.turn_over()

    def _on_timeout(self, target: _Target) -> None:
        self._on_down(target, DownReason(f"no answer within {_DIAL_TIMEOUT_S:g} s"))

    def _on_down(self, target: _Target, reason: DownReason) -> None:
        was_up, peer = target.is_up, target.peer
        self._disconnect(target)
        if was_up:
            self._events.node_down(peer, reason)
        else:
            self._events.node_absent(target.address, target.found_by, reason)
        self._redial(target, Redial.SLOWLY if reason.code in _FINAL else Redial.SOON)
        if was_up:
            self._dial_duplicates()
        self._events.turn_over()

    def _disconnect(self, target: _Target, linger_s: float = 0.0) -> None:
        self._stop_timer(target)
        if target.connection is not None:
            target.connection.close(linger_s)
            target.connection = None
        self._by_peer.pop(target.peer, None)
        if target.is_up and self._loop.time() - target.up_at > _STEADY_AFTER_S:
            target.num_failures = 0
        target.is_up = False

    def _redial(self, target: _Target, redial: Redial) -> None:
        if self._forget_if_unnamed(target) or redial is Redial.NEVER or self._is_closed:
            return
        if redial is Redial.SOON:
            delay_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(target.num_failures, 16))
            target.num_failures += 1
        else:
            delay_s = _SLOW_DELAY_S
            target.waits_for = redial
        delay_s *= self._rng.uniform(0.5, 1.5)  # a hundred brokers do not come back in the same instant
        target.timer = self._loop.call_later(delay_s, self._dial, target)

    def _dial_duplicates(self) -> None:
        """A connection broke: what led to the same node may now be the only way to it."""
        for target in list(self._targets.values()):
            if target.waits_for is Redial.DUPLICATE:
                self._dial(target)

    def _forget_if_unnamed(self, target: _Target) -> bool:
        if target.sources:
            return False
        self._disconnect(target)
        self._targets.pop(target.address, None)
        self._events.node_forgotten(target.address)
        return True

    @staticmethod
    def _stop_timer(target: _Target) -> None:
        if target.timer is not None:
            target.timer.cancel()
            target.timer = None
