"""The broker's options, checked before anything starts."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from broker.dispatch import DEFAULT_POLICY, POLICIES
from mesh.bodies import MAX_BODY_BYTES
from mesh.codec import MAX_PARTS
from mesh.discovery.addresses import BadAddress, Endpoint, parse_endpoint
from mesh.errors import ConfigError
from mesh.metrics.address import check_metrics_address
from mesh.options import option

DEFAULT_PORT = 5550
DEFAULT_NODE_PORT = 5560


_HOST_NAME = socket.gethostname().split(".")[0] or "broker"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Every option of `phi3-broker serve`; `--help` shows these texts.

    Durations are seconds. Raises ConfigError naming the option that is wrong.
    """

    name: str = option(_HOST_NAME, help="how people call this broker")
    bind: str = option(
        "",
        metavar="HOST[:PORT]",
        help=f"address for clients; without a port {DEFAULT_PORT} or the next free one, without a host every "
        "interface; bound to loopback, it finds and is found on loopback only",
    )
    advertise: tuple[str, ...] = option(
        (), metavar="HOST[:PORT]", help="tell others this instead of the interfaces' addresses; repeatable"
    )
    node: tuple[str, ...] = option(
        (),
        metavar="HOST[:PORT]",
        help="a node, or a broker to use as one, beside those that mDNS finds; port "
        f"{DEFAULT_NODE_PORT} if not given; a name stands for all its addresses; repeatable",
    )
    join: str = option(
        "",
        metavar="TOKEN",
        help="join another host's mesh for good: the line of `phi3-broker token --member`, - or @FILE",
    )
    insecure: bool = option(False, help="no encryption and no keys; on loopback addresses only")
    mesh: str = option("default", help="name of the mesh: meshes on one network do not mix")
    mdns: bool = option(True, help="find nodes and be found by multicast DNS")
    policy: str = option(DEFAULT_POLICY, choices=tuple(POLICIES), help="which node gets a request")
    heartbeat_s: float = option(0.5, flag="--heartbeat", metavar="S", help="seconds between two heartbeats")
    liveness: int = option(3, help="heartbeats that may be missed before a peer counts as gone")
    stall_s: float = option(
        30.0,
        flag="--stall",
        metavar="S",
        help="a node that has work and makes no step for so long is given up; must be longer than any prefill",
    )
    max_queued: int = option(10_000, help="requests that may wait here for a node")
    max_queued_bytes: int = option(256 << 20, help="bytes of requests that may wait here")
    max_batch: int = option(1024, help="requests in one message of a client")
    max_body_bytes: int = option(MAX_BODY_BYTES, help="bytes of one request")
    max_connections: int = option(10_000, help="callers that may be connected")
    max_connections_per_client: int = option(256, help="connections with one client key; a member's are not counted")
    max_requests_per_client: int = option(8_000, help="unfinished requests of one client")
    max_bytes_per_client: int = option(128 << 20, help="bytes of one client's requests that may wait here")
    prefetch: int = option(0, help="requests sent to a node beyond its slots; 0 = an eighth of them, at least 1")
    metrics_port: int = option(
        0, metavar="PORT", help="show metrics to Prometheus here, at /metrics, to whoever can reach it; 0: no"
    )
    metrics_host: str = option("", metavar="HOST", help="the interface for that; default: the one of --bind")
    log_level: str = option("info", choices=("debug", "info", "warning", "error"), help="how much to tell")

    def __post_init__(self) -> None:
        for name, text in (("name", self.name), ("mesh", self.mesh)):
            if not text or not text.isprintable() or len(text.encode()) > 200:
                raise ConfigError(f"--{name}: must be 1 to 200 printable characters, not {text!r}")
        if self.policy not in POLICIES:
            raise ConfigError(f"--policy: {self.policy!r} is unknown; one of {', '.join(POLICIES)}")
        if not 0.01 <= self.heartbeat_s <= 60:
            raise ConfigError(f"--heartbeat: must be from 0.01 to 60 seconds, not {self.heartbeat_s}")
        if not 2 <= self.liveness <= 100:
            raise ConfigError(f"--liveness: must be from 2 to 100, not {self.liveness}")
        if not self.stall_s > self.lease_s:
            raise ConfigError(f"--stall: must be more than heartbeat × liveness ({self.lease_s:g} s)")
        for name, number in (
            ("max-queued", self.max_queued),
            ("max-queued-bytes", self.max_queued_bytes),
            ("max-batch", self.max_batch),
            ("max-body-bytes", self.max_body_bytes),
            ("max-connections", self.max_connections),
            ("max-connections-per-client", self.max_connections_per_client),
            ("max-requests-per-client", self.max_requests_per_client),
            ("max-bytes-per-client", self.max_bytes_per_client),
        ):
            if number < 1:
                raise ConfigError(f"--{name}: must be at least 1, not {number}")
        if self.max_batch > MAX_PARTS:
            raise ConfigError(f"--max-batch: must be at most {MAX_PARTS}, not {self.max_batch}")
        check_metrics_address(self.metrics_host, self.metrics_port)
        if self.prefetch < 0:
            raise ConfigError(f"--prefetch: must not be negative, not {self.prefetch}")
        _endpoint("bind", self.bind or "*", DEFAULT_PORT, bind=True)
        for address in self.advertise:
            _endpoint("advertise", address, DEFAULT_PORT)
        for address in self.node:
            _endpoint("node", address, DEFAULT_NODE_PORT)

    @property
    def lease_s(self) -> float:
        """How long a peer is believed to live without a word from it."""
        return self.heartbeat_s * self.liveness

    @property
    def orphan_grace_s(self) -> float:
        """How long accepted work waits for a node when the last one that could take it has gone."""
        return max(2.0, 2 * self.lease_s)

    @property
    def endpoint(self) -> Endpoint:
        """Where to bind."""
        return _endpoint("bind", self.bind or "*", DEFAULT_PORT, bind=True)

    @property
    def is_default_port(self) -> bool:
        """Nobody asked for this port, so the next free one will do as well."""
        try:
            parse_endpoint(self.bind or "*", bind=True)
        except BadAddress:
            return True
        return False


def _endpoint(name: str, text: str, default_port: int, *, bind: bool = False) -> Endpoint:
    try:
        return parse_endpoint(text, default_port, bind=bind)
    except BadAddress as error:
        raise ConfigError(f"--{name}: {error}") from None
