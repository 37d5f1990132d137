"""Where the broker's options say that nodes are to be found."""

from __future__ import annotations

from broker.config import DEFAULT_NODE_PORT, BrokerConfig
from mesh.discovery.addresses import parse_endpoint
from mesh.discovery.dns import DnsSource
from mesh.discovery.interfaces import LOOPBACK
from mesh.discovery.mdns import MdnsSource
from mesh.discovery.session import MdnsSession
from mesh.discovery.source import Source
from mesh.discovery.static import StaticSource


def sources_for(config: BrokerConfig, session: MdnsSession | None) -> dict[str, Source]:
    """By name; its first word is what the status report shows in `found_by`. Without a session there is no mDNS."""
    sources: dict[str, Source] = {}
    fixed: list[str] = []
    for text in config.node:
        endpoint = parse_endpoint(text, DEFAULT_NODE_PORT)
        if endpoint.is_loopback and endpoint.ip is None:
            endpoint = endpoint.at(LOOPBACK)  # "localhost" is also ::1, where mostly nobody listens
        if endpoint.ip is not None:
            fixed.append(str(endpoint))
        else:
            sources[f"dns {endpoint.host}:{endpoint.port}"] = DnsSource(str(endpoint))
    if fixed:
        sources["static"] = StaticSource(fixed)
    if session is not None:
        sources["mdns"] = MdnsSource(session, "node", config.mesh)
    return sources
