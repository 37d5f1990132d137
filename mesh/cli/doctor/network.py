"""The steps before anything of ours is spoken: interfaces, multicast, discovery, name and port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Sequence

from zeroconf import DNSIncoming  # type: ignore[attr-defined] # offered to all, but not listed in its __all__

from mesh.cli.doctor.echo import echoes
from mesh.cli.doctor.steps import Finding, failed, passed, warned
from mesh.discovery.addresses import parse_endpoint
from mesh.discovery.dns import resolve
from mesh.discovery.interfaces import LOOPBACK, list_interfaces, multicast_interfaces, nearest_first
from mesh.discovery.multicast import Inquiry, adverts_in
from mesh.discovery.records import Advert

ECHO_S = 0.8
LISTEN_S = 1.2
TCP_S = 1.5
DNS_S = 2.0

START_ONE = "no broker found; start one with `phi3-broker serve`, or pass --broker HOST:PORT"
_FIREWALL = "let UDP port 5353 through this host's firewall, or pass --broker HOST:PORT"


def examine_interfaces(chosen: Sequence[str] | None) -> tuple[list[str], Finding]:
    """The addresses that multicast is used on."""
    used = list(chosen) if chosen else multicast_interfaces()
    names = {interface.address: interface.name for interface in list_interfaces()}
    told = ", ".join(f"{names.get(address, 'no such interface')} {address}" for address in used)
    unused = [f"{name} {address}" for address, name in names.items() if address not in used]
    aside = f" (not used: {', '.join(unused)})" if unused else ""
    if not chosen and used == [LOOPBACK]:
        aside = ": no other interface has an address, so only members on this host can be found"
    return used, passed("interfaces", told + aside)


async def examine_multicast(addresses: Sequence[str]) -> list[Finding]:
    problems = await echoes(addresses, ECHO_S)
    good = [address for address, problem in problems.items() if problem is None]
    findings = [
        warned("multicast", f"{address}: {problem}", _FIREWALL) for address, problem in problems.items() if problem
    ]
    if good:
        findings.insert(0, passed("multicast", f"sent and heard back on {', '.join(good)}"))
    return findings


async def examine_discovery(mesh: str, addresses: Sequence[str]) -> tuple[list[str], list[Finding]]:
    """The endpoints to try, brokers first: a mesh with a broker is used through it."""
    census = _Census(mesh)
    inquiry = Inquiry(addresses, ["broker", "node"], census.take_in)
    await inquiry.start()
    try:
        await asyncio.sleep(LISTEN_S)
    finally:
        await inquiry.close()
    return census.endpoints(), census.findings()


class _Census:
    """Who answers, and who is not for us."""

    def __init__(self, mesh: str) -> None:
        self._mesh = mesh
        self._found: dict[str, Advert] = {}
        self._bad: Counter[str] = Counter()

    def take_in(self, answer: DNSIncoming) -> None:
        for advert in adverts_in(answer, ["broker", "node"], lambda error: self._bad.update([error.reason])):
            self._found[advert.service_name] = advert

    def endpoints(self) -> list[str]:
        ours = self._ours("broker") or self._ours("node")
        return list(dict.fromkeys(address for advert in ours for address in nearest_first(advert.addresses)))

    def findings(self) -> list[Finding]:
        findings = []
        for kind in ("broker", "node"):
            for advert in self._ours(kind):
                told = f"{kind} {advert.instance_name} at {', '.join(nearest_first(advert.addresses))}"
                findings.append(passed("discovery", told))
        others = Counter(advert.mesh for advert in self._found.values() if advert.mesh != self._mesh)
        ignored = [f"{count} of mesh {mesh!r}" for mesh, count in sorted(others.items())]
        ignored += [f"{count} with {reason}" for reason, count in sorted(self._bad.items())]
        aside = f" (ignored: {', '.join(ignored)})" if ignored else ""
        if findings and aside:
            findings.append(passed("discovery", f"nothing else of mesh {self._mesh!r}{aside}"))
        if not findings:
            remedy = START_ONE + ("; or name the other mesh with --mesh NAME" if others else "")
            findings.append(failed("discovery", f"no member of mesh {self._mesh!r} answered{aside}", remedy))
        return findings

    def _ours(self, kind: str) -> list[Advert]:
        return [advert for advert in self._found.values() if advert.kind == kind and advert.mesh == self._mesh]


async def examine_names(given: Sequence[str]) -> tuple[list[str], list[Finding]]:
    """The endpoints behind the addresses that the user gave."""
    endpoints: list[str] = []
    findings: list[Finding] = []
    for address in given:
        if parse_endpoint(address).ip is not None:
            endpoints.append(address)
            findings.append(passed("address", f"{address} was given"))
            continue
        try:
            async with asyncio.timeout(DNS_S):
                found = await resolve(address)
        except OSError as error:
            reason = "no answer from the name server" if isinstance(error, TimeoutError) else error.strerror or error
            findings.append(warned("address", f"{address}: {reason}"))
        else:
            endpoints += found
            findings.append(passed("address", f"{address} is {', '.join(found)}"))
    if not endpoints:
        findings.append(failed("address", "no name could be resolved", "check the spelling, or give an IP address"))
    return list(dict.fromkeys(endpoints)), findings


async def examine_ports(endpoints: Sequence[str]) -> tuple[list[str], list[Finding]]:
    """Those endpoints that accept a TCP connection."""
    problems = await asyncio.gather(*(_connect(endpoint) for endpoint in endpoints))
    reached = [endpoint for endpoint, problem in zip(endpoints, problems, strict=True) if problem is None]
    findings = [passed("port", f"{endpoint} accepts connections") for endpoint in reached]
    for endpoint, problem in zip(endpoints, problems, strict=True):
        if problem is not None:
            told, remedy = explained(problem)
            findings.append(warned("port", f"{endpoint}: {told}", remedy))
    if not reached:
        findings[-1] = failed("port", findings[-1].told, findings[-1].remedy)
    return reached, findings


async def _connect(endpoint: str) -> OSError | None:
    target = parse_endpoint(endpoint)
    try:
        async with asyncio.timeout(TCP_S):
            _, writer = await asyncio.open_connection(target.host, target.port)
    except OSError as error:
        return error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None


def explained(error: OSError) -> tuple[str, str]:
    """What it means, and what to do."""
    if isinstance(error, TimeoutError):
        return "timed out", "a firewall drops the packets, or the host is off: open the port, or check the address"
    if error.errno == errno.ECONNREFUSED:
        return (
            "refused",
            "the host is there, but nothing listens on this port: is the broker running, is the port right?",
        )
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "no route", "this host knows no way there: check the address, the network and any VPN"
    if isinstance(error, socket.gaierror):
        return str(error.strerror), "check the spelling, or give an IP address"
    return error.strerror or str(error), "check the address"
