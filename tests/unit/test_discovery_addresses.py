"""Endpoint strings, and what a host tells others about where it is."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.discovery.addresses import BadAddress, Endpoint, is_loopback, parse_endpoint
from mesh.discovery.interfaces import (
    Interface,
    advertised_endpoints,
    list_interfaces,
    multicast_interfaces,
    nearest_first,
)

HOST = [
    Interface("lo", ip_interface("127.0.0.1/8")),
    Interface("eth0", ip_interface("192.168.1.7/24")),
    Interface("eth0", ip_interface("2001:db8::7/64")),
    Interface("eth0", ip_interface("fe80::7/64")),
    Interface("docker0", ip_interface("172.17.0.1/16")),
]


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("gpu-1:5560", "tcp://gpu-1:5560"),
        ("tcp://192.168.1.7:5560", "tcp://192.168.1.7:5560"),
        ("[::1]:5560", "tcp://[::1]:5560"),
        (" tcp://[FE80::1]:1 ", "tcp://[fe80::1]:1"),
        ("nodes.mesh.svc.cluster.local:5560", "tcp://nodes.mesh.svc.cluster.local:5560"),
    ],
)
def test_an_endpoint_is_read_and_written(text: str, endpoint: str) -> None:
    assert str(parse_endpoint(text)) == endpoint


@pytest.mark.parametrize(
    ("text", "bind", "says"),
    [
        ("gpu-1", False, "has no port: write gpu-1:PORT"),
        ("gpu-1:", False, "the port must be a number from 1 to 65535"),
        ("gpu-1:0", False, "from 1 to 65535"),
        ("gpu-1:65536", True, "from 0 to 65535"),
        ("gpu-1:٣", False, "the port must be a number"),
        ("::1:5560", False, "in brackets"),
        ("[::x]:5560", False, "is not an IPv6 address"),
        ("10.0.0.256:5560", False, "10.0.0.256 is not an IPv4 address"),
        ("10.1:5560", False, "10.1 is not an IPv4 address"),
        ("*:5560", False, "cannot be connected to"),
        ("udp://a:1", False, "write host:port"),
        ("http://a:1/", False, "write host:port"),
        ("a b:1", False, "names no host"),
        ("", False, "names no host"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_advice(text: str, bind: bool, says: str) -> None:
    with pytest.raises(BadAddress, match=says.replace("*", r"\*")):
        parse_endpoint(text, bind=bind)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        endpoint = parse_endpoint(text, bind=True)
    except BadAddress:
        return
    assert parse_endpoint(str(endpoint), bind=True) == endpoint


@pytest.mark.parametrize(("text", "port"), [("*:5560", 5560), ("[::]:0", 0), ("tcp://0.0.0.0:*", 0)])
def test_a_wildcard_can_be_bound(text: str, port: int) -> None:
    endpoint = parse_endpoint(text, bind=True)

    assert endpoint.is_wildcard
    assert endpoint.port == port


def test_loopback_is_recognised() -> None:
    assert [is_loopback(text) for text in ("127.0.0.1:1", "127.8.0.1:1", "[::1]:1", "localhost:1")] == [True] * 4
    assert [is_loopback(text) for text in ("10.0.0.1:1", "gpu-1:1", "*:1")] == [False] * 3


def test_a_host_tells_its_real_addresses_and_those_of_bridges_last() -> None:
    assert advertised_endpoints(Endpoint("*", 5560), interfaces=HOST) == (
        "tcp://192.168.1.7:5560",
        "tcp://[2001:db8::7]:5560",
        "tcp://172.17.0.1:5560",
    )
    assert advertised_endpoints(Endpoint("0.0.0.0", 1), interfaces=HOST)[1] == "tcp://172.17.0.1:1"


def test_a_host_without_a_network_is_known_by_its_loopback_address() -> None:
    assert advertised_endpoints(Endpoint("*", 5560), interfaces=HOST[:1]) == ("tcp://127.0.0.1:5560",)


def test_the_operator_knows_better() -> None:
    told = advertised_endpoints(Endpoint("*", 5560), ["gpu.example.org", "[2001:db8::9]:7000"], HOST)

    assert told == ("tcp://gpu.example.org:5560", "tcp://[2001:db8::9]:7000")


def test_a_port_that_is_not_known_yet_cannot_be_advertised() -> None:
    with pytest.raises(BadAddress, match="port must be known"):
        advertised_endpoints(Endpoint("*", 0), interfaces=HOST)


def test_a_member_on_loopback_stays_on_loopback() -> None:
    assert multicast_interfaces(Endpoint("::1", 1), HOST) == ["127.0.0.1"]
    assert advertised_endpoints(Endpoint("127.0.0.1", 1), interfaces=HOST) == ("tcp://127.0.0.1:1",)


def test_multicast_goes_out_once_per_interface_and_family() -> None:
    assert multicast_interfaces(None, HOST) == ["127.0.0.1", "192.168.1.7", "fe80::7", "172.17.0.1"]
    assert multicast_interfaces(Endpoint("192.168.1.7", 1), HOST) == ["127.0.0.1", "192.168.1.7"]


def test_a_peer_is_tried_on_a_shared_network_first_and_its_loopback_last() -> None:
    addresses = ["tcp://10.9.9.9:1", "tcp://127.0.0.1:1", "tcp://gpu-1:1", "tcp://192.168.1.9:1"]

    assert nearest_first(addresses, HOST[1:]) == [addresses[3], addresses[0], addresses[2], addresses[1]]


def test_this_host_has_a_loopback_interface() -> None:
    assert "127.0.0.1" in [interface.address for interface in list_interfaces()]
