"""One conversation with one server: greeting, heartbeats both ways, messages sorted to their handlers.

Owns the connection and knows the protocol; what becomes of a request is the owner's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import zmq

from mesh import bodies, codec
from mesh.bodies import TokenEntry
from mesh.client.outbox import Outbox
from mesh.client.tracker import Tracker
from mesh.connection import ConfigureSocket, Connection
from mesh.errors import MeshError, ProtocolError
from mesh.link import Context, Frames
from mesh.messages import (
    Accepted,
    Bye,
    Done,
    Failed,
    Hello,
    Lost,
    Message,
    Ping,
    Pong,
    Refused,
    Rejected,
    Report,
    Tokens,
    Welcome,
)
from mesh.report import StatusReport
from mesh.security.reasons import DownReason

logger = logging.getLogger(__name__)

BYE_LINGER_S = 0.1


@dataclass(frozen=True, slots=True)
class Down:
    """Why a session ended."""

    reason: str
    code: str = ""  # of Refused, or why the handshake failed; such an answer will not change by asking again
    suspicion: str = ""  # such a code that a server may also cause by dying at the wrong moment: believe the second one
    is_own_fault: bool = False  # this process stood still for longer than the server waits


def _down(reason: DownReason) -> Down:
    return Down(reason, code=reason.code) if reason.is_certain else Down(reason, suspicion=reason.code)


class DialFailed(MeshError):
    """No session came about. For the dialer, which makes one story of all addresses."""

    def __init__(self, down: Down) -> None:
        super().__init__(down.reason)
        self.down = down


class Owner(Protocol):
    """What a session tells. `on_down` once, and nothing after it."""

    def on_tokens(self, entries: list[TokenEntry]) -> None: ...
    def on_rejected(self, message: Rejected) -> None: ...
    def on_failed(self, message: Failed) -> None: ...
    def on_lost(self, message: Lost) -> None: ...
    def on_report(self, query_id: int, report: StatusReport) -> None: ...
    def on_done(self, message: Done) -> None: ...
    def on_down(self, down: Down) -> None: ...


class Session:
    """Made by `open`, which returns after Welcome. From then on `send`, `submit` and `cancel` work until `on_down`."""

    def __init__(
        self, context: Context, address: str, hello: Hello, owner: Owner, configure: ConfigureSocket | None
    ) -> None:
        self.address = address
        self._hello = hello
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._down: Down | None = None
        self._is_over = False
        self._is_handed_over = False  # to the owner, who hears of the end from then on
        self._heard_at = self._beat_at = self._ping_at = self._loop.time()
        self._num_beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._outbox: Outbox | None = None
        self._connection = Connection(
            context,
            address,
            on_up=lambda: self.send(hello),
            on_down=lambda reason: self._end(_down(reason)),
            on_frames=self._on_frames,
            configure=configure,
        )

    @classmethod
    async def open(
        cls,
        context: Context,
        address: str,
        hello: Hello,
        owner: Owner,
        *,
        timeout_s: float,
        configure: ConfigureSocket | None = None,
    ) -> Session:
        """Connect and greet. Raises: DialFailed, after `timeout_s` at the latest."""
        try:
            session = cls(context, address, hello, owner, configure)
        except zmq.ZMQError as error:
            raise DialFailed(Down(f"not a usable address ({error.strerror})", code="address")) from None
        try:
            async with asyncio.timeout(timeout_s):
                await session._welcome
        except TimeoutError:
            session.close()
            raise DialFailed(Down(f"no answer within {timeout_s:.1f} s")) from None
        except BaseException:
            session.close()
            raise
        if session._down is not None:  # between Welcome and now
            raise DialFailed(session._down)
        session._is_handed_over = True
        return session

    @property
    def welcome(self) -> Welcome:
        return self._welcome.result()

    def submit(self, tracker: Tracker) -> None:
        """Send it soon, in one message with whatever else is submitted in this turn of the loop."""
        self._to_send().submit(tracker)

    def cancel(self, request_id: int) -> None:
        """Likewise."""
        self._to_send().cancel(request_id)

    def send(self, message: Message, *body: bytes) -> None:
        try:
            self._connection.send((b"", codec.encode(message), *body))
        except zmq.Again:
            self._end(Down("the server no longer takes our messages"))

    def close(self) -> None:
        """Say Bye and leave, without a call to `on_down`."""
        if self._is_over:
            return
        if self._outbox is not None:
            self._outbox.flush_cancels()
            self.send(Bye())
        self._finish(BYE_LINGER_S)

    # --- the life of the session --------------------------------------------------------------------------------------

    def _to_send(self) -> Outbox:
        if self._outbox is None:
            raise RuntimeError("the session is not open")
        return self._outbox

    def _end(self, down: Down) -> None:
        if self._is_over:
            return
        self._down = down
        self._finish()
        if self._is_handed_over:
            logger.info("session_ended address=%s reason=%s", self.address, down.reason)
            self._owner.on_down(down)
        elif not self._welcome.done():
            self._welcome.set_exception(DialFailed(down))

    def _finish(self, linger_s: float = 0.0) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._outbox is not None:
            self._outbox.close()
        self._connection.close(linger_s)

    def _beat(self) -> None:
        """Ping, and judge the silence of the other side; but first, whether this side kept time itself."""
        now = self._loop.time()
        welcome = self.welcome
        lease_s = welcome.heartbeat_s * welcome.liveness
        pause_s, self._beat_at = now - self._beat_at, now
        if pause_s > lease_s:  # the server has given us up meanwhile, and our requests with us
            self._end(Down(f"this process did not run for {pause_s:.1f} s", is_own_fault=True))
            return
        if now - self._heard_at >= lease_s:
            self._connection.drain()  # a sign of life may lie here unread
        silence_s = now - self._heard_at
        if silence_s >= lease_s:
            self._end(Down(f"no sign of life from {self.address} for {silence_s:.1f} s"))
        if self._is_over:
            return
        is_ping_due = now >= self._ping_at
        if is_ping_due:
            self._ping_at = now + welcome.heartbeat_s
        # The lease may end between two pings, and whoever waits for a silent server waits no longer than that.
        next_s = min(self._ping_at, self._heard_at + lease_s) - now
        self._timer = self._loop.call_later(max(next_s, 0.001), self._beat)
        if is_ping_due:
            self._num_beats += 1
            self.send(Ping(self._num_beats))

    # --- messages -----------------------------------------------------------------------------------------------------

    def _on_frames(self, frames: Frames) -> None:
        self._heard_at = self._loop.time()
        try:
            if len(frames) < 2 or frames[0]:
                raise ProtocolError("the envelope is not an empty frame, a header and bodies")
            message = codec.decode(frames[1])
            handle = self._HANDLERS.get(type(message))
            if handle is None or (self._outbox is None and type(message) not in (Welcome, Refused)):
                raise ProtocolError(f"{type(message).__name__} was not expected here")
            handle(self, message, frames[2:])
        except ProtocolError as error:
            # Something that mattered may have been in there, and the server thinks it delivered: begin again.
            logger.warning("bad_message address=%s error=%s", self.address, error)
            self._end(Down(f"{self.address} broke the protocol: {error}", code=error.code))
        except Exception as error:  # a bug on this side; nobody may be left waiting for what it swallowed
            logger.exception("handler_failed address=%s", self.address)
            self._end(Down(f"a message from {self.address} could not be handled: {error!r}"))

    def _on_welcome(self, message: Message, body: Frames) -> None:
        welcome = cast(Welcome, message)  # as below: the table guarantees it
        if self._welcome.done():
            raise ProtocolError("a second Welcome")
        if welcome.heartbeat_s <= 0 or welcome.liveness < 1 or welcome.max_batch < 1:
            raise ProtocolError("Welcome with timers or limits of zero")
        self._welcome.set_result(welcome)
        self._outbox = Outbox(self.send, self._owner.on_rejected, welcome, self.address)
        self._beat_at = self._loop.time()
        self._beat()

    def _on_refused(self, message: Message, body: Frames) -> None:
        refused = cast(Refused, message)
        self._end(Down(f"refused: {refused.text} ({refused.code})", code=refused.code))

    def _on_tokens(self, message: Message, body: Frames) -> None:
        self._owner.on_tokens(bodies.unpack_entries(_only(body)))

    def _on_report(self, message: Message, body: Frames) -> None:
        self._owner.on_report(cast(Report, message).query_id, StatusReport.from_body(_only(body)))

    def _on_rejected(self, message: Message, body: Frames) -> None:
        self._owner.on_rejected(cast(Rejected, message))

    def _on_failed(self, message: Message, body: Frames) -> None:
        self._owner.on_failed(cast(Failed, message))

    def _on_lost(self, message: Message, body: Frames) -> None:
        self._owner.on_lost(cast(Lost, message))

    def _on_done(self, message: Message, body: Frames) -> None:
        self._owner.on_done(cast(Done, message))

    def _on_life_sign(self, message: Message, body: Frames) -> None:
        """Pong and Accepted say nothing that a client acts on, beyond being heard."""

    _HANDLERS: ClassVar[dict[type[Message], Callable[[Session, Message, Frames], None]]] = {
        Welcome: _on_welcome,
        Pong: _on_life_sign,
        Accepted: _on_life_sign,
        Tokens: _on_tokens,
        Rejected: _on_rejected,
        Lost: _on_lost,
        Failed: _on_failed,
        Report: _on_report,
        Done: _on_done,
        Refused: _on_refused,
    }


def _only(body: Frames) -> bytes:
    if len(body) != 1:
        raise ProtocolError(f"{len(body)} body frames instead of one")
    return body[0]
