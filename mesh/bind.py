"""Binding a ROUTER where a person expects it: the usual port, or the next free one if nobody asked for that one."""

from __future__ import annotations

import zmq

from mesh.errors import ConfigError
from mesh.link import Context, Socket, new_socket

NUM_PORTS_TRIED = 64


def bind_router(context: Context, endpoint: str, is_default: bool) -> tuple[Socket, str]:
    """A bound ROUTER and its real endpoint. `endpoint` is `tcp://host:port`; port 0 or `*` takes any free port.

    With `is_default` (the port was not asked for) the next free port is taken when that one is in use: several nodes on
    one host need no configuration. Raises ConfigError.
    """
    socket = new_socket(context, zmq.ROUTER)
    host, _, port = endpoint.rpartition(":")
    candidates = [endpoint]
    if port in ("0", "*"):
        candidates = [f"{host}:*"]
    elif is_default:
        candidates = [f"{host}:{int(port) + offset}" for offset in range(NUM_PORTS_TRIED)]
    for candidate in candidates:
        try:
            socket.bind(candidate)
        except zmq.ZMQError as error:
            reason = str(error)
            if error.errno != zmq.EADDRINUSE:
                break
        else:
            return socket, str(socket.last_endpoint.decode())
    socket.close()
    raise ConfigError(f"--bind: cannot bind {endpoint}: {reason}; give another port, or port 0 for any free one")
