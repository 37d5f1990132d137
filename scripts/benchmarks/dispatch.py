"""What one request costs the broker, and how much later an answer comes through it.

A real `phi3-broker serve` in front of trivial nodes that answer each Submit at once with one token, and a client that
keeps requests in flight, in messages of 1, 16 and 64. Beside it, in turns within the same run, `zmq.proxy` between the
same client and the same nodes: what it passes on has the same bytes, without the broker's and the nodes' Accepted.
The figure is CPU time of the whole process, I/O threads included. Nothing of what is compared is encrypted; the
broker as it runs by default, with CURVE to both sides, has lines of its own. With --peers, HTTP routers do the same
work in front of trivial HTTP backends, for as many callers as there are requests in flight, on kept connections.

What is measured has one core for itself where there are two or more; client and nodes run on the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from scripts.benchmarks.cpu import cpu_s, main_thread_s
from scripts.benchmarks.load import LoadClient
from scripts.benchmarks.peers.http_load import HttpLoad, completion
from scripts.benchmarks.peers.routers import Peer, start_peers
from scripts.benchmarks.processes import MESH, Stage, add_stage_options, stage
from scripts.benchmarks.spread import Goal, percentile, spread, verdict
from scripts.benchmarks.table import Row, median

SIZES = {1: 5_000, 16: 8_000, 64: 16_000}  # requests per message: requests in one take
PROXY = "zmq.proxy"
MAX_US = {1: 100.0, 64: 12.0}
MAX_OVER_PROXY = 4.5
RUST = ("vllm-router", "sglang-router")  # a single request must cost at most half of what it costs in these
OURS, OURS_PLAIN = "phi3-broker", "phi3-broker, no encryption"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_stage_options(parser, rounds=7)
    parser.add_argument(
        "--window",
        type=int,
        default=64,
        help="requests in flight, or 4 messages if that is more (default: %(default)s)",
    )


@dataclass
class Way:
    """One line of the table: something between a client and nodes, driven in one manner."""

    name: str
    pids: list[int]
    num_requests: int
    drive: Callable[[], float]  # has so many requests answered; returns seconds
    cpu_us: list[float] = field(default_factory=list)
    main_us: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    added_us: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))  # p50 and p99 of each round
    per_message: int = 1

    def take(self, *, is_counted: bool) -> None:
        """One take."""
        cpu, main = self._cpu_s(), sum(main_thread_s(pid) for pid in self.pids)
        seconds = self.drive()
        cpu, main = self._cpu_s() - cpu, sum(main_thread_s(pid) for pid in self.pids) - main
        if is_counted:
            self.cpu_us.append(1e6 * cpu / self.num_requests)
            self.main_us.append(1e6 * main / self.num_requests)
            self.per_s.append(self.num_requests / seconds)

    def _cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self.pids)


class Asks(Protocol):
    """A client, of the mesh or of HTTP."""

    def one_by_one(self, num_requests: int) -> list[float]: ...
    def close(self) -> None: ...


@dataclass
class Route:
    """A way to the nodes, and the way around it: to one of the same nodes directly."""

    ways: list[Way]
    through: Asks
    direct: Asks

    def compare_latency(self, *, is_counted: bool) -> None:
        """In small portions by turns, so that both meet the same noise."""
        through: list[float] = []
        direct: list[float] = []
        for _ in range(_PORTIONS):
            through += self.through.one_by_one(_PORTION)
            direct += self.direct.one_by_one(_PORTION)
        if is_counted:
            for share, added in zip((0.5, 0.99), self.ways[0].added_us, strict=True):
                added.append(1e6 * (percentile(through, share) - percentile(direct, share)))


_PORTIONS, _PORTION = 10, 40


def run(options: argparse.Namespace) -> list[Row]:
    with ExitStack() as stack:
        opened = stack.enter_context(stage(is_pinned=not options.unpinned))
        routes = [
            _proxy(opened, options),
            _broker(opened, options, is_insecure=True),
            _broker(opened, options, is_insecure=False),
        ]
        if options.peers:
            backends = [opened.module("peers.backend") for _ in range(options.nodes)]
            routes += [_peer(peer, backends[0].address, options.window) for peer in start_peers(opened, backends)]
        for client in (client for route in routes for client in (route.through, route.direct)):
            stack.callback(client.close)
        ways = [way for route in routes for way in route.ways]
        for number in range(options.rounds + 1):
            for way in ways:
                way.take(is_counted=number > 0)  # the first round warms up
            for route in routes:
                route.compare_latency(is_counted=number > 0)
    return _rows(ways)


def _broker(opened: Stage, options: argparse.Namespace, *, is_insecure: bool) -> Route:
    plain = ["--insecure"] if is_insecure else []
    nodes = [opened.module("trivial_node", "--tokens", "1", *plain) for _ in range(options.nodes)]
    broker = opened.broker(nodes, *plain)
    home = None if is_insecure else opened.home
    client, direct = (LoadClient(member.address, MESH, home=home) for member in (broker, nodes[0]))
    client.wait_until_ready(len(nodes))
    ways = [
        Way(
            OURS_PLAIN if is_insecure else OURS,
            [broker.pid],
            count,
            _driver(client, options.window, size, count),
            per_message=size,
        )
        for size, count in SIZES.items()
    ]
    return Route(ways, client, direct)


def _proxy(opened: Stage, options: argparse.Namespace) -> Route:
    echo = ("--tokens", "1", "--insecure", "--no-accepted")
    nodes = [opened.module("trivial_node", *echo) for _ in range(options.nodes)]
    known = [word for node in nodes for word in ("--node", node.address)]
    proxy = opened.module("trivial_proxy", *known, is_measured=True)
    client, direct = (LoadClient(member.address, MESH, home=None, greets=False) for member in (proxy, nodes[0]))
    count = 2 * SIZES[1]
    return Route([Way(PROXY, [proxy.pid], count, _driver(client, options.window, 1, count))], client, direct)


def _peer(peer: Peer, backend: str, window: int) -> Route:
    client, direct = (HttpLoad(address, completion("trivial", address)) for address in (peer.address, backend))
    count = SIZES[1]
    return Route([Way(peer.name, peer.pids, count, lambda: client.keep_in_flight(window, count))], client, direct)


def _driver(client: LoadClient, window: int, per_message: int, num_requests: int) -> Callable[[], float]:
    return lambda: client.keep_in_flight(max(window, 4 * per_message), per_message, num_requests)


def _rows(ways: list[Way]) -> list[Row]:
    cost = {(way.name, way.per_message): median(way.cpu_us) for way in ways}
    proxy_us = cost[PROXY, 1]
    rivals = {way.name: median(way.cpu_us) for way in ways if way.name.startswith(RUST)}
    rows: list[Row] = []
    for way in ways:
        value = cost[way.name, way.per_message]
        added = [median(values) if way.per_message == 1 else "" for values in way.added_us]
        rows.append(
            {
                "through": way.name,
                "per message": f"{way.per_message}",
                "CPU us/request": value,
                "from, to": spread(way.cpu_us),
                "main thread": median(way.main_us),
                "requests/s": median(way.per_s),
                "added us p50": added[0],
                "p99": added[1],
                f"x {PROXY}": value / proxy_us,
                **verdict(_goals(way.per_message, value, proxy_us, rivals) if way.name == OURS_PLAIN else []),
            }
        )
    return rows


def _goals(per_message: int, value: float, proxy_us: float, rivals: dict[str, float]) -> list[Goal]:
    goals = [Goal(MAX_US[per_message], f"{MAX_US[per_message]:g} us", value)] if per_message in MAX_US else []
    if per_message == 1:
        goals.append(Goal(MAX_OVER_PROXY * proxy_us, f"{MAX_OVER_PROXY:g} x {PROXY}", value))
        goals += [Goal(us / 2, f"1/2 of {name.split()[0]}", value) for name, us in rivals.items()]
    elif per_message == 64:
        goals.append(Goal(proxy_us, f"1 x {PROXY}", value))
    return goals
