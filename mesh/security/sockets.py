"""Options that make a ZeroMQ socket closed. All of them must be set before it binds or connects."""

from __future__ import annotations

from mesh.connection import ConfigureSocket
from mesh.discovery.addresses import BadAddress, is_loopback
from mesh.errors import ConfigError
from mesh.link import Socket
from mesh.security.keys import Credentials

ZAP_DOMAIN = b"mesh"
HANDSHAKE_TIMEOUT_MS = 3_000  # libzmq's own 30 s lets idle strangers hold ten times as many file descriptors
_BACKLOG = 1024  # connections the kernel holds until they are accepted; libzmq's 100 is little for a flood


def secure_server(socket: Socket, member: Credentials) -> None:
    """A server that only talks to those whom the Gatekeeper of its context lets in. Call it before bind."""
    if not member.is_member:
        raise ConfigError("only a member may be a server of the mesh, and this is the key of a client")
    socket.curve_server = True
    socket.curve_publickey = member.pair.public.encode()
    socket.curve_secretkey = member.pair.secret.reveal().encode()
    socket.zap_domain = ZAP_DOMAIN
    # Without this, libzmq lets every key in as long as nobody answers on the ZAP address (measured), be it because the
    # Gatekeeper starts later than the socket or because it was forgotten.
    socket.zap_enforce_domain = True
    socket.handshake_ivl = HANDSHAKE_TIMEOUT_MS
    socket.backlog = _BACKLOG


def secure_client(credentials: Credentials) -> ConfigureSocket:
    """For `Connection(configure=…)`: it talks to servers that have the key of the mesh, and to no others."""

    def configure(socket: Socket) -> None:
        socket.curve_serverkey = credentials.mesh_public.encode()
        socket.curve_publickey = credentials.pair.public.encode()
        socket.curve_secretkey = credentials.pair.secret.reveal().encode()

    return configure


def require_loopback(endpoint: str, option: str = "--insecure") -> None:
    """What is not encrypted stays on this machine. Raises ConfigError for any other address."""
    try:
        is_here = is_loopback(endpoint)
    except BadAddress as error:
        raise ConfigError(f"{option}: {error}") from None
    if not is_here:
        raise ConfigError(
            f"{option}: works on loopback addresses only, and {endpoint} is none: use 127.0.0.1 or [::1], "
            f"or leave {option} out and everything is encrypted"
        )
