"""What one relayed token costs the broker, and what a reader notices of it: the first token later, uneven gaps.

A real `phi3-broker serve` in front of trivial nodes that step every 20 ms and send each client one message with the
tokens of all its streams, as a node does after each step of its engine. While as many streams run, another process
asks for single tokens, by turns through the broker and directly at a node: the difference is what the broker adds to
a first token. Gaps are between two messages of one stream; beside them those of clients that are connected to the nodes
themselves. With --peers, HTTP routers relay the same tokens, one event for each, on one connection for each stream.

What is measured has one core for itself where there are two or more. Nothing of what is compared is encrypted; the
broker as it runs by default, with CURVE to both sides, has lines of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from scripts.benchmarks.load import LoadClient
from scripts.benchmarks.peers.http_load import HttpLoad, completion
from scripts.benchmarks.peers.routers import start_peers
from scripts.benchmarks.processes import MESH, Member, Stage, add_stage_options, stage
from scripts.benchmarks.spread import Goal, percentile, spread, verdict
from scripts.benchmarks.streams import Take, run_http, run_mesh
from scripts.benchmarks.table import Row, median

STEP_S = 0.02
NUM_STREAMS = (1, 16, 64, 128, 256, 1024)
NUM_CLIENTS = (1, 4, 16)
SHOWN = 256  # streams for which there are targets
NUM_HTTP_STREAMS = 128
MAX_US_PER_TOKEN = 2.0
MAX_ADDED_MS = {0.5: 1.0, 0.99: 5.0}
OURS, OURS_PLAIN, DIRECT = "phi3-broker", "phi3-broker, no encryption", "nothing"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_stage_options(parser, rounds=5)
    parser.add_argument("--tokens", type=int, default=120, help="tokens of each stream (default: %(default)s)")


@dataclass
class Case:
    """One line of the table."""

    through: str
    num_streams: int
    num_clients: int
    run: Callable[[], Take]
    takes: list[Take] = field(default_factory=list)


@dataclass
class Mesh:
    """A broker with its nodes."""

    name: str
    broker: Member
    nodes: list[Member]
    home: Path | None
    added_s: list[tuple[float, ...]] = field(default_factory=list)  # to a first token, at each share of MAX_ADDED_MS

    def case(self, num_streams: int, num_clients: int, num_tokens: int) -> Case:
        run = partial(
            run_mesh, [self.broker.address], MESH, self.home,
            num_streams=num_streams, num_clients=num_clients, num_tokens=num_tokens, pids=[self.broker.pid],
        )  # fmt: skip
        return Case(self.name, num_streams, num_clients, run)

    def around(self, num_streams: int, num_clients: int, num_tokens: int) -> Case:
        """The same with the clients at the nodes themselves."""
        run = partial(
            run_mesh, [node.address for node in self.nodes], MESH, self.home,
            num_streams=num_streams, num_clients=num_clients, num_tokens=num_tokens,
        )  # fmt: skip
        return Case(DIRECT, num_streams, num_clients, run)


def run(options: argparse.Namespace) -> list[Row]:
    with ExitStack() as stack:
        opened = stack.enter_context(stage(is_pinned=not options.unpinned))
        plain, closed = (_start_mesh(opened, options.nodes, is_insecure=insecure) for insecure in (True, False))
        cases = [
            *[plain.case(s, c, options.tokens) for s in NUM_STREAMS for c in NUM_CLIENTS if c <= s],
            *[closed.case(SHOWN, c, options.tokens) for c in NUM_CLIENTS],
            *[plain.around(SHOWN, c, options.tokens) for c in NUM_CLIENTS if c >= options.nodes],
            *(_peers(opened, options, stack) if options.peers else []),
        ]
        for _ in range(options.rounds):
            for case in cases:
                case.takes.append(case.run())
            for mesh in (plain, closed):
                mesh.added_s.append(_added_to_first_token(mesh))
    return [*[_row(case) for case in cases], *[row for mesh in (plain, closed) for row in _first_token_rows(mesh)]]


def _start_mesh(opened: Stage, num_nodes: int, *, is_insecure: bool) -> Mesh:
    plain = ["--insecure"] if is_insecure else []
    nodes = [opened.module("trivial_node", "--step", f"{STEP_S}", *plain) for _ in range(num_nodes)]
    broker = opened.broker(nodes, *plain)
    home = None if is_insecure else opened.home
    client = LoadClient(broker.address, MESH, home=home)
    client.wait_until_ready(num_nodes)
    client.close()
    return Mesh(OURS_PLAIN if is_insecure else OURS, broker, nodes, home)


def _peers(opened: Stage, options: argparse.Namespace, stack: ExitStack) -> list[Case]:
    backends = [opened.module("peers.backend", "--step", f"{STEP_S}") for _ in range(options.nodes)]
    cases = []
    for peer in start_peers(opened, backends):
        load = HttpLoad(peer.address, completion("trivial", peer.address, stream=True, max_tokens=options.tokens))
        stack.callback(load.close)
        run = partial(run_http, load, NUM_HTTP_STREAMS, peer.pids)
        cases.append(Case(peer.name, NUM_HTTP_STREAMS, NUM_HTTP_STREAMS, run))
    return cases


# --- the first token --------------------------------------------------------------------------------------------------

_NUM_PROBES, _PORTION = 300, 10
_PAUSE_S = 0.003  # between two of them, so that they fall on any moment of a step


def _added_to_first_token(mesh: Mesh) -> tuple[float, ...]:
    """Seconds, at each share of MAX_ADDED_MS, while the streams of SHOWN run."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, mesh.broker.address, mesh.nodes[0].address, mesh.home)
    probe = context.Process(target=_probe, args=arguments, daemon=True)
    probe.start()
    theirs.close()  # so that its death is the end of what can be read
    ours.recv()  # it has imported and connected all it needs
    ours.send("go")
    background = mesh.case(SHOWN, max(NUM_CLIENTS), 200)
    while not ours.poll():
        background.run()
    through, direct = ours.recv()
    probe.join()
    return tuple([percentile(through, share) - percentile(direct, share) for share in MAX_ADDED_MS])


