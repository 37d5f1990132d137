"""What one Python client process can drive: its CPU time for each request and each streamed token, and requests/s.

The server is a trivial node in another process, on another core where there is one: it answers at once, so that the
client is what is measured. CPU time is that of the whole process, ZeroMQ's threads and their cipher included. The bare
socket beside it sends and reads the same frames, and has no requests, callers, deadlines or second attempts to think
of: it is the limit for whoever asks one by one, where most of the time goes into waking up.

"In batches" means that one message brings tokens of many streams, as an engine makes them: one for each in each step.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

from mesh import AsyncClient, Client
from mesh.security.member_key import find_or_make_member
from mesh.security.tokens import member_token
from scripts.benchmarks.cpu import only_on
from scripts.benchmarks.load import PROMPT, LoadClient
from scripts.benchmarks.processes import MESH, Member, stage
from scripts.benchmarks.spread import spread
from scripts.benchmarks.table import Row, median

NUM_ROUNDS = 5
AT_ONCE = 64
NUM_REQUESTS = 2048  # of each round
NUM_ONE_BY_ONE = 512
NUM_TOKENS = 256  # of each stream
STEP_S = 0.005
MAX_US = {"request": 150.0, "token": 5.0}

Drive = Callable[[AsyncClient], Awaitable[int]]
"""Does its work; returns how many requests or tokens that were."""
Take = tuple[float, float]
"""CPU seconds for one of them, and how many in a second."""


def run(options: argparse.Namespace) -> list[Row]:
    del options
    with stage(is_pinned=True) as opened, only_on(opened.measured_cores):
        token = member_token(find_or_make_member(opened.home).pair)
        answers = opened.module("trivial_node", "--tokens", "1")
        streams = opened.module("trivial_node", "--tokens", f"{NUM_TOKENS}", "--step", f"{STEP_S}")
        bare = LoadClient(answers.address, MESH, home=opened.home)
        rows = [_row("a bare DEALER socket, one at a time", "request", _timed(lambda: _bare(bare)), is_judged=False)]
        bare.close()
        for name, drive in {
            "AsyncClient.generate, one at a time": _one_by_one,
            f"AsyncClient.generate, {AT_ONCE} at a time": _at_once,
            f"AsyncClient.generate_batch of {AT_ONCE}": _batches,
        }.items():
            rows.append(_row(name, "request", _measure(answers, token, drive)))
        with Client(answers.address, mesh=MESH, token=token, insecure=False) as client:
            takes = _timed(lambda: _blocking(client))
            rows.append(_row("Client.generate, one at a time", "request", takes, is_judged=False))
        for count in (1, AT_ONCE, 4 * AT_ONCE):
            takes = _measure(streams, token, _streams(count))
            rows.append(_row(f"AsyncClient.stream, {count} at a time", "token", takes, is_judged=count > 1))
        takes = _measure(streams, token, _batch_tokens)
        rows.append(_row(f"AsyncClient.generate_batch of {AT_ONCE}, their tokens", "token", takes))
    return rows


def _measure(server: Member, token: str, drive: Drive) -> list[Take]:
    with asyncio.Runner() as runner:

        async def connected() -> AsyncClient:
            return AsyncClient(server.address, mesh=MESH, token=token, insecure=False)

        client = runner.run(connected())
        takes = _timed(lambda: runner.run(drive(client)))  # type: ignore[arg-type]  # all drives are coroutines
        runner.run(client.close())
        return takes


def _timed(work: Callable[[], int]) -> list[Take]:
    """Rounds of it, after one that connects and warms up."""
    takes = []
    for number in range(NUM_ROUNDS + 1):
        cpu, wall = time.process_time(), time.perf_counter()
        count = work()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if number > 0:
            takes.append((cpu / count, count / wall))
    return takes


def _bare(client: LoadClient) -> int:
    client.one_by_one(NUM_ONE_BY_ONE)
    return NUM_ONE_BY_ONE


def _blocking(client: Client) -> int:
    for _ in range(NUM_ONE_BY_ONE):
        client.generate(PROMPT, max_tokens=1)
    return NUM_ONE_BY_ONE


async def _one_by_one(client: AsyncClient) -> int:
    for _ in range(NUM_ONE_BY_ONE):
        await client.generate(PROMPT, max_tokens=1)
    return NUM_ONE_BY_ONE


async def _at_once(client: AsyncClient) -> int:
    async def caller() -> None:
        for _ in range(NUM_REQUESTS // AT_ONCE):
            await client.generate(PROMPT, max_tokens=1)

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return NUM_REQUESTS


async def _batches(client: AsyncClient) -> int:
    prompts = [PROMPT] * AT_ONCE
    for _ in range(NUM_REQUESTS // AT_ONCE):
        await client.generate_batch(prompts, max_tokens=1)
    return NUM_REQUESTS


def _streams(count: int) -> Drive:
    async def drive(client: AsyncClient) -> int:
        async def read() -> int:
            num_tokens = 0
            async for chunk in client.stream(PROMPT, max_tokens=NUM_TOKENS):
                num_tokens += len(chunk.token_ids)
            return num_tokens

        return sum(await asyncio.gather(*(read() for _ in range(count))))

    return drive


async def _batch_tokens(client: AsyncClient) -> int:
    answers = await client.generate_batch([PROMPT] * AT_ONCE, max_tokens=NUM_TOKENS)
    return sum(len(answer.token_ids) for answer in answers)


def _row(name: str, unit: str, takes: list[Take], *, is_judged: bool = True) -> Row:
    cpu_us = [1e6 * cpu_s for cpu_s, _ in takes]
    value, limit = median(cpu_us), MAX_US[unit]
    return {
        "call": name,
        "CPU us": value,
        "per": unit,
        "takes": spread(cpu_us),
        "per second": median([per_s for _, per_s in takes]),
        "at most": f"{limit:g}" if is_judged else "",
        "met": ("yes" if value <= limit else "NO") if is_judged else "",
    }
