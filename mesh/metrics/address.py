"""`--metrics-host` and `--metrics-port`, checked: the same two options on every member."""

from __future__ import annotations

from mesh.discovery.addresses import BadAddress, parse_endpoint
from mesh.errors import ConfigError


def check_metrics_address(host: str, port: int) -> None:
    """Raises ConfigError naming the option that is wrong."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--metrics-port: must be from 0 to 65535, not {port}")
    if not host:
        return
    if not port:
        raise ConfigError("--metrics-host: without --metrics-port nothing is shown: give both")
    try:
        parse_endpoint(f"[{host}]" if ":" in host else host, port, bind=True)
    except BadAddress:
        raise ConfigError(f"--metrics-host: {host!r} is no host: write a name or an address without a port") from None