def _probe(pipe: Connection, broker: str, node: str, home: Path | None) -> None:
    """In a process of its own: single tokens, by turns through the broker and directly."""
    clients = [LoadClient(address, MESH, home=home) for address in (broker, node)]
    pipe.send("ready")
    pipe.recv()
    time.sleep(0.3)  # until the streams run
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_NUM_PROBES // _PORTION):
        for client, taken in zip(clients, times, strict=True):
            for _ in range(_PORTION):
                taken += client.one_by_one(1)
                time.sleep(_PAUSE_S)
    pipe.send(times)
    for client in clients:
        client.close()


# --- the table --------------------------------------------------------------------------------------------------------


def _row(case: Case) -> Row:
    gaps = [gap for one in case.takes for gap in one.gaps_s]
    figures: Row = dict.fromkeys(("CPU us/token", "from, to", "main thread"), "")
    goals = []
    if case.through != DIRECT:
        per_token = [one.us_per_token for one in case.takes]
        main = median([1e6 * one.main_s / one.tokens for one in case.takes])
        figures = {"CPU us/token": median(per_token), "from, to": spread(per_token), "main thread": main}
        if case.num_streams == SHOWN:
            goals = [Goal(MAX_US_PER_TOKEN, f"{MAX_US_PER_TOKEN:g} us", median(per_token))]
    return {
        "through": case.through,
        "streams": f"{case.num_streams}",
        "clients": f"{case.num_clients}",
        **figures,
        "tokens/s": median([one.tokens / one.seconds for one in case.takes]),
        "gap ms p50": 1e3 * median(gaps),
        "p99": 1e3 * percentile(gaps, 0.99),
        "max": 1e3 * max(gaps),
        "added to 1st token, ms": "",
        **verdict(goals),
    }


def _first_token_rows(mesh: Mesh) -> list[Row]:
    rows: list[Row] = []
    for index, (share, limit) in enumerate(MAX_ADDED_MS.items()):
        values = [1e3 * one[index] for one in mesh.added_s]
        rows.append(
            {
                "through": mesh.name,
                "streams": f"{SHOWN}",
                "clients": f"{max(NUM_CLIENTS)}",
                **dict.fromkeys(
                    ("CPU us/token", "from, to", "main thread", "tokens/s", "gap ms p50", "p99", "max"), ""
                ),
                "added to 1st token, ms": f"p{100 * share:.0f}: {median(values):.3g} ({spread(values)})",
                **verdict([Goal(limit, f"p{100 * share:.0f} {limit:g} ms", median(values))]),
            }
        )
    return rows
