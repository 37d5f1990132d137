"""Endpoint strings: one grammar for flags, records and messages. Pure text, no sockets, no name is resolved here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

_FORM = re.compile(r"(?:tcp://)?(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^:/\[\]]*))(?::(?P<port>[^:]*))?", re.ASCII)
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_WILDCARDS = ("*", "0.0.0.0", "::")


class BadAddress(ValueError):
    """An endpoint that cannot be meant. The message shows it and says how one looks."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP host and port. `str()` gives what ZeroMQ wants: `tcp://host:port`, IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def ip(self) -> IPv4Address | IPv6Address | None:
        """The address, or None for a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_wildcard(self) -> bool:
        return self.host in _WILDCARDS

    @property
    def is_loopback(self) -> bool:
        ip = self.ip
        return ip.is_loopback if ip is not None else self.host.rstrip(".").lower() == "localhost"

    def at(self, host: str) -> Endpoint:
        """The same port on another host."""
        return Endpoint(host, self.port)


def parse_endpoint(text: str, default_port: int | None = None, *, bind: bool = False) -> Endpoint:
    """`host:port`, `tcp://host:port` or `[::1]:port`; with `bind` also `*` for every interface and port 0 for any.

    Raises BadAddress.
    """
    text = text.strip()
    form = _FORM.fullmatch(text)
    if form is None:
        is_v6 = text.count(":") > 1 and "/" not in text
        raise BadAddress(
            f"{text!r} is not an address: "
            + ("write an IPv6 address in brackets: [::1]:5560" if is_v6 else "write host:port or tcp://host:port")
        )
    endpoint = Endpoint(_host(form["v6"], form["host"], text), _port(form["port"], default_port, bind, text))
    if endpoint.is_wildcard and not bind:
        raise BadAddress(f"{text!r} stands for every interface and cannot be connected to: name a host")
    return endpoint


def is_loopback(endpoint: str) -> bool:
    """Whether only programs on this machine can reach it. Raises BadAddress."""
    return parse_endpoint(endpoint, bind=True).is_loopback


def _host(v6: str | None, host: str | None, text: str) -> str:
    if v6 is not None:
        try:
            return str(IPv6Address(v6))
        except ValueError:
            raise BadAddress(f"{text!r}: [{v6}] is not an IPv6 address") from None
    host = host or ""
    if host == "*" or (_NAME.fullmatch(host) and len(host) <= 253):
        # Only digits and dots, yet no IPv4 address: surely a typing error, and some resolvers read 10.1 as 10.0.0.1.
        if host.replace(".", "").isdigit():
            try:
                return str(IPv4Address(host))
            except ValueError:
                raise BadAddress(f"{text!r}: {host} is not an IPv4 address") from None
        return host
    raise BadAddress(f"{text!r} names no host: write host:port, such as gpu-1:5560 or 192.168.1.7:5560")


def _port(port: str | None, default_port: int | None, bind: bool, text: str) -> int:
    if port is None:
        if default_port is None:
            raise BadAddress(f"{text!r} has no port: write {text}:PORT")
        return default_port
    lowest = 0 if bind else 1
    if port == "*" and bind:  # ZeroMQ's way to say any free port
        return 0
    if not (port.isdecimal() and port.isascii() and len(port) <= 5 and lowest <= int(port) <= 65535):
        raise BadAddress(f"{text!r}: the port must be a number from {lowest} to 65535")
    return int(port)
