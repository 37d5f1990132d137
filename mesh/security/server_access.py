"""What a node or a broker needs to prove itself, and whom it lets in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mesh.connection import ConfigureSocket
from mesh.discovery.addresses import Endpoint
from mesh.link import Context
from mesh.security.gatekeeper import Gatekeeper
from mesh.security.loading import member_credentials, token_argument
from mesh.security.member_key import join
from mesh.security.registry import ClientRegistry
from mesh.security.sockets import require_loopback, secure_client


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """How a node or a broker proves itself, and whom it lets in."""

    mesh: str
    gatekeeper: Gatekeeper | None  # None: --insecure
    dial: ConfigureSocket | None  # for the sockets with which it is itself a requester

    @property
    def guard(self) -> ConfigureSocket | None:
        """Sets up each server socket before it binds."""
        return self.gatekeeper.guard if self.gatekeeper is not None else None

    def close(self) -> None:
        """After the servers' sockets and before the context."""
        if self.gatekeeper is not None:
            self.gatekeeper.close()


def server_access(
    context: Context,
    *,
    mesh: str,
    bind: Endpoint,
    insecure: bool,
    join_token: str = "",
    with_clients: bool,
    home: Path | None = None,
) -> ServerAccess:
    """Needs a running loop. The first member on a host makes the key of a new mesh; a join token makes the host a
    member of another one, for good. `with_clients`: let in the clients of this host's registry too, not only members.

    Raises ConfigError.
    """
    if insecure:
        require_loopback(str(bind))
        return ServerAccess(mesh, None, None)
    credentials = join(token_argument(join_token), home) if join_token else member_credentials(home=home)
    registry = ClientRegistry(home) if with_clients else None
    gatekeeper = Gatekeeper(context, credentials, registry)
    return ServerAccess(credentials.mesh_id(mesh), gatekeeper, secure_client(credentials))
