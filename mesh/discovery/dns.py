"""Members behind one DNS name, such as a headless service in a cluster: as many as it has addresses."""

from __future__ import annotations

import asyncio
import logging
import socket

from mesh.discovery.addresses import parse_endpoint
from mesh.discovery.source import OnFound, OnGone

log = logging.getLogger(__name__)


async def resolve(address: str) -> list[str]:
    """Every endpoint that `host:port` stands for, in the resolver's order. Raises BadAddress, or OSError if there is no
    answer."""
    endpoint = parse_endpoint(address)
    found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(endpoint.at(str(sockaddr[0]))) for *_, sockaddr in found))


class DnsSource:
    """Asks again every `interval_s`. While the name server does not answer, what was known stays known."""

    def __init__(self, address: str, interval_s: float = 15.0) -> None:
        """Raises BadAddress."""
        self._address = str(parse_endpoint(address))
        self._interval_s = interval_s
        self._known: list[str] = []
        self._problem: str | None = None
        self._resolving: asyncio.Task[None] | None = None

    async def start(self, on_found: OnFound, on_gone: OnGone) -> None:
        """Returns at once; a slow name server holds nobody up."""
        self._resolving = asyncio.create_task(self._resolve_forever(on_found, on_gone))

    async def close(self) -> None:
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)

    def describe(self) -> str:
        return f"DNS name {self._address}: {self._problem or ', '.join(self._known) or 'not resolved yet'}"

    async def _resolve_forever(self, on_found: OnFound, on_gone: OnGone) -> None:
        while True:
            try:
                current = await resolve(self._address)
            except OSError as error:
                problem = error.strerror or str(error)
                if problem != self._problem:  # once per outage, not every interval
                    log.warning("dns_failed name=%s error=%r", self._address, problem)
                self._problem = problem
            else:
                self._problem = None
                gone = [address for address in self._known if address not in current]
                found = [address for address in current if address not in self._known]
                self._known = current
                for address in gone:
                    on_gone(address)
                for address in found:
                    on_found(address, None)
            await asyncio.sleep(self._interval_s)
