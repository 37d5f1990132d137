"""Sockets, timers and discovery around the core. Moves frames; every decision is the core's."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import math
import random
import secrets
import time
import uuid
from functools import partial

import zmq

from broker.actions import Action, HangUp, ToClient, ToNode
from broker.config import BrokerConfig
from broker.core import BrokerCore
from broker.dialer import Dialer
from broker.nodes_source import sources_for
from mesh.bind import bind_router
from mesh.discovery.addresses import parse_endpoint
from mesh.discovery.interfaces import advertised_endpoints, multicast_interfaces
from mesh.discovery.mdns import Advertiser
from mesh.discovery.records import Advert
from mesh.discovery.session import MdnsSession
from mesh.discovery.source import Source
from mesh.link import Context, Frames
from mesh.messages import PROTOCOL_VERSION
from mesh.security.identified import server_link
from mesh.security.server_access import server_access

logger = logging.getLogger(__name__)

_GOODBYE_S = 0.5  # for the last words to leave


class BrokerServer:
    """One broker: `start`, then `stop`. The address is known after `start`.

    A turn is whatever arrives on one socket in one burst. The clock is read at its beginning, and its actions are
    carried out at its end.
    """

    def __init__(self, config: BrokerConfig, *, rng: random.Random | None = None) -> None:
        self.config = config
        self.address = ""
        self._rng = rng or random.Random()
        self._epoch = secrets.randbits(62)
        self._context: Context = zmq.Context()
        self._sources: dict[str, Source] = {}
        self._session: MdnsSession | None = None
        self._advertiser: Advertiser | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._key_watch: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._has_news = False  # for the core, in this turn

    async def start(self) -> None:
        """Bind, and begin to look for nodes. Raises ConfigError when the address cannot be bound."""
        self._loop = asyncio.get_running_loop()
        self._access = server_access(
            self._context,
            mesh=self.config.mesh,
            bind=self.config.endpoint,
            insecure=self.config.insecure,
            join_token=self.config.join,
            with_clients=True,
        )
        self.config = dataclasses.replace(self.config, mesh=self._access.mesh, join="")
        socket, self.address = bind_router(
            self._context, self.config.endpoint, self.config.is_default_port, self._access.guard
        )
        self.core = BrokerCore(
            self.config, node_id=self._node_id(), epoch=self._epoch, rng=self._rng, now=time.monotonic()
        )
        self.core.bound_to(self.address)
        self._dialer = Dialer(self._context, self, self._rng, self._access.dial)
        self._front = server_link(socket, self._access.gatekeeper, self._front_frames, self.turn_over)
        self._watch_keys()
        await self._discover()
        self.turn_over()

    async def stop(self) -> None:
        """Hand over to clients what is unfinished, say goodbye to nodes, close."""
        for source in self._sources.values():
            await source.close()
        self.core.stop()
        self.turn_over()
        if self._timer is not None:
            self._timer.cancel()
        self._dialer.close()
        if self._key_watch is not None:
            self._key_watch.cancel()
        self._front.close(_GOODBYE_S)
        self._access.close()
        if self._advertiser is not None:
            await self._advertiser.close()
        if self._session is not None:
            await self._session.close()
        await asyncio.to_thread(self._context.term)

    def describe(self) -> str:
        """How nodes are looked for, in one line."""
        found = [source.describe() for source in self._sources.values()]
        return "; ".join(found) or "nowhere: multicast DNS is off and no --node is given"

    # --- turns --------------------------------------------------------------------------------------------------------

    def _front_frames(self, user: str, frames: Frames) -> None:
        self.core.from_client(frames, time.monotonic(), user)

    def node_frames(self, peer: int, frames: Frames) -> None:
        self.core.from_node(peer, frames, time.monotonic())

    def node_up(self, peer: int, address: str, found_by: str) -> None:
        self.core.node_connected(peer, address, found_by, time.monotonic())

    def node_down(self, peer: int, reason: str) -> None:
        self.core.node_disconnected(peer, reason, time.monotonic())

    def node_absent(self, address: str, found_by: str, reason: str) -> None:
        self.core.node_absent(address, found_by, reason)

    def node_forgotten(self, address: str) -> None:
        self.core.address_forgotten(address)

    def turn_over(self) -> None:
        """The end of a turn: do what the core wants done. What cannot be sent is a new fact, so ask again."""
        now = time.monotonic()
        self._has_news = True
        while self._has_news:
            self._has_news = False
            for action in self.core.take_actions(now):
                self._perform(action, now)
        self._rearm(now)

    def _perform(self, action: Action, now: float) -> None:
        if type(action) is ToClient:
            self._send_to_client(action.frames)
        elif type(action) is ToNode:
            self._send_to_node(action, now)
        elif type(action) is HangUp:
            self._has_news = True  # closing a connection may tell the core of others
            self._dialer.hang_up(action.peer, action.redial)

    def _send_to_client(self, frames: list[bytes]) -> None:
        try:
            self._front.send(frames)
        except zmq.ZMQError as error:
            self._has_news = True
            if error.errno == zmq.EHOSTUNREACH:
                self.core.client_unreachable(frames[0])
            elif error.errno == zmq.EAGAIN:
                self.core.client_slow(frames[0])
            else:
                raise

    def _send_to_node(self, action: ToNode, now: float) -> None:
        try:
            self._dialer.send(action.peer, action.frames)
        except zmq.Again:
            self._has_news = True
            self.core.node_slow(action.peer, now)

    def _rearm(self, now: float) -> None:
        """One timer, for the nearest deadline. One that is too early does no harm, so it is only ever moved forward."""
        due = self.core.next_deadline()
        if due >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - now), self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._front.drain()  # first hear, then judge who was silent
        self._dialer.drain()
        self.core.tick(time.monotonic())
        self.turn_over()

    def _watch_keys(self) -> None:
        """A handshake is judged once, and a key may be revoked later."""
        if self._access.gatekeeper is None:
            return
        self.core.end_access(self._access.gatekeeper.unwelcome(self.core.users))
        self.turn_over()
        self._key_watch = self._loop.call_later(self.config.heartbeat_s, self._watch_keys)

    # --- discovery ----------------------------------------------------------------------------------------------------

    def _node_id(self) -> str:
        """The same after a restart on the same host and port: whoever uses this broker as a node knows it again."""
        origin = f"{uuid.getnode():x} {self.config.name} {self.address.rpartition(':')[2]}"
        return hashlib.blake2b(origin.encode(), digest_size=8).hexdigest()

    async def _discover(self) -> None:
        bound = parse_endpoint(self.address, bind=True)
        if self.config.mdns:
            self._session = MdnsSession(multicast_interfaces(bound))
            await self._session.start()
            self._advertiser = Advertiser(self._session)
            await self._advertiser.start(
                Advert(
                    kind="broker",
                    instance_id=self._node_id(),
                    epoch=str(self._epoch),
                    addresses=advertised_endpoints(bound, self.config.advertise),
                    mesh=self.config.mesh,
                    version=PROTOCOL_VERSION,
                )
            )
        self._sources = sources_for(self.config, self._session)
        for name, source in self._sources.items():
            await source.start(partial(self._found, name), partial(self._dialer.gone, name))

    def _found(self, source: str, address: str, advert: Advert | None) -> None:
        self._dialer.found(source, address)  # what the advert says, the handshake says better
