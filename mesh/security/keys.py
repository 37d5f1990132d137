"""Key pairs, and what a process proves itself with. No files, no sockets; a secret shows only when it is asked for."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Self

import zmq
from zmq.utils import z85

KEY_BYTES = 32
MEMBER = "member"
_CLIENT_PREFIX = "client:"

UserId = str
"""Who a message comes from: `member`, or `client:NAME`."""


def client_user(name: str) -> UserId:
    return _CLIENT_PREFIX + name


def client_name(user: UserId) -> str | None:
    """The name of the client; None for a member."""
    return user.removeprefix(_CLIENT_PREFIX) if user.startswith(_CLIENT_PREFIX) else None


class Secret:
    """Text that does not show in logs, errors and reprs, however deep it is nested in what is printed."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair; both halves as 40 characters of Z85, the form that ZeroMQ takes."""

    public: str
    secret: Secret

    @classmethod
    def new(cls) -> Self:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), Secret(secret.decode()))

    @classmethod
    def from_secret(cls, raw: bytes) -> Self:
        """The pair that these 32 bytes are the secret half of."""
        secret = text_of(raw)
        return cls(zmq.curve_public(secret.encode()).decode(), Secret(secret))


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who this process is, and the key that every server of its mesh must prove to have."""

    mesh_public: str
    pair: KeyPair  # a member's is the mesh's own
    name: str = ""  # of a client; empty for a member

    @classmethod
    def of_member(cls, pair: KeyPair) -> Self:
        return cls(mesh_public=pair.public, pair=pair)

    @property
    def is_member(self) -> bool:
        return self.pair.public == self.mesh_public

    @property
    def user(self) -> UserId:
        return MEMBER if self.is_member else client_user(self.name)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell meshes apart. For finding and showing, never for trusting: only the
        handshake proves a key."""
        return hashlib.blake2b(self.mesh_public.encode(), digest_size=8).hexdigest()

    def mesh_id(self, mesh: str) -> str:
        """`default-3fa9…`: what goes into adverts, Hello and Welcome as the mesh. Two meshes of the same name do not
        mix, and neither do a closed one and one that runs with --insecure, which is `default` alone."""
        return f"{mesh}-{self.fingerprint}"


def text_of(raw: bytes) -> str:
    """32 bytes as ZeroMQ writes keys: Z85."""
    return z85.encode(raw).decode()


def bytes_of(text: str) -> bytes:
    """And back. Raises ValueError for what is no key."""
    if len(text) != 40:
        raise ValueError("a key has 40 characters")
    try:
        raw = z85.decode(text.encode("ascii"))
    except (KeyError, ValueError, struct.error):  # what pyzmq lets out, with parts of the text in it
        raise ValueError("a key is written in Z85") from None
    return raw
