"""generate_batch of 10,000 prompts through a broker to four nodes: time, memory, and how large the messages get.

The client is a process of its own, whose messages are counted where they leave and arrive. Then the same with fewer and
much longer prompts, because a message must stay small in bytes too: a heartbeat waits behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from mesh import AsyncClient
from mesh.codec import decode
from mesh.link import Frames, Link
from mesh.messages import Submit, Tokens
from scripts.benchmarks.local_mesh import local_mesh, memory_bytes, peak_memory_bytes, reset_peak_memory
from scripts.benchmarks.processes import MESH
from scripts.benchmarks.prose import prose
from scripts.benchmarks.table import Row

CASES = ((10_000, 200), (500, 100_000))  # prompts, characters each
NUM_TOKENS = 8
NUM_NODES, SLOTS, STEP_S = 4, 64, 0.02
MAX_MESSAGE_BYTES = 2 << 20
MAX_CLIENT_BYTES = 16 << 10  # for each prompt, beside two copies of its words: in the body, and on its way out


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, metavar="N", help="one case of so many prompts instead")
    parser.add_argument("--characters", type=int, default=CASES[0][1], metavar="N", help="of each of these")


def run(options: argparse.Namespace) -> list[Row]:
    cases = CASES if options.prompts is None else ((options.prompts, options.characters),)
    rows = []
    with local_mesh() as mesh:
        nodes = mesh.synthetic(
            [f"n{number}" for number in range(NUM_NODES)],
            *("--device", "instant", "--slots", f"{SLOTS}", "--synthetic", f"step_base_s={STEP_S}"),
            *("--max-model-len", "200000", "--max-batch-tokens", "100000000", "--synthetic", "cache_tokens=1e9"),
        )
        broker = mesh.broker_of(nodes)
        for num_prompts, num_characters in cases:
            reset_peak_memory(broker.pid)
            before = memory_bytes(broker.pid)
            result = _in_a_process(broker.address, mesh.token, num_prompts, num_characters)
            rows.append(_row(num_prompts, num_characters, result, peak_memory_bytes(broker.pid) - before))
    return rows


@dataclass(frozen=True, slots=True)
class _Result:
    seconds: float
    cpu_s: float
    peak_bytes: int  # more than before the call, when the prompts were there
    sent: Sequence[tuple[int, int]]  # requests and bytes of each Submit
    received: Sequence[tuple[int, int]]  # endings and bytes of each Tokens
    nodes: dict[str, int]


def _in_a_process(address: str, token: str, num_prompts: int, num_characters: int) -> _Result:
    ours, theirs = multiprocessing.Pipe()
    arguments = (address, token, num_prompts, num_characters, theirs)
    process = multiprocessing.get_context("spawn").Process(target=_client, args=arguments, daemon=True)
    process.start()
    theirs.close()
    result: _Result = ours.recv()
    process.join()
    return result


def _client(address: str, token: str, num_prompts: int, num_characters: int, pipe: Connection) -> None:
    prompts = [prose(num_characters, 997 * number) for number in range(num_prompts)]
    pipe.send(asyncio.run(_measure(address, token, prompts)))


async def _measure(address: str, token: str, prompts: Sequence[str]) -> _Result:
    sent, received = _tap()
    async with AsyncClient(address, mesh=MESH, token=token, insecure=False) as client:
        await client.generate("connect", max_tokens=1)
        sent.clear()
        received.clear()
        reset_peak_memory(os.getpid())
        before = memory_bytes(os.getpid())
        cpu, wall = time.process_time(), time.perf_counter()
        answers = await client.generate_batch(prompts, max_tokens=NUM_TOKENS, ignore_eos=True)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    nodes: dict[str, int] = {}
    for answer in answers:
        nodes[answer.node] = nodes.get(answer.node, 0) + 1
    return _Result(wall, cpu, peak_memory_bytes(os.getpid()) - before, sent, received, nodes)


def _tap() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Note every Submit that leaves this process and every Tokens that arrives."""
    sent: list[tuple[int, int]] = []
    received: list[tuple[int, int]] = []
    send, deliver = Link.send, Link._deliver

    def tapped_send(self: Link, frames: Sequence[bytes]) -> None:
        message = decode(frames[1])
        if isinstance(message, Submit):
            sent.append((len(message.requests), sum(map(len, frames))))
        send(self, frames)

    def tapped_deliver(self: Link, first: object, frames: Frames) -> None:
        if len(frames) > 2 and isinstance(message := decode(frames[1]), Tokens):
            received.append((len(message.finished), sum(map(len, frames))))
        deliver(self, first, frames)  # type: ignore[arg-type]

    Link.send, Link._deliver = tapped_send, tapped_deliver  # type: ignore[method-assign]
    return sent, received


def _row(num_prompts: int, num_characters: int, result: _Result, broker_bytes: int) -> Row:
    largest = max(num_bytes for _, num_bytes in (*result.sent, *result.received))
    own_bytes = result.peak_bytes / num_prompts
    is_met = largest <= MAX_MESSAGE_BYTES and own_bytes <= MAX_CLIENT_BYTES + 2 * num_characters
    return {
        "batch": f"{num_prompts} of {num_characters} characters",
        "seconds": result.seconds,
        "prompts/s": num_prompts / result.seconds,
        "client CPU us": 1e6 * result.cpu_s / num_prompts,
        "client kB more each": own_bytes / 1e3,
        "broker MB more": broker_bytes / 1e6,
        "Submits": f"{len(result.sent)}, of <= {max(count for count, _ in result.sent)}",
        "endings per Tokens": num_prompts / max(1, sum(1 for count, _ in result.received if count)),
        "largest MB": largest / 1e6,
        "at most": MAX_MESSAGE_BYTES / 1e6,
        "met": "yes" if is_met else "NO",
        "on nodes": f"{min(result.nodes.values())}/{max(result.nodes.values())}",
    }
