"""This host's interfaces: which addresses to tell others, where to send multicast, which peer address is near."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

import ifaddr

from mesh.discovery.addresses import BadAddress, Endpoint, parse_endpoint

LOOPBACK = "127.0.0.1"
# Bridges of containers and virtual machines: others on the LAN cannot reach what is behind them.
_VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "podman", "lxc", "lxd", "vmnet", "vboxnet", "cali")


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of one interface, with its network."""

    name: str
    net: IPv4Interface | IPv6Interface

    @property
    def address(self) -> str:
        return str(self.net.ip)

    @property
    def is_virtual(self) -> bool:
        return self.name.startswith(_VIRTUAL)


def list_interfaces() -> list[Interface]:
    """Every address of this host: real interfaces before virtual ones, IPv4 before IPv6, else as the system says."""
    found = [
        Interface(ip.nice_name, ip_interface(f"{ip.ip if isinstance(ip.ip, str) else ip.ip[0]}/{ip.network_prefix}"))
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
    ]
    return sorted(found, key=lambda interface: (interface.is_virtual, interface.net.version))


def advertised_endpoints(
    bound: Endpoint, advertise: Sequence[str] = (), interfaces: Iterable[Interface] | None = None
) -> tuple[str, ...]:
    """What to tell others, best first, for a socket that is bound to `bound` (with its real port).

    `advertise` overrides it: hosts, or hosts with a port where a forwarder changes it. A host without a network is
    known by its loopback address, for programs on the same host. Raises BadAddress.
    """
    if advertise:
        return tuple(str(parse_endpoint(text, default_port=bound.port)) for text in advertise)
    if bound.port == 0:
        raise BadAddress(f"{bound}: the port must be known before it can be advertised")
    if not bound.is_wildcard:
        return (str(bound),)
    wanted = [
        interface.address
        for interface in (list_interfaces() if interfaces is None else interfaces)
        if not (interface.net.ip.is_loopback or interface.net.ip.is_link_local)
        and (interface.net.version == 4 or bound.host != "0.0.0.0")
    ]
    return tuple(str(bound.at(host)) for host in wanted or [LOOPBACK])


def multicast_interfaces(bound: Endpoint | None = None, interfaces: Iterable[Interface] | None = None) -> list[str]:
    """The addresses whose interfaces carry our multicast: one of each family per interface, and always loopback.

    A member bound to loopback stays there; one bound to an address uses that interface; None or a wildcard means all.
    """
    if bound is not None and bound.is_loopback:
        return [LOOPBACK]
    chosen: dict[tuple[str, int], str] = {}
    for interface in list_interfaces() if interfaces is None else interfaces:
        ip = interface.net.ip
        if ip.is_loopback or interface.name.startswith("veth"):  # a veth's other end is a container's own business
            continue
        if bound is not None and bound.ip is not None and not bound.is_wildcard and bound.ip != ip:
            continue
        key = (interface.name, ip.version)
        if key not in chosen or (ip.version == 6 and ip.is_link_local):  # IPv6 multicast DNS is link-local by nature
            chosen[key] = interface.address
    return [LOOPBACK, *chosen.values()]


def nearest_first(endpoints: Sequence[str], interfaces: Iterable[Interface] | None = None) -> list[str]:
    """A peer's addresses in the order to try them: on a network that we are on ourselves, then as the peer lists them.

    A peer's loopback address that comes with others leads to ourselves, not to the peer: it goes last.
    """
    ours = [interface.net.network for interface in (list_interfaces() if interfaces is None else interfaces)]

    def distance(text: str) -> int:
        endpoint = parse_endpoint(text)
        ip = endpoint.ip
        if endpoint.is_loopback:
            return 2
        return 0 if ip is not None and any(ip in network for network in ours) else 1

    return sorted(endpoints, key=distance)
