"""Whether a multicast packet that leaves an interface is heard on that interface: by this host itself, which finds
firewalls, missing routes and interfaces without multicast. (What a switch drops only another host can tell.)
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
from collections.abc import Sequence

import ifaddr
from zeroconf import DNSOutgoing, DNSQuestion  # type: ignore[attr-defined] # offered to all, but not in its __all__

_PORT = 5353
_GROUP_V4, _GROUP_V6 = "224.0.0.251", "ff02::fb"
_TYPE_PTR, _CLASS_IN, _IS_QUERY = 12, 1, 0
_REPEAT_S = 0.1


async def echoes(addresses: Sequence[str], within_s: float) -> dict[str, str | None]:
    """For each interface address what is wrong with multicast there, or None."""
    problems = await asyncio.gather(*(_echo(address, within_s) for address in addresses))
    return dict(zip(addresses, problems, strict=True))


async def _echo(address: str, within_s: float) -> str | None:
    loop = asyncio.get_running_loop()
    # A name that is nobody's and differs each time: only our own packet has it, and nobody answers.
    token = secrets.token_hex(8)
    packet = _question(f"_phi3-{token}._udp.local.")
    try:
        with contextlib.ExitStack() as opened:
            ear, mouth, group = _open(address, opened)
            async with asyncio.timeout(within_s):
                hearing = asyncio.ensure_future(_hear(loop, ear, token.encode()))
                try:
                    while not hearing.done():
                        await loop.sock_sendto(mouth, packet, group)
                        await asyncio.wait([hearing], timeout=_REPEAT_S)
                    hearing.result()
                finally:
                    hearing.cancel()
                    await asyncio.gather(hearing, return_exceptions=True)  # it reads from a socket that closes now
    except TimeoutError:
        return "sent, but not heard back"
    except OSError as error:
        return error.strerror or str(error)
    return None


async def _hear(loop: asyncio.AbstractEventLoop, ear: socket.socket, token: bytes) -> None:
    while token not in await loop.sock_recv(ear, 9000):
        pass


def _question(name: str) -> bytes:
    out = DNSOutgoing(_IS_QUERY, multicast=True)
    out.add_question(DNSQuestion(name, _TYPE_PTR, _CLASS_IN))
    packet: bytes = out.packets()[0]
    return packet


def _open(address: str, opened: contextlib.ExitStack) -> tuple[socket.socket, socket.socket, tuple[str | int, ...]]:
    """One socket to hear, one to send, and the group, all on the interface with this address. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    ear, mouth = (opened.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for _ in range(2))
    for one in (ear, mouth):
        one.setblocking(False)
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):  # the host's own mDNS service has the port, too
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET:
        ear.bind(("", _PORT))
        membership = socket.inet_aton(_GROUP_V4) + socket.inet_aton(address)
        ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        mouth.bind((address, 0))
        return ear, mouth, (_GROUP_V4, _PORT)
    index = _interface_index(address)
    ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    ear.bind(("", _PORT))
    membership = socket.inet_pton(family, _GROUP_V6) + struct.pack("@I", index)
    ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)
    mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    mouth.bind((address, 0, 0, index))
    return ear, mouth, (_GROUP_V6, _PORT, 0, index)


def _interface_index(address: str) -> int:
    for adapter in ifaddr.get_adapters():
        for ip in adapter.ips:
            if isinstance(ip.ip, tuple) and ip.ip[0] == address and adapter.index is not None:
                return adapter.index
    raise OSError(f"no interface has the address {address}")
