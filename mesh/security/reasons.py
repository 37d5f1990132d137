"""What the events of a client's socket mean, in sentences that say what to do."""

from __future__ import annotations

import errno
from typing import Self

import zmq

UP = zmq.Event.HANDSHAKE_SUCCEEDED
DOWN = (
    zmq.Event.DISCONNECTED,
    zmq.Event.CLOSED,
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
)
_REVOKED = 500  # see mesh.security.gatekeeper
_HANG_UPS = (errno.EPIPE, errno.ECONNRESET)


class DownReason(str):
    """Why a connection ended, for people.

    `code` is empty for a connection that was lost or never there, and else why it was refused. With `is_certain`,
    asking again changes nothing: `unknown_key`, `revoked_key`, `not_encrypted`, `encrypted`. Without, it looks the same
    when a server dies in the middle of the handshake: `wrong_mesh`, `no_handshake`; so believe the second one in a row.
    """

    __slots__ = ("code", "is_certain")
    code: str
    is_certain: bool

    def __new__(cls, text: str, code: str = "", *, is_certain: bool = False) -> Self:
        reason = super().__new__(cls, text)
        reason.code, reason.is_certain = code, is_certain
        return reason


def down_reason(event: zmq.Event, value: int, *, was_up: bool, is_encrypted: bool) -> DownReason:
    """`value` is the monitor event's; `is_encrypted` tells whether this side has keys."""
    if event == zmq.Event.CLOSED:
        return DownReason("connection refused")
    if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
        return _REVOKED_KEY if value == _REVOKED else _UNKNOWN_KEY
    if event == zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
        if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return _NOT_ENCRYPTED if is_encrypted else _ENCRYPTED
        return DownReason(f"handshake failed: {_STRANGER} (error {value:#x})", "no_handshake")
    if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL and is_encrypted and value in _HANG_UPS:
        return _WRONG_MESH
    if was_up:
        return DownReason("connection lost")
    if is_encrypted:
        return DownReason(f"the other side hung up before the handshake: {_STRANGER}", "no_handshake")
    return _HUNG_UP  # two sides that differ in encryption hang up on each other, and often before they have read why


_STRANGER = "that is no node or broker of phi3-mesh"
_UNKNOWN_KEY = DownReason(
    "key not accepted: the other side does not know this client. Ask for a token, which "
    "`phi3-broker token --client NAME` prints on the host of that broker; a node takes members only",
    "unknown_key",
    is_certain=True,
)
_REVOKED_KEY = DownReason(
    "key not accepted: it was revoked. Ask for a new token, which `phi3-broker token --client NAME` prints",
    "revoked_key",
    is_certain=True,
)
_NOT_ENCRYPTED = DownReason(
    "the other side does not encrypt (--insecure), and this side has a key: it never talks in plain text",
    "not_encrypted",
    is_certain=True,
)
_ENCRYPTED = DownReason(
    "the other side wants encryption, and this one was told --insecure: leave that out", "encrypted", is_certain=True
)
_WRONG_MESH = DownReason(
    "wrong mesh: the other side hung up on our handshake, as one does that has another mesh's key, or none "
    "(--insecure). Use a token of its mesh, or another address",
    "wrong_mesh",
)
_HUNG_UP = DownReason(
    "the other side hung up before the handshake: it wants encryption, and this one was told --insecure; or "
    + _STRANGER,
    "no_handshake",
)
