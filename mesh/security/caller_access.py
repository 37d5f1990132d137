"""What a caller of the mesh needs to be let in: a key, or the word that there is none."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mesh.connection import ConfigureSocket
from mesh.discovery.interfaces import LOOPBACK
from mesh.security.keys import MEMBER
from mesh.security.loading import client_credentials
from mesh.security.sockets import secure_client

ENV_INSECURE = "PHI3_MESH_INSECURE"


@dataclass(frozen=True, slots=True)
class CallerAccess:
    """How a caller gets in."""

    mesh: str  # what it says in Hello and looks for in adverts: the name, and the fingerprint of the key
    configure: ConfigureSocket | None  # sets up each socket before it connects; None: plain text
    user: str = MEMBER  # whom the key proves this process to be

    @property
    def is_insecure(self) -> bool:
        return self.configure is None

    @property
    def interfaces(self) -> list[str] | None:
        """Where to look for the mesh: what is not encrypted stays on this machine. None: everywhere."""
        return [LOOPBACK] if self.is_insecure else None


def caller_access(mesh: str, token: str | None = None, insecure: bool | None = None) -> CallerAccess:
    """`insecure` None means what PHI3_MESH_INSECURE says. Raises ConfigError when there is no key, with what to do."""
    if insecure is None:
        insecure = os.environ.get(ENV_INSECURE, "").lower() in ("1", "true", "yes", "on")
    if insecure:
        return CallerAccess(mesh, None)
    credentials = client_credentials(token)
    return CallerAccess(credentials.mesh_id(mesh), secure_client(credentials), credentials.user)
