"""What a node says to its requesters: greeting, heartbeats, requests passed on to Work, and who may do what.

No socket, no clock of its own: messages come in with the time, what is to be sent goes out through `send`. The server
around it moves frames, the supervisor keeps the workers alive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from mesh import bodies, messages
from mesh.codec import decode
from mesh.errors import BadMessage, VersionMismatch
from mesh.messages import MAX_HELLO_BYTES, ROLES, Message
from mesh.report import StatusReport
from mesh.security.keys import MEMBER
from node.config import NodeConfig
from node.pool import Worker
from node.prepare import IN_THREAD_FROM_BYTES, INLINE_BYTES
from node.requesters import Requesters
from node.requests import ActiveRequest, Route
from node.status import lone_node_report
from node.work import InThread, Send, Work

logger = logging.getLogger(__name__)


class NodeAgent:
    """Answers every message of a requester. `work` has the requests, `requesters` the connections."""

    def __init__(
        self, config: NodeConfig, workers: Sequence[Worker], *, epoch: int, send: Send, in_thread: InThread, now: float
    ) -> None:
        self.config = config
        self.epoch = epoch
        self.requesters = Requesters(config.lease_s)
        self.work = Work(
            config,
            workers,
            send=send,
            in_thread=in_thread,
            on_unreachable=lambda hop, now: self._disconnect(hop, "unreachable", now),
            now=now,
        )
        self._send = send
        self._on_message: dict[type[Message], Callable[..., None]] = {
            messages.Ping: self._on_ping,
            messages.Submit: self._on_submit,
            messages.Cancel: self._on_cancel,
            messages.Query: self._on_query,
            messages.Admin: self._on_admin,
            messages.Bye: self._on_bye,
        }

    # --- messages -----------------------------------------------------------------------------------------------------

    def receive(self, user: str, route: Route, header: bytes, parts: list[bytes], now: float) -> None:
        """One message from a requester. `user` is who its key proves it to be. Never raises, whatever the bytes are."""
        try:
            if route[0] not in self.requesters and len(header) > MAX_HELLO_BYTES:
                self._refuse(route, "no_hello", "say Hello first")  # it may be a large Submit of a forgotten one
                return
            message = decode(header)
            handler = self._on_message.get(type(message))
            if type(message) is messages.Hello:
                self._on_hello(user, route, message, now)
            elif handler is None:
                raise BadMessage("tag", f"{type(message).__name__} is not for a node")
            elif self.requesters.heard(route[0], now):
                if len(route) > 1 and not self.requesters.is_broker(route[0]):
                    raise BadMessage("route", "only a broker may pass on what others say")
                handler(route, message, parts, now)
            else:
                self._refuse(route, "no_hello", "say Hello first")
        except (BadMessage, VersionMismatch) as error:
            self.work.counters["malformed"] += 1
            self._refuse(route, error.code, str(error))

    def _refuse(self, route: Route, code: str, text: str) -> None:
        self.work.counters[f"refused_{code}"] += 1
        self._send(route, messages.Refused(code, text), ())

    def _on_hello(self, user: str, route: Route, hello: messages.Hello, now: float) -> None:
        if hello.mesh != self.config.mesh:
            self._refuse(route, "wrong_mesh", f"this is mesh {self.config.mesh!r}, you asked for {hello.mesh!r}")
            return
        if hello.role not in ROLES:
            raise BadMessage("Hello.role", f"must be one of {', '.join(ROLES)}")
        if len(route) > 1:
            raise BadMessage("Hello", "is between neighbours and cannot be passed on")
        if hello.role == "broker" and user != MEMBER:
            self._refuse(route, "forbidden", "this is a client's key, and only a member may be a broker")
            return
        if route[0] not in self.requesters and len(self.requesters) >= self.config.max_connections:
            text = f"{len(self.requesters)} are connected to {self.config.name} already, which is its limit"
            self._refuse(route, "too_many_connections", text)
            return
        self.requesters.welcome(route[0], user, hello, now)
        self._send(
            route,
            messages.Welcome(
                kind="node",
                name=self.config.name,
                node_id=self.config.node_id,
                epoch=self.epoch,
                mesh=self.config.mesh,
                heartbeat_s=self.config.heartbeat_s,
                liveness=self.config.liveness,
                max_batch=self.config.max_batch,
                max_body_bytes=self.config.max_body_bytes,
                codecs=bodies.CODECS,
                models=self.work.models(route[0]),
            ),
            (),
        )

    def _on_ping(self, route: Route, ping: messages.Ping, parts: list[bytes], now: float) -> None:
        work = self.work
        num_steps, last_step_age_s = work.facts.progress(work.pool.workers)
        self._send(
            route,
            messages.Pong(
                sequence=ping.sequence,
                epoch=self.epoch,
                state=work.state,
                num_steps=num_steps,
                last_step_age_s=last_step_age_s,
                models=self.work.models(route[0]),
                facts=work.measured(now),
            ),
            (),
        )

    def _on_submit(self, route: Route, submit: messages.Submit, parts: list[bytes], now: float) -> None:
        if len(parts) != len(submit.requests):
            raise BadMessage("Submit", f"{len(submit.requests)} requests with {len(parts)} bodies")
        if len(submit.requests) > self.config.max_batch:
            raise BadMessage("Submit", f"{len(submit.requests)} requests in one batch, at most {self.config.max_batch}")
        codec = "zstd" if "zstd" in submit.codecs else ""
        accepted = []
        is_broker = self.requesters.is_broker(route[0])
        inline_bytes = 0
        for head, body in zip(submit.requests, parts, strict=True):
            num_bytes = bodies.stated_bytes(body)
            is_short = num_bytes < IN_THREAD_FROM_BYTES and inline_bytes + num_bytes <= INLINE_BYTES
            inline_bytes += num_bytes if is_short else 0
            request = ActiveRequest(route, head, self.work.requests.new_engine_id(), now, codec, num_bytes=num_bytes)
            if self.work.take_in(request, body, now, inline=is_short, is_limited=not is_broker):
                accepted.append(head.request_id)
        if accepted and not is_broker:
            self._send(route, messages.Accepted(tuple(accepted)), ())
        self.work.pool.feed(now)

    def _on_cancel(self, route: Route, cancel: messages.Cancel, parts: list[bytes], now: float) -> None:
        self.work.cancel(route, cancel.request_ids, now)

    def _on_query(self, route: Route, query: messages.Query, parts: list[bytes], now: float) -> None:
        if query.what != "status":
            raise BadMessage("Query.what", "must be status")
        self._send(route, messages.Report(query.query_id), (self.report(now).to_body(),))

    def _on_admin(self, route: Route, admin: messages.Admin, parts: list[bytes], now: float) -> None:
        change = {"drain": self.drain, "undrain": self.undrain}.get(admin.action)
        if change is None:
            raise BadMessage("Admin.action", "must be drain or undrain")
        if self.requesters.user_of(route[0]) != MEMBER:
            done = messages.Done(admin.query_id, False, "this is a client's key: only a member may do that")
        elif admin.target in (self.config.name, self.config.node_id):
            done = messages.Done(admin.query_id, True, change(now))
        else:
            text = f"this is {self.config.name} ({self.config.node_id}), not {admin.target}"
            done = messages.Done(admin.query_id, False, text)
        self._send(route, done, ())

    def _on_bye(self, route: Route, bye: messages.Bye, parts: list[bytes], now: float) -> None:
        self._disconnect(route[0], "bye", now)

    def end_access(self, users: set[str]) -> None:
        """These were let in and would not be any more: their keys were revoked."""
        for requester in self.requesters.of_users(users):
            self._refuse((requester.hop,), "revoked_key", "this key was revoked; ask for a new token")
            self._disconnect(requester.hop, "revoked", requester.last_heard_at)

    def _disconnect(self, hop: bytes, why: str, now: float) -> None:
        requester = self.requesters.forget(hop)
        num_cancelled = self.work.drop_hop(hop, now)
        if requester is not None:
            logger.log(
                requester.log_level, "disconnected role=%s name=%.100r why=%s cancelled=%d",
                requester.role, requester.name, why, num_cancelled,
            )  # fmt: skip

    # --- state --------------------------------------------------------------------------------------------------------

    def drain(self, now: float) -> str:
        """Take no new work and hand over what is here: its clients resume elsewhere at once."""
        self.work.is_draining = True
        held = list(self.work.requests)
        self.work.hand_over(held, f"{self.config.name} is draining", now)
        logger.info("draining handed_over=%d", len(held))
        return f"{self.config.name} is draining, {len(held)} requests handed over"

    def undrain(self, now: float) -> str:
        """Take work again."""
        self.work.is_draining = False
        logger.info("undrained")
        return f"{self.config.name} takes work again"

    def tick(self, now: float) -> None:
        """Let time pass: leases, and then what Work has to do."""
        for requester in self.requesters.expired(now):
            self._disconnect(requester.hop, "unheard", now)
        self.work.tick(now)

    def report(self, now: float) -> StatusReport:
        """A node without a broker answers `status` too, with itself as the only node."""
        return lone_node_report(self, now)
