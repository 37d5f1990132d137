"""What a request and a streamed token cost the gateway, how much later the first token comes through it, and whether
512 streams at once stand still.

A real `phi3-broker gateway` in front of a real broker and trivial nodes, as it runs by default, encrypted. The gateway
is what is measured, and has one core for itself where there are two or more. With --peers, vllm-router and
sglang-router do what they can do in its place, in front of trivial HTTP backends: they pass bytes on, while the gateway
makes HTTP of the mesh's messages, so this is not the same work. nginx, which only passes bytes on, shows the floor.

With --peers also the demo model behind the gateway, and behind `transformers serve`, which is engine and front door in
one process and cannot be measured apart from its engine. What is compared there is the CPU time of everything: gateway,
broker, node and its engine on our side, and the one process on the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from scripts.benchmarks.cpu import cpu_s, main_thread_s
from scripts.benchmarks.load import LoadClient
from scripts.benchmarks.peers import transformers_serve
from scripts.benchmarks.peers.http_load import HttpLoad, completion
from scripts.benchmarks.peers.routers import start_peers
from scripts.benchmarks.processes import MESH, Stage, add_stage_options, stage
from scripts.benchmarks.spread import Goal, percentile, spread, verdict
from scripts.benchmarks.streams import Take, run_http
from scripts.benchmarks.table import Row, median
from scripts.benchmarks.trivial_node import MODEL

STEP_S = 0.04
NUM_STREAMS = (128, 512)
NUM_TOKENS = 60  # of each stream
NUM_REQUESTS = 3_000  # in one take of whole answers
WINDOW = 64
MAX_ADDED_MS = 3.0
STALL_S = 1.0  # a stream that shows nothing for so long stands still in the eyes of whoever reads it
OURS = "phi3-broker gateway"
_PORTIONS, _PORTION = 10, 20


def add_options(parser: argparse.ArgumentParser) -> None:
    add_stage_options(parser, rounds=5)


@dataclass
class Door:
    """The gateway or what does its work, and what takes of it came to."""

    name: str
    pids: list[int]
    whole: HttpLoad  # asks for one token
    streamed: HttpLoad  # asks for NUM_TOKENS, streamed
    first: HttpLoad  # asks for one token, streamed
    around: Callable[[int], list[float]]  # one by one without the door, as near to its backends as it is
    whole_us: list[tuple[float, float]] = field(default_factory=list)  # all threads, main thread
    per_s: list[float] = field(default_factory=list)
    streams: dict[int, list[Take]] = field(default_factory=dict)
    added_s: list[float] = field(default_factory=list)

    def take(self, *, is_counted: bool) -> None:
        cpu, main = self._cpu()
        seconds = self.whole.keep_in_flight(WINDOW, NUM_REQUESTS)
        now_cpu, now_main = self._cpu()
        takes = {count: run_http(self.streamed, count, self.pids) for count in NUM_STREAMS}
        through: list[float] = []
        around: list[float] = []
        for _ in range(_PORTIONS):
            through += self.first.one_by_one(_PORTION)
            around += self.around(_PORTION)
        if is_counted:
            self.whole_us.append((1e6 * (now_cpu - cpu) / NUM_REQUESTS, 1e6 * (now_main - main) / NUM_REQUESTS))
            self.per_s.append(NUM_REQUESTS / seconds)
            for count, one in takes.items():
                self.streams.setdefault(count, []).append(one)
            self.added_s.append(percentile(through, 0.5) - percentile(around, 0.5))

    def _cpu(self) -> tuple[float, float]:
        return sum(map(cpu_s, self.pids)), sum(map(main_thread_s, self.pids))


def run(options: argparse.Namespace) -> list[Row]:
    with ExitStack() as stack:
        opened = stack.enter_context(stage(is_pinned=not options.unpinned))
        doors = [
            _gateway(opened, options.nodes, stack),
            *(_peers(opened, options.nodes, stack) if options.peers else []),
        ]
        for number in range(options.rounds + 1):
            for door in doors:
                door.take(is_counted=number > 0)  # the first round warms up
    return [
        *[row for door in doors for row in _rows(door)],
        *(_demo_rows(min(options.rounds, 3)) if options.peers else []),
    ]


def _gateway(opened: Stage, num_nodes: int, stack: ExitStack) -> Door:
    nodes = [opened.module("trivial_node", "--step", f"{STEP_S}") for _ in range(num_nodes)]
    broker = opened.broker(nodes, is_measured=False)
    client = LoadClient(broker.address, MESH, home=opened.home)
    client.wait_until_ready(num_nodes)
    stack.callback(client.close)
    gateway = opened.gateway(broker)
    return _door(OURS, gateway.address, [gateway.pid], client.one_by_one, stack)


def _peers(opened: Stage, num_backends: int, stack: ExitStack) -> list[Door]:
    backends = [opened.module("peers.backend", "--step", f"{STEP_S}") for _ in range(num_backends)]
    direct = _load(backends[0].address, stack, stream=True)
    return [
        _door(peer.name, peer.address, peer.pids, direct.one_by_one, stack) for peer in start_peers(opened, backends)
    ]


def _door(name: str, address: str, pids: list[int], around: Callable[[int], list[float]], stack: ExitStack) -> Door:
    load = partial(_load, address, stack)
    return Door(name, pids, load(), load(stream=True, max_tokens=NUM_TOKENS), load(stream=True), around)


def _load(address: str, stack: ExitStack, **body: object) -> HttpLoad:
    load = HttpLoad(address, completion(MODEL, address.removeprefix("http://"), **body))
    stack.callback(load.close)
    return load


# --- the table --------------------------------------------------------------------------------------------------------


def _rows(door: Door) -> list[Row]:
    is_ours = door.name == OURS
    added = [1e3 * one for one in door.added_s]
    goals = [Goal(MAX_ADDED_MS, f"{MAX_ADDED_MS:g} ms to 1st token", median(added))] if is_ours else []
    rows = [
        _row(door.name, f"whole answers, {WINDOW} at once", [one for one, _ in door.whole_us], per_s=door.per_s,
            main_us=[main for _, main in door.whole_us], added_ms=added, goals=goals)
    ]  # fmt: skip
    for count, takes in door.streams.items():
        longest = max(one.longest_gap_s for one in takes)
        goals = [Goal(STALL_S, f"{STALL_S:g} s without a token", longest)] if is_ours and count == 512 else []
        rows.append(
            _row(door.name, f"{count} streams, each token", [one.us_per_token for one in takes],
                main_us=[1e6 * one.main_s / one.tokens for one in takes],
                per_s=[one.tokens / one.seconds for one in takes], gaps=_gaps(takes, longest), goals=goals)
        )  # fmt: skip
    return rows


def _demo_rows(num_rounds: int) -> list[Row]:
    rows: list[Row] = []
    for stack in transformers_serve.measure(num_rounds):
        work = f"demo model, {transformers_serve.NUM_STREAMS} streams, each token"
        rows.append(_row(f"{stack.name}, everything", work, stack.cpu_us, per_s=stack.per_s))
        if stack.without_engine:
            rows.append(_row(f"{stack.name} without its engine", work, stack.front_us, per_s=stack.per_s))
    return rows


def _gaps(takes: Sequence[Take], longest: float) -> str:
    gaps = [gap for one in takes for gap in one.gaps_s]
    return f"{1e3 * median(gaps):.3g} / {1e3 * percentile(gaps, 0.99):.3g} / {1e3 * longest:.3g}"


def _row(
    door: str,
    work: str,
    cpu_us: Sequence[float],
    *,
    per_s: Sequence[float],
    main_us: Sequence[float] = (),
    added_ms: Sequence[float] = (),
    gaps: str = "",
    goals: Sequence[Goal] = (),
) -> Row:
    """One line."""
    return {
        "through": door,
        "work": work,
        "CPU us each": median(cpu_us),
        "from, to": spread(cpu_us),
        "main thread": median(main_us) if main_us else "",
        "per second": median(per_s),
        "added to 1st token, ms": f"{median(added_ms):.3g} ({spread(added_ms)})" if added_ms else "",
        "gap ms p50/p99/max": gaps,
        **verdict(goals),
    }
