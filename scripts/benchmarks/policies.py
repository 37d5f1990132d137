"""Every dispatch policy on mixed lengths over mixed GPUs: an A10G, an A100 and an H200, as synthetic nodes.

Each policy gets a fresh broker and twice the same seeded work: first a backlog, which tells the throughput; then
requests that come at random (Poisson) at 75 % of what the nodes did with the backlog under the first policy, which
tells latencies. The cards keep their own pace and an eighth of their slots, or two cores could not feed them.

A p99 of some hundred requests moves by some percent from run to run, which counts as a tie here;
`--seconds 60 --only …` compares two policies better. Synthetic nodes report no memory, so least-memory decides by load.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from broker.dispatch import DEFAULT_POLICY, POLICIES
from mesh import AsyncClient, Completion
from node.engine.synthetic import PRESETS
from scripts.benchmarks.local_mesh import LocalMesh, local_mesh
from scripts.benchmarks.processes import Member
from scripts.benchmarks.table import Row, median

CARDS = ("a10g", "a100", "h200")
SLOTS_DIVISOR = 8
LOAD = 0.75
BACKLOG = 250
OPEN_S = 6.0
NUM_KEYS = 64  # conversations, for the policy that keeps each on one node
PROMPT_BYTES = (200, 1.0, 2000)  # median and sigma of a log-normal distribution, most
TOKENS = (25, 0.9, 200)
WINNERS = ("least-work", "least-connections")  # one of these must be the best at p99
TIE = 1.05


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--load", type=float, default=LOAD, help="of the capacity, in the open part")
    parser.add_argument("--seconds", type=float, default=OPEN_S, metavar="S", help="length of the open part")
    parser.add_argument("--only", nargs="+", choices=POLICIES, default=list(POLICIES), help="some policies")


def run(options: argparse.Namespace) -> list[Row]:
    names = sorted(options.only, key=lambda name: name != DEFAULT_POLICY)
    results: dict[str, _Result] = {}
    with local_mesh() as mesh:
        nodes = mesh.nodes({card: _card_options(card) for card in CARDS})
        rate = 0.0
        for name in names:
            broker = mesh.broker_of(nodes, "--policy", name)
            throughput = asyncio.run(_backlog(mesh, broker))
            rate = rate or options.load * throughput
            results[name] = asyncio.run(_open(mesh, broker, rate, options.seconds, throughput))
            mesh.stop(broker)
    best_s = min(result.p99_s for result in results.values())
    return [_row(name, result, best_s) for name, result in results.items()]


def _card_options(card: str) -> Sequence[str]:
    slots = int(PRESETS[card].slots) // SLOTS_DIVISOR
    return ("--engine", "synthetic", "--model", "synthetic", "--device", card, "--slots", f"{slots}")


@dataclass(frozen=True, slots=True)
class _Result:
    backlog_per_s: float
    latencies: Sequence[float]  # ascending
    nodes: Counter[str]

    @property
    def p50_s(self) -> float:
        return median(self.latencies)

    @property
    def p99_s(self) -> float:
        return self.latencies[int(0.99 * len(self.latencies))]


class _Work:
    """The same requests for everybody."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def request(self) -> dict[str, object]:
        return {
            "prompt": "x" * self._length(*PROMPT_BYTES),
            "max_tokens": self._length(*TOKENS),
            "ignore_eos": True,
            "affinity": f"{self._rng.randrange(NUM_KEYS)}",
        }

    def pause_s(self, rate: float) -> float:
        return self._rng.expovariate(rate)

    def _length(self, middle: int, sigma: float, most: int) -> int:
        return max(1, min(most, round(middle * self._rng.lognormvariate(0, sigma))))


async def _backlog(mesh: LocalMesh, broker: Member) -> float:
    """Requests/s while all slots are wanted: from the first eighth of the answers to the last."""
    work = _Work(1)
    requests = [work.request() for _ in range(BACKLOG)]
    ended: list[float] = []
    async with mesh.async_client(broker) as client:
        async for _, outcome in client.as_completed(requests):
            if not isinstance(outcome, Completion):
                raise outcome
            ended.append(time.monotonic())
    first, last = BACKLOG // 8, BACKLOG * 7 // 8
    return (last - first) / (ended[last] - ended[first])


async def _open(mesh: LocalMesh, broker: Member, rate: float, seconds: float, backlog_per_s: float) -> _Result:
    work = _Work(2)
    latencies: list[float] = []
    nodes: Counter[str] = Counter()

    async def ask(client: AsyncClient, due: float, request: dict[str, object]) -> None:
        (_, outcome), *_ = [result async for result in client.as_completed([request])]
        if not isinstance(outcome, Completion):
            raise outcome
        latencies.append(time.monotonic() - due)
        nodes[outcome.node] += 1

    async with mesh.async_client(broker) as client, asyncio.TaskGroup() as tasks:
        await client.status()
        due = began = time.monotonic()
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.create_task(ask(client, due, work.request()))
            due += work.pause_s(rate)
    return _Result(backlog_per_s, sorted(latencies), nodes)


def _row(name: str, result: _Result, best_s: float) -> Row:
    shares = "/".join(f"{100 * result.nodes[card] / result.nodes.total():.0f}" for card in CARDS)
    return {
        "policy": name,
        "backlog req/s": result.backlog_per_s,
        "p50 ms": 1000 * result.p50_s,
        "p99 ms": 1000 * result.p99_s,
        "p99 / best": result.p99_s / best_s,
        f"% on {'/'.join(CARDS)}": shares,
        "one of these must be best": f"at most {TIE}" if name in WINNERS else "",
        "is": ("yes" if result.p99_s <= TIE * best_s else "no") if name in WINNERS else "",
    }
