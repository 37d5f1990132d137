"""What a run is told, and the numbers that all of its parts must agree on."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

MODEL = "chaos"
HEARTBEAT_S, LIVENESS = 0.5, 3  # the defaults of the mesh
NODE_STALL_S, BROKER_STALL_S = 2.0, 4.0  # shorter than the defaults: a run has no minute to wait for each hang
ANSWER_WITHIN_S = 90.0  # no ending by then: the request is lost
SETTLE_S = 4.0  # at the end of a run, without faults


@dataclass(frozen=True, slots=True)
class Options:
    minutes: float
    seed: int
    num_nodes: int
    num_brokers: int
    num_clients: int
    num_tasks: int  # requests that each client keeps in flight
    is_netns: bool
    has_faults: bool
    burns_cpu: bool
    json_path: Path | None
    logs: Path | None


def parse(argv: list[str] | None = None) -> Options:
    """Ends the process with status 2 for a wrong option, as argparse does."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.description = "Start a mesh, keep a load on it, inject faults, and check every answer token by token."
    parser.add_argument("--minutes", type=float, default=2.0, metavar="M")
    parser.add_argument("--seed", type=int, help="of the schedule and of the requests (default: a new one, printed)")
    parser.add_argument("--nodes", type=int, default=4, metavar="N")
    parser.add_argument("--brokers", type=int, default=2, metavar="B")
    parser.add_argument("--clients", type=int, default=3, metavar="C", help="client processes (default: 3)")
    parser.add_argument("--load", type=int, default=12, metavar="R", help="requests in flight per client (default: 12)")
    parser.add_argument("--netns", action="store_true", help="a network namespace for each member, found by mDNS")
    parser.add_argument("--no-faults", action="store_true", help="count false alarms: any node declared lost is one")
    parser.add_argument("--burn", action="store_true", help="keep every core busy besides")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of all members there")
    given = parser.parse_args(argv)
    if given.minutes <= 0 or min(given.clients, given.load) < 1:
        parser.error("--minutes, --clients and --load must be positive")
    if given.nodes < 2 or given.brokers < 1:
        parser.error("two nodes and a broker at least: one must be left when the other fails")
    return Options(
        minutes=given.minutes,
        seed=random.randrange(10**6) if given.seed is None else given.seed,
        num_nodes=given.nodes,
        num_brokers=given.brokers,
        num_clients=given.clients,
        num_tasks=given.load,
        is_netns=given.netns,
        has_faults=not given.no_faults,
        burns_cpu=given.burn,
        json_path=given.json,
        logs=given.logs,
    )
