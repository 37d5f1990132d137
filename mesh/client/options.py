"""How a client behaves, checked before it starts anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from mesh.client.retry import RetryPolicy
from mesh.discovery.addresses import BadAddress, parse_endpoint
from mesh.errors import ConfigError
from mesh.security.caller_access import CallerAccess
from mesh.security.sockets import require_loopback

ENV_BROKER = "PHI3_MESH_BROKER"


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Everything about a client but what it asks for."""

    addresses: tuple[str, ...]  # empty: look for one
    access: CallerAccess
    name: str
    connect_timeout_s: float
    reconnect_timeout_s: float
    retry: RetryPolicy

    def __post_init__(self) -> None:
        for field in ("connect_timeout_s", "reconnect_timeout_s"):
            if not 0 < getattr(self, field) < 1e9:
                raise ConfigError(f"{field}: {getattr(self, field)}, must be a positive number of seconds")
        if self.access.is_insecure:
            for address in self.addresses:
                require_loopback(address, "insecure")


def addresses_from(address: str | Sequence[str] | None) -> tuple[str, ...]:
    """Argument before environment before discovery (the empty tuple). Several are separated by commas.

    Raises: ConfigError for what is no address.
    """
    source = "address"
    if address is None:
        address, source = os.environ.get(ENV_BROKER, ""), ENV_BROKER
        if not address:
            return ()
    texts = address.split(",") if isinstance(address, str) else address
    try:
        found = tuple(str(parse_endpoint(text)) for text in texts if text.strip())
    except BadAddress as error:
        raise ConfigError(f"{source}: {error}") from None
    if not found:
        raise ConfigError(f"{source}: names no broker: write host:port, several with commas between them")
    return found
