"""Binding a ROUTER where a person expects it: the usual port, or the next free one if nobody asked for that one."""

from __future__ import annotations

import zmq

from mesh.connection import ConfigureSocket
from mesh.discovery.addresses import Endpoint
from mesh.errors import ConfigError
from mesh.link import Context, Socket, new_socket

NUM_PORTS_TRIED = 64


def bind_router(
    context: Context, endpoint: Endpoint, is_default: bool, guard: ConfigureSocket | None = None
) -> tuple[Socket, str]:
    """A bound ROUTER and its real address, such as `tcp://127.0.0.1:5560`. Port 0 takes any free port.

    With `is_default` (the port was not asked for) the next free port is taken when that one is in use: several nodes on
    one host need no configuration. `guard` closes the socket to strangers before it binds. Raises ConfigError.
    """
    ports: list[int | str] = [endpoint.port or "*"]
    if is_default:
        ports = [endpoint.port + offset for offset in range(NUM_PORTS_TRIED)]
    for host, ipv6 in _hosts(endpoint.host):
        socket = new_socket(context, zmq.ROUTER, ipv6=ipv6)
        if guard is not None:
            guard(socket)
        for port in ports:
            try:
                socket.bind(f"tcp://{host}:{port}")
            except zmq.ZMQError as error:
                reason = str(error)
                if error.errno != zmq.EADDRINUSE:
                    break
            else:
                return socket, bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).decode()
        socket.close()
    raise ConfigError(f"--bind: cannot bind {endpoint}: {reason}; give another port, or port 0 for any free one")


def _hosts(host: str) -> list[tuple[str, bool]]:
    """What to bind, and whether as IPv6. `*` is both families where the host has both."""
    if host == "*":
        return [("[::]", True), ("0.0.0.0", False)]
    return [(f"[{host}]", True)] if ":" in host else [(host, False)]
