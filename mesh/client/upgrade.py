"""A client that found a node but no broker goes over to a broker when there is one: a node cannot share its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mesh.client.options import ClientOptions

LOOK_EVERY_S = 5.0
_LOOK_FOR_S = 1.0


class Upgrade:
    """Looks for a broker while the session is with a node that discovery found. An address that was given is kept."""

    def __init__(self, options: ClientOptions, on_broker: Callable[[], None]) -> None:
        self._options = options
        self._on_broker = on_broker
        self._task: asyncio.Task[None] | None = None

    def consider(self, server_kind: str) -> None:
        """A session with this kind of server has begun."""
        self.stop()
        if server_kind == "node" and not self._options.addresses:
            self._task = asyncio.get_running_loop().create_task(self._look())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self) -> None:
        from mesh.discovery.find import find_broker  # as in the dialer: only whoever searches pays for it

        access = self._options.access
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            found = await find_broker(access.mesh, timeout_s=_LOOK_FOR_S, interfaces=access.interfaces)
            if any(advert.kind == "broker" for advert in found.adverts):
                self._task = None  # what follows ends the session, which must not cancel us in the middle of it
                self._on_broker()
                return
