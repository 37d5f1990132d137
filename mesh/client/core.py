"""All unfinished requests of one client, and the session they go over. The only durable copy of a request is here.

Whatever happens to a session, the trackers keep what has arrived; a new session gets all of them again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import zmq

from mesh import errors
from mesh.bodies import CODECS, TokenEntry
from mesh.client.alarms import Alarms
from mesh.client.dialer import Dialer
from mesh.client.options import ClientOptions
from mesh.client.params import Ask
from mesh.client.results import Choice, Chunk
from mesh.client.session import Down, Session
from mesh.client.tracker import State, Tracker
from mesh.client.upgrade import Upgrade
from mesh.errors import BrokerUnreachable, Cancelled, ConfigError, MeshError
from mesh.messages import Done, Failed, Hello, Lost, Message, Rejected
from mesh.report import StatusReport

logger = logging.getLogger(__name__)

Answer = StatusReport | Done


class Sink(Protocol):
    """Who wants to know how a request goes on. `on_end` once, unless it was cancelled."""

    def on_chunk(self, chunk: Chunk) -> None: ...
    def on_end(self, item: int, outcome: Choice | MeshError) -> None: ...


@dataclass(frozen=True, slots=True)
class _Running:
    tracker: Tracker
    sink: Sink
    item: int  # of the sink's: comes back with the ending


@dataclass(frozen=True, slots=True)
class _Query:
    message: Message
    answer: asyncio.Future[Answer]


class Core:
    """Lives on one event loop, in one process. Dials when there is something to do and no session."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._rng = random.Random()
        self._ids = itertools.count(1)
        self._running: dict[int, _Running] = {}
        self._queries: dict[int, _Query] = {}
        self._turned_away: dict[int, None] = {}  # ids that an overloaded server told to come back, in order
        self._alarms = Alarms(self._loop, self._on_alarm, is_live=self._running.__contains__)
        self._session: Session | None = None
        self._session_since = 0.0
        self._dialing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None  # held: the loop alone would not keep it
        self._is_closed = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        hello = Hello(
            role="client",
            name=options.name or f"{socket.gethostname()}:{self._pid}",
            epoch=secrets.randbits(63),
            mesh=options.access.mesh,
            codecs=CODECS,
        )
        self._dialer = Dialer(self._context, options, hello, self._rng)
        self._upgrade = Upgrade(options, self._go_over)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a child process, whose sockets and loop are the parent's."""
        return os.getpid() != self._pid

    # --- requests -----------------------------------------------------------------------------------------------------

    def start(self, ask: Ask, sink: Sink, item: int, *, wants_chunks: bool) -> int:
        """Take a request in and send it as soon as there is a session. Returns its id."""
        now = self._loop.time()
        tracker = Tracker(
            next(self._ids), ask, now, policy=self._options.retry, rng=self._rng, wants_chunks=wants_chunks
        )
        self._running[tracker.request_id] = _Running(tracker, sink, item)
        if ask.timeout_s is not None:
            self._alarms.set(tracker.deadline, tracker.request_id)
        if self._session is not None:
            self._session.submit(tracker)
        else:
            self._dial(self._options.connect_timeout_s)
        return tracker.request_id

    def cancel(self, request_id: int) -> None:
        """Forget it, here and on the server. Its sink hears no more of it."""
        running = self._running.pop(request_id, None)
        if running is None:
            return
        if self._session is not None and running.tracker.state is State.SENT:
            self._session.cancel(request_id)
        running.tracker.give_up(Cancelled, "cancelled by the caller")
        self._take_the_room(self._loop.time())

    async def ask(self, message_with: Callable[[int], Message]) -> Answer:
        """The answer to a Query or Admin. Sent again on a new session if the old one is lost: both may be repeated.

        Raises: BrokerUnreachable after `reconnect_timeout_s` without an answer; Refused.
        """
        query_id = next(self._ids)
        query = _Query(message_with(query_id), self._loop.create_future())
        self._queries[query_id] = query
        if self._session is not None:
            self._session.send(query.message)
        else:
            self._dial(self._options.connect_timeout_s)
        try:
            async with asyncio.timeout(self._options.reconnect_timeout_s):
                return await query.answer
        except TimeoutError:
            raise BrokerUnreachable(
                f"connected, but no answer to {type(query.message).__name__} within "
                f"{self._options.reconnect_timeout_s:g} s: `phi3-mesh doctor` tests each step"
            ) from None
        finally:
            del self._queries[query_id]

    def check_usable(self) -> None:
        """Raises ConfigError where a call could only hang: closed, in a forked child, on another event loop."""
        if self.is_forked:
            raise ConfigError("this client was made before fork(): sockets do not survive it, make one in the child")
        if self._is_closed:
            raise ConfigError("this client is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError("this client belongs to another event loop: make one for each, or use mesh.Client")

    async def close(self) -> None:
        """Say Bye, end what is unfinished with Cancelled, free the sockets. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        dialing = self._dialing
        if dialing is not None:
            dialing.cancel()
            await asyncio.wait([dialing])
        self._alarms.close()
        self._upgrade.stop()
        if self._session is not None:
            self._session.close()
            self._session = None
        self._fail_all(Cancelled("the client was closed"))
        self._context.destroy()  # sockets are closed; waits for their linger, 0.1 s at most

    def dispose(self) -> None:
        """Close it from wherever the garbage collector or the end of the interpreter calls, loop or no loop."""
        if self._is_closed or self.is_forked:  # the child of a fork leaves all to its parent
            return
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._close_soon)
        else:
            self._is_closed = True
            self._context.destroy(linger=0)

    def _close_soon(self) -> None:
        self._closing = self._loop.create_task(self.close())

    # --- connecting ---------------------------------------------------------------------------------------------------

    def _dial(self, timeout_s: float) -> None:
        if self._dialing is None:
            self._dialing = self._loop.create_task(self._connect(timeout_s))

    async def _connect(self, timeout_s: float) -> None:
        try:
            self._session = await self._dialer.dial(self, timeout_s)
        except MeshError as error:
            self._fail_all(error)
        except Exception as error:  # whatever it is, nobody may be left waiting for it
            logger.exception("dial_failed")
            self._fail_all(BrokerUnreachable(f"could not connect: {error!r}"))
        else:
            self._on_session(self._session)
        finally:
            self._dialing = None

    def _on_session(self, session: Session) -> None:
        logger.info("session_began address=%s server=%s", session.address, session.welcome.name)
        now = self._session_since = self._loop.time()
        self._upgrade.consider(session.welcome.kind)
        for query in self._queries.values():
            session.send(query.message)
        for running in list(self._running.values()):
            self._schedule(running.tracker, now)

    def on_down(self, down: Down) -> None:
        """The session is gone; every request starts its next attempt elsewhere."""
        now = self._loop.time()
        self._session = None
        self._upgrade.stop()
        self._dialer.on_lost(now - self._session_since)
        if down.code and down.code != "no_hello":  # which only means that the server has forgotten us
            for query in self._queries.values():
                if not query.answer.done():
                    query.answer.set_exception(errors.Refused(down.code, down.reason))
        for running in list(self._running.values()):
            running.tracker.on_disconnected(down.reason, now, is_own_fault=down.is_own_fault)
            self._settle(running, now)
        if self._running or self._queries:
            self._dial(self._options.reconnect_timeout_s)

    def _go_over(self) -> None:
        """From a lone node to the broker that is there now; whatever runs goes on behind it."""
        if self._session is not None:
            self._session.close()
            self.on_down(Down("there is a broker now", is_own_fault=True))

    def _fail_all(self, error: MeshError) -> None:
        unfinished = list(self._running.values())
        self._running.clear()
        for each in unfinished:
            each.tracker.give_up(Cancelled, "")
            each.sink.on_end(each.item, error)
        for query in self._queries.values():
            if not query.answer.done():
                query.answer.set_exception(error)

    # --- what the session tells ---------------------------------------------------------------------------------------

    def on_tokens(self, entries: list[TokenEntry]) -> None:
        now = self._loop.time()
        for entry in entries:
            running = self._running.get(entry.request_id)
            if running is None:
                continue  # cancelled, and this was under way
            chunk = running.tracker.on_tokens(entry, now)
            if chunk is not None:
                running.sink.on_chunk(chunk)
            if running.tracker.state is not State.SENT:
                self._settle(running, now)

    def on_rejected(self, message: Rejected) -> None:
        running = self._running.get(message.request_id)
        if running is not None:
            now = self._loop.time()
            running.tracker.on_error(
                message.attempt,
                message.code,
                message.text,
                message.node,
                now,
                retry_after_s=message.retry_after_s,
                default=errors.Rejected,
            )
            if message.code == errors.Overloaded.code:
                self._turned_away[message.request_id] = None
            self._settle(running, now)

    def on_failed(self, message: Failed) -> None:
        running = self._running.get(message.request_id)
        if running is not None:
            now = self._loop.time()
            running.tracker.on_error(
                message.attempt, message.code, message.text, message.node, now, default=errors.Failed
            )
            self._settle(running, now)

    def on_lost(self, message: Lost) -> None:
        logger.info("handed_back node=%s reason=%s requests=%d", message.node, message.reason, len(message.requests))
        now = self._loop.time()
        for request_id, attempt in message.requests:
            running = self._running.get(request_id)
            if running is not None:
                running.tracker.on_lost(attempt, message.node, message.reason, now)
                self._settle(running, now)

    def on_report(self, query_id: int, report: StatusReport) -> None:
        self._on_answer(query_id, report)

    def on_done(self, message: Done) -> None:
        self._on_answer(message.query_id, message)

    def _on_answer(self, query_id: int, answer: Answer) -> None:
        query = self._queries.get(query_id)
        if query is not None and not query.answer.done():
            query.answer.set_result(answer)

    # --- moving requests on -------------------------------------------------------------------------------------------

    def _settle(self, running: _Running, now: float) -> None:
        """Act on what an event made of a request. Doing it once too often does no harm."""
        tracker = running.tracker
        if tracker.state is State.OVER:
            if self._running.pop(tracker.request_id, None) is not None and tracker.outcome is not None:
                if not isinstance(tracker.outcome, errors.Overloaded):  # which leaves no room
                    self._take_the_room(now)
                running.sink.on_end(running.item, tracker.outcome)
        else:
            self._schedule(tracker, now)

    def _take_the_room(self, now: float) -> None:
        """One of ours has ended, which makes room for one that was turned away: it goes now. Otherwise all of a large
        batch would wait out their pauses while the mesh has nothing to do."""
        while self._turned_away and self._session is not None:
            request_id = next(iter(self._turned_away))
            del self._turned_away[request_id]
            running = self._running.get(request_id)
            if running is not None and running.tracker.state is State.WAITING and running.tracker.due > now:
                running.tracker.due = now
                self._session.submit(running.tracker)
                return

    def _schedule(self, tracker: Tracker, now: float) -> None:
        if tracker.state is not State.WAITING:
            return
        if tracker.due > now:
            self._alarms.set(tracker.due, tracker.request_id)
        elif self._session is not None:
            self._session.submit(tracker)

    def _on_alarm(self, request_id: int, now: float) -> None:
        """A deadline or a retry is due."""
        running = self._running.get(request_id)
        if running is None:
            return
        was_sent = running.tracker.state is State.SENT
        running.tracker.on_time(now)
        if was_sent and running.tracker.state is State.OVER and self._session is not None:
            self._session.cancel(request_id)
        self._settle(running, now)
