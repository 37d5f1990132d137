"""Questions asked over multicast from sockets of our own: the fast way to find members, and to test a network.

A question from a port of our own (RFC 6762 §6.7) is answered at once, to us alone. The usual way, through port 5353, is
slower in two cases that matter here: an answer sent to a host reaches only one of the programs that share its port
5353, and a record that was multicast less than a second ago must wait.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence

import ifaddr
from zeroconf import (  # type: ignore[attr-defined] # offered to all, but not listed in its __all__
    DNSIncoming,
    DNSOutgoing,
    DNSQuestion,
    DNSText,
    ServiceInfo,
)
from zeroconf.const import _CLASS_IN, _FLAGS_QR_QUERY, _TYPE_PTR

from mesh.discovery.records import SERVICE_TYPES, Advert, BadRecord, Kind, advert_from_txt

log = logging.getLogger(__name__)

_PORT = 5353
_REPEAT_S = (0.0, 0.1, 0.3, 1.0, 2.0)  # UDP gets lost, and the other side may just be starting
_PROBE_TYPE = "_phi3-probe._tcp.local."  # nobody has such a service, so nobody answers


def multicast_problem(address: str) -> str | None:
    """Send one question that needs no answer from the interface with this address. What went wrong, or None."""
    try:
        sender, group = _open(address)
        with sender:
            sender.sendto(_question([_PROBE_TYPE]), group)
    except OSError as error:
        return error.strerror or str(error)
    return None


class Inquiry:
    """Asks on every interface for members of some kinds until closed. `problems` holds what could not be sent."""

    def __init__(
        self, interfaces: Sequence[str], kinds: Iterable[Kind], on_answer: Callable[[DNSIncoming], None]
    ) -> None:
        """`on_answer` gets the same answer more than once, and answers to nothing we asked: see `adverts_in`."""
        self.interfaces = list(interfaces)
        self._kinds = tuple(kinds)
        self._on_answer = on_answer
        self._transports: list[asyncio.DatagramTransport] = []
        self._asking: asyncio.Task[None] | None = None
        self.problems: list[str] = []

    async def start(self) -> None:
        """Never raises for the network's sake."""
        loop = asyncio.get_running_loop()
        groups = []
        for address in self.interfaces:
            try:
                sock, group = _open(address)
                sock.setblocking(False)
                transport, _ = await loop.create_datagram_endpoint(lambda a=address: _Answers(self, a), sock=sock)  # type: ignore[misc]
            except OSError as error:
                self._failed(address, error)
            else:
                self._transports.append(transport)
                groups.append(group)
        self._asking = asyncio.create_task(self._ask(groups))

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    async def _ask(self, groups: Sequence[tuple[str, int] | tuple[str, int, int, int]]) -> None:
        for pause_s in _REPEAT_S:
            await asyncio.sleep(pause_s)
            question = _question([SERVICE_TYPES[kind] for kind in self._kinds])
            for transport, group in zip(self._transports, groups, strict=True):
                transport.sendto(question, group)

    def _failed(self, address: str, error: Exception) -> None:
        problem = f"multicast on {address}: {getattr(error, 'strerror', None) or error}"
        if problem not in self.problems:
            self.problems.append(problem)
            log.warning("mdns_problem %s", problem)

    def _heard(self, packet: bytes) -> None:
        message = DNSIncoming(packet)
        if message.valid and not message.is_query():
            self._on_answer(message)


def adverts_in(message: DNSIncoming, kinds: Iterable[Kind], on_ignored: Callable[[BadRecord], None]) -> list[Advert]:
    """The members that an answer tells of."""
    adverts = []
    for record in message.answers():
        for kind in kinds:
            service_type = SERVICE_TYPES[kind]
            if isinstance(record, DNSText) and record.name.lower().endswith("." + service_type) and record.ttl > 0:
                txt = ServiceInfo(service_type, record.name, properties=record.text).properties
                try:
                    adverts.append(advert_from_txt(kind, txt))
                except BadRecord as error:
                    on_ignored(error)
    return adverts


class _Answers(asyncio.DatagramProtocol):
    def __init__(self, inquiry: Inquiry, address: str) -> None:
        self._inquiry = inquiry
        self._address = address

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._inquiry._heard(data)

    def error_received(self, exc: Exception) -> None:
        self._inquiry._failed(self._address, exc)


def _question(types: Iterable[str]) -> bytes:
    """A packet that differs each time: responders take one that they saw in the last second for a duplicate."""
    out = DNSOutgoing(_FLAGS_QR_QUERY, multicast=False, id_=secrets.randbelow(2**16))
    for service_type in types:
        out.add_question(DNSQuestion(service_type, _TYPE_PTR, _CLASS_IN))
    packet: bytes = out.packets()[0]
    return packet


def _open(address: str) -> tuple[socket.socket, tuple[str, int] | tuple[str, int, int, int]]:
    """A socket that sends multicast from the interface with this address, and the group to send to. Raises OSError."""
    is_v6 = ":" in address
    opened = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if not is_v6:
            # Named explicitly: a host without a multicast route, or with loopback only, has no default for it.
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
            opened.bind((address, 0))
            return opened, ("224.0.0.251", _PORT)
        index = _interface_index(address)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        opened.bind((address, 0, 0, index))
    except OSError:
        opened.close()
        raise
    return opened, ("ff02::fb", _PORT, 0, index)


def _interface_index(address: str) -> int:
    """The number of the interface that has this IPv6 address. Raises OSError."""
    for adapter in ifaddr.get_adapters():
        for ip in adapter.ips:
            if isinstance(ip.ip, tuple) and ip.ip[0] == address and adapter.index is not None:
                return adapter.index
    raise OSError(f"no interface has the address {address}")
