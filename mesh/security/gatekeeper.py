"""Lets the callers of a server in, by their key. Answers libzmq's question (ZAP, RFC 27) on the event loop."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine, Iterable
from typing import Any

from zmq.auth.base import Authenticator

from mesh.errors import ConfigError
from mesh.link import Context, Frames, Link, Socket
from mesh.security.door import Door
from mesh.security.keys import MEMBER, Credentials, UserId, client_user, text_of
from mesh.security.refusals import Refusals
from mesh.security.registry import ClientRegistry
from mesh.security.sockets import ZAP_DOMAIN, secure_server

logger = logging.getLogger(__name__)

UNKNOWN_STATUS = b"400"
REVOKED_STATUS = b"500"
"""The refused side hears nothing but the first digit of the status: 3, 4 or 5. A 3 would leave it waiting, so 4 says
that the key is not known and 5 that it was revoked."""


class Gatekeeper:
    """One for each context, for all its servers. Members are let in, and the clients of the registry if there is one.

    `guard` each server socket before it binds.
    """

    def __init__(self, context: Context, member: Credentials, registry: ClientRegistry | None = None) -> None:
        """Needs a running loop. Raises ConfigError for keys that are not a member's, or a registry open to others."""
        if not member.is_member:
            raise ConfigError("only a member can let others in, and this is the key of a client")
        if registry is not None:
            registry.clients()
        self._member = member
        self._registry = registry
        self._refusals = Refusals()
        self._doors: list[Door] = []
        self._caller = ""  # the address of the one who is being judged
        self._status = UNKNOWN_STATUS
        self._zap = _Zap(context, self)
        self._zap.start()
        self._link = Link(self._zap.zap_socket, self._on_question)

    @property
    def counters(self) -> Counter[str]:
        """Refused connections by reason."""
        return self._refusals.counters

    def guard(self, socket: Socket) -> None:
        """Close a server socket to strangers. Call it before bind, on this loop."""
        secure_server(socket, self._member)
        self._doors = [door for door in self._doors if door.is_open]
        self._doors.append(Door(socket, self._refusals))

    def unwelcome(self, users: Iterable[UserId]) -> set[UserId]:
        """Those of them who would not be let in any more. Ask at each heartbeat about all who are connected: a
        handshake is judged once, and who is revoked must not stay for as long as a connection lives."""
        welcome = {MEMBER}
        if self._registry is not None:
            welcome.update(map(client_user, self._registry.active_names()))
        return set(users) - welcome

    def close(self) -> None:
        """After its servers: from now on nobody is let in."""
        for door in self._doors:
            door.close()
        self._link.close()

    def user_of(self, public: str) -> UserId | None:
        """Who has this key; None if nobody who may come in. Never raises: an error is a no."""
        self._status = UNKNOWN_STATUS
        if public == self._member.mesh_public:
            return MEMBER
        try:
            client = self._registry.with_key(public) if self._registry is not None else None
        except Exception:
            logger.exception("clients_unreadable")
            return None
        if client is None:
            return None
        if client.is_revoked:
            self._status = REVOKED_STATUS
            return None
        return client_user(client.name)

    def refusal_status(self) -> bytes:
        """Of the question at hand; counts and logs it."""
        self._refusals.refuse(self._caller, "revoked_key" if self._status == REVOKED_STATUS else "unknown_key")
        return self._status

    def _on_question(self, frames: Frames) -> None:
        self._caller = frames[3].decode("ascii", "replace") if len(frames) > 3 else "?"
        _run(self._zap.handle_zap_message(frames))


class _Zap(Authenticator):
    """pyzmq's own reading of the question; the judgement is the Gatekeeper's."""

    def __init__(self, context: Context, gatekeeper: Gatekeeper) -> None:
        super().__init__(context)
        self._gatekeeper = gatekeeper
        self.configure_curve_callback(ZAP_DOMAIN.decode(), self)

    def callback(self, domain: str, key: bytes) -> bool:
        return self._gatekeeper.user_of(key.decode()) is not None

    def curve_user_id(self, client_public_key: bytes) -> str:
        return self._gatekeeper.user_of(text_of(client_public_key)) or ""

    def _send_zap_reply(
        self, request_id: bytes, status_code: bytes, status_text: bytes, user_id: str = "anonymous"
    ) -> None:
        if status_code != b"200":
            status_code = self._gatekeeper.refusal_status()
        super()._send_zap_reply(request_id, status_code, status_text, user_id)


def _run(judgement: Coroutine[Any, Any, None]) -> None:
    """To its end, here: it waits for nothing, and a task would answer one turn of the loop later."""
    try:
        judgement.send(None)
    except StopIteration:
        return
    judgement.close()
    raise RuntimeError("the ZAP handler waited for something")
