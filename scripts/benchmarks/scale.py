"""1 to 64 synthetic nodes behind one broker, with more work than they have room for.

Each node is what a GPU host runs, an agent and a worker process, so 64 of them are 128 processes beside broker and
client. A step of 100 ms for 16 sequences is slow enough that two cores carry all of them: what is measured is whether
slots are filled, not how fast Python is. What a node can do alone is the pace of its engine: slots / step. Answers have
10 to 30 tokens, so that sequences do not end together.

Every figure is taken between the first second and the moment at which the broker's queue runs empty. A little more than
1 is possible: an engine makes up for steps that came late before that second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from dataclasses import dataclass

import psutil

from mesh import Completion
from scripts.benchmarks.local_mesh import LocalMesh, local_mesh
from scripts.benchmarks.processes import Member
from scripts.benchmarks.table import Row

COUNTS = (1, 2, 4, 8, 16, 32, 64)
SLOTS, STEP_S = 16, 0.1
PREFETCH = SLOTS // 8  # what broker and node hold ready beyond the slots, by default
TOKENS = (10, 30)
WARM_UP_S = 1.0
WINDOW_S = 5.0
FLOOR, FLOOR_FROM_32 = 0.98, 0.92  # of the sum of what the nodes can do alone
UTILISATION_FLOOR = 0.99


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-nodes", type=int, default=COUNTS[-1], metavar="N", help="leave out larger meshes")


def run(options: argparse.Namespace) -> list[Row]:
    counts = [count for count in COUNTS if count <= options.max_nodes]
    rows: list[Row] = []
    with local_mesh() as mesh:
        nodes = mesh.synthetic(
            [f"n{number}" for number in range(max(counts))],
            *("--device", "instant", "--slots", f"{SLOTS}", "--synthetic", f"step_base_s={STEP_S}"),
        )
        broker = mesh.broker_of(nodes)
        with mesh.client(broker) as operator:
            for count in reversed(counts):  # a node that is drained stays so
                for node in nodes[count:]:
                    operator.drain(node.name)
                del nodes[count:]
                rows.append(_row(count, asyncio.run(_measure(mesh, broker, count))))
    return rows[::-1]


@dataclass(frozen=True, slots=True)
class _Answer:
    """When one request had its slot."""

    node: str
    num_tokens: int
    first_token_at: float
    ended_at: float

    @property
    def began_at(self) -> float:
        return self.first_token_at - STEP_S

    def share_in(self, start: float, stop: float) -> float:
        """Of its time in the slot, in which it gets a token each step."""
        overlap_s = min(stop, self.ended_at) - max(start, self.began_at)
        return max(0.0, overlap_s) / (self.ended_at - self.began_at)


@dataclass(frozen=True, slots=True)
class _Measured:
    answers: list[_Answer]
    processor_share: float  # of all cores


async def _measure(mesh: LocalMesh, broker: Member, count: int) -> _Measured:
    rng = random.Random(count)
    num_requests = int(count * SLOTS / STEP_S * (WARM_UP_S + WINDOW_S) / (sum(TOKENS) / 2)) + 2 * count * PREFETCH
    prompts = [{"prompt": f"prompt {i}", "max_tokens": rng.randint(*TOKENS)} for i in range(num_requests)]
    answers = []
    psutil.cpu_percent()  # counts from here
    async with mesh.async_client(broker) as client, client.as_completed(prompts, ignore_eos=True) as results:
        async for _, outcome in results:
            if not isinstance(outcome, Completion):
                raise outcome
            now = time.monotonic()
            first_token_at = now - outcome.total_s + outcome.ttft_s
            answers.append(_Answer(outcome.node, outcome.usage.completion_tokens, first_token_at, now))
            if len(answers) == num_requests - count * SLOTS:
                processor_share = psutil.cpu_percent() / 100
    return _Measured(answers, processor_share)


def _row(count: int, measured: _Measured) -> Row:
    answers = sorted(measured.answers, key=lambda answer: answer.began_at)
    start = answers[0].began_at + WARM_UP_S
    stop = answers[-2 * count * PREFETCH].began_at  # what began after it was waiting at a node, not at the broker
    window_s = stop - start
    tokens = sum(answer.num_tokens * answer.share_in(start, stop) for answer in answers)
    slot_s: dict[str, float] = {}
    for answer in answers:
        occupied_s = answer.share_in(start, stop) * (answer.ended_at - answer.began_at)
        slot_s[answer.node] = slot_s.get(answer.node, 0.0) + occupied_s
    ratio = tokens / window_s / (count * SLOTS / STEP_S)
    utilisation = sum(slot_s.values()) / (count * SLOTS * window_s)
    floor = FLOOR if count <= 16 else FLOOR_FROM_32
    return {
        "nodes": f"{count}",
        "tokens/s": tokens / window_s,
        "of the sum alone": ratio,
        "at least": floor,
        "slots full": utilisation,
        "at least ": UTILISATION_FLOOR,
        "met": "yes" if ratio >= floor and utilisation >= UTILISATION_FLOOR and len(slot_s) == count else "NO",
        "balance max/min": max(slot_s.values()) / min(slot_s.values()),
        "window s": window_s,
        f"of {os.cpu_count()} cores": measured.processor_share,
    }
