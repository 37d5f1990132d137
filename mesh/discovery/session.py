"""One multicast DNS endpoint of this process, shared by all that advertises or browses on the same interfaces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence

from zeroconf import Zeroconf
from zeroconf.asyncio import AsyncZeroconf

from mesh.discovery.interfaces import LOOPBACK, multicast_interfaces
from mesh.discovery.multicast import multicast_problem

log = logging.getLogger(__name__)

_FOLLOW_S = 15.0
_IP_MULTICAST_ALL, _IPV6_MULTICAST_ALL = 49, 29  # Linux; Python does not name them


class MdnsSession:
    """Opens on `start`. A host where multicast does not work is no reason to fail: static addresses and DNS still do.

    So `start` never raises for the network's sake; `problems` and the log say what is wrong.
    """

    def __init__(self, interfaces: Sequence[str] | None = None) -> None:
        """`interfaces`: their addresses; None means every one that this host has when the session starts."""
        self._wanted = list(interfaces) if interfaces is not None else None
        self._zeroconf: AsyncZeroconf | None = None
        self._following: asyncio.Task[None] | None = None
        self._send_errors = _SendErrors(self)
        self.interfaces: list[str] = []
        self.problems: list[str] = []

    @property
    def zeroconf(self) -> AsyncZeroconf | None:
        """None if multicast DNS cannot be used here."""
        return self._zeroconf

    async def start(self) -> None:
        if self._zeroconf is not None:
            return
        self.interfaces = self._usable()
        if not self.interfaces:
            self._report("multicast DNS has no interface to work on")
            return
        if self._wanted is None and self.interfaces == [LOOPBACK]:
            log.warning("mdns_loopback_only reason='no other interface has an address'")
        logging.getLogger("zeroconf").addFilter(self._send_errors)
        try:
            opened = AsyncZeroconf(interfaces=list(self.interfaces))
            _hear_own_interfaces_only(opened.zeroconf)
            await opened.zeroconf.async_wait_for_start()
        except (OSError, RuntimeError) as error:  # RuntimeError: an interface went away since it was listed
            logging.getLogger("zeroconf").removeFilter(self._send_errors)
            self._report(f"multicast DNS cannot start: {error}")
            return
        self._zeroconf = opened
        if self._wanted is None:
            self._following = asyncio.create_task(self._follow_interfaces(opened))

    async def close(self) -> None:
        """Says goodbye for whatever is still advertised."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._zeroconf is None:
            return
        opened, self._zeroconf = self._zeroconf, None
        await opened.async_close()
        logging.getLogger("zeroconf").removeFilter(self._send_errors)

    def describe(self) -> str:
        where = ", ".join(self.interfaces) or "no interface"
        return f"multicast DNS on {where}" + "".join(f"; {problem}" for problem in self.problems)

    def _usable(self) -> list[str]:
        usable = []
        for address in multicast_interfaces() if self._wanted is None else self._wanted:
            problem = multicast_problem(address)
            if problem is None:
                usable.append(address)
            else:
                self._report(f"multicast on {address}: {problem}")
        return usable

    async def _follow_interfaces(self, opened: AsyncZeroconf) -> None:
        """Networks come and go: a cable, Wi-Fi, a host that booted before its DHCP server."""
        while True:
            await asyncio.sleep(_FOLLOW_S)
            usable = self._usable()
            if usable != self.interfaces:
                log.info("mdns_interfaces_changed before=%s now=%s", ",".join(self.interfaces), ",".join(usable))
                self.interfaces = usable
                await opened.async_update_interfaces(list(usable))

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            log.warning("mdns_problem %s", problem)


class _SendErrors(logging.Filter):
    """zeroconf tells of a failed send in its own log only, once per socket and with a traceback; we want one line."""

    def __init__(self, session: MdnsSession) -> None:
        super().__init__()
        self._session = session

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.msg.startswith("Error with socket"):
            return True
        self._session._report(f"multicast could not be sent: {record.getMessage()}")
        return False


def _hear_own_interfaces_only(zeroconf: Zeroconf) -> None:
    """Linux hands a wildcard socket the packets of every group that *any* program of the host has joined, on whatever
    interface. A session on loopback must not hear the LAN that way. (Other systems do not do that.)"""
    listening = getattr(zeroconf.engine, "_listen_socket", None)
    if listening is None:
        return
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
