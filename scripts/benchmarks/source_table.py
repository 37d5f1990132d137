"""The source documents' comparison, rebuilt with synthetic A100s: one card, four cards without balancing, the mesh.

The documents' own figures (1,000 conversations, four A100): 12.5 requests/s, 320 ms and 45 % utilisation on one card;
38.2, 210 ms, 68 % on four without balancing; 52.7, 95 ms, 92 % with it. They do not say how many callers there were, so
here all rows have the same 32, each with one request at a time and the next one as soon as it is answered:

- one card, one request at a time: what the first document's server does, a `model.generate` for each call;
- one card with batching, 8 at once, as both other documents configure it; so that what batching gives and what the mesh
  gives can be told apart;
- four such cards, each caller bound to one of them: half of the callers to the first, a quarter to the second. A
  caller's work is what it is, so cards whose callers are done stand idle;
- four such cards behind a broker.

A request alone takes the documents' 320 ms: about 300 prompt tokens and 38 generated ones. No balancing can make that
shorter; the latency that falls is the waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mesh import AsyncClient, Completion
from node.engine.synthetic import PRESETS
from scripts.benchmarks.local_mesh import LocalMesh, local_mesh
from scripts.benchmarks.processes import Member
from scripts.benchmarks.table import Row, median

CARD = PRESETS["a100"]
SLOTS = 8
NUM_CARDS = 4
NUM_CALLERS = 32
BOUND = (16, 8, 5, 3)  # callers of each card
REQUESTS_EACH = 30
REQUESTS_EACH_SLOW = 2  # where one is answered at a time: the figures are per request, and nobody waits for 960
PROMPT_BYTES, TOKENS = (200, 400), (26, 50)
MIN_THROUGHPUT, MAX_LATENCY, MIN_UTILISATION = 4.2, 0.3, 0.95  # of the mesh, against the first row


def run(options: argparse.Namespace) -> list[Row]:
    del options
    with local_mesh() as mesh:
        serial = _cards(mesh, ["card-serial"], slots=1)
        cards = _cards(mesh, [f"card-{number}" for number in range(NUM_CARDS)], slots=SLOTS)
        broker = mesh.broker_of(cards)
        everybody = [NUM_CALLERS]
        results = {
            "one card, one request at a time": _measure(mesh, serial, everybody, REQUESTS_EACH_SLOW, 1),
            f"one card, {SLOTS} at once": _measure(mesh, cards[:1], everybody, REQUESTS_EACH // NUM_CARDS, 1),
            "four cards, callers bound to cards": _measure(mesh, cards, BOUND, REQUESTS_EACH, NUM_CARDS),
            "the mesh on four cards": _measure(mesh, [broker], everybody, REQUESTS_EACH, NUM_CARDS),
        }
    first, *_, last = results.values()
    return [_row(name, result, first, is_judged=result is last) for name, result in results.items()]


def _cards(mesh: LocalMesh, names: Sequence[str], slots: int) -> list[Member]:
    return mesh.synthetic(names, "--device", "a100", "--slots", f"{slots}")


@dataclass(frozen=True, slots=True)
class _Result:
    requests_per_s: float
    latency_s: float
    busy: float  # share of the time in which a card was computing, mean over the cards


def _measure(
    mesh: LocalMesh, servers: Sequence[Member], callers: Sequence[int], num_each: int, num_cards: int
) -> _Result:
    return asyncio.run(_call(mesh, servers, callers, num_each, num_cards))


async def _call(
    mesh: LocalMesh, servers: Sequence[Member], callers: Sequence[int], num_each: int, num_cards: int
) -> _Result:
    """So many callers at each server, each with so many requests one after the other."""
    latencies: list[float] = []
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)

    async def call(client: AsyncClient, number: int) -> None:
        rng = random.Random(number)
        for _ in range(num_each):
            prompt, num_tokens = "x" * rng.randint(*PROMPT_BYTES), rng.randint(*TOKENS)
            answer = await client.generate(prompt, max_tokens=num_tokens, ignore_eos=True)
            latencies.append(answer.total_s)
            spans[answer.node].append(_span(answer, time.monotonic()))

    clients = [mesh.async_client(server) for server in servers]
    for client in clients:
        await client.status()  # connected before the clock starts
    numbers = iter(range(NUM_CALLERS))
    began = time.monotonic()
    await asyncio.gather(
        *(call(client, next(numbers)) for client, count in zip(clients, callers, strict=True) for _ in range(count))
    )
    took_s = time.monotonic() - began
    for client in clients:
        await client.close()
    busy_s = sum(_covered_s(of_card) for of_card in spans.values())
    return _Result(len(latencies) / took_s, median(latencies), busy_s / (num_cards * took_s))


def _span(answer: Completion, ended_at: float) -> tuple[float, float]:
    """When the card worked on it: from the step that prefilled it to its last token."""
    first_step_s = CARD.step_s(1, answer.usage.prompt_tokens, 0)
    return ended_at - answer.total_s + answer.ttft_s - first_step_s, ended_at


def _covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union."""
    total, covered_until = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, covered_until))
        covered_until = max(covered_until, stop)
    return total


def _row(name: str, result: _Result, first: _Result, *, is_judged: bool) -> Row:
    throughput = result.requests_per_s / first.requests_per_s
    latency = result.latency_s / first.latency_s
    is_met = throughput >= MIN_THROUGHPUT and latency <= MAX_LATENCY and result.busy >= MIN_UTILISATION
    return {
        "setup": name,
        "req/s": result.requests_per_s,
        "x first": throughput,
        "latency ms": 1000 * result.latency_s,
        "against first": f"{100 * (latency - 1):+.0f} %",
        "busy": result.busy,
        "must reach": f"{MIN_THROUGHPUT} x, {100 * (MAX_LATENCY - 1):.0f} %, {MIN_UTILISATION}" if is_judged else "",
        "met": ("yes" if is_met else "NO") if is_judged else "",
    }
