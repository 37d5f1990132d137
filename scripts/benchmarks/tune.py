"""What one node does at every batch size, and where adaptive concurrency puts it: the table to choose --target-itl by.

So many callers ask one after another, so the batch is their number. Tokens are counted by the node over the measured
seconds, times between tokens are the node's own; time to first token and latency are what the callers see.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from mesh import AsyncClient
from mesh.client.results import Completion
from mesh.home import home_folder
from mesh.report import NodeReport
from node.engine.model_files import resolve_model
from scripts.benchmarks.local_mesh import LocalMesh, local_mesh
from scripts.benchmarks.processes import Member
from scripts.benchmarks.spread import percentile
from scripts.benchmarks.table import Row

WARM_UP_S = 1.0
SETTLE_S = 8.0  # for adaptive concurrency to find its limit
GIVE_UP_S = 60.0  # for the first request of a batch size to end


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="", help="a real model, such as demo; default: the synthetic engine")
    parser.add_argument(
        "--engine", default="", help="what runs it; default: transformers, or synthetic without --model"
    )
    parser.add_argument("--device", default="", help="default: a100 of the synthetic engine, else auto")
    parser.add_argument("--slots", type=int, default=0, help="the largest batch; 0: the engine's choice")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="about as many (default: 64)")
    parser.add_argument(
        "--tokens", type=int, default=64, help="generated for a request, half to one and a half of that"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="measured for each batch size (default: 5)")
    parser.add_argument("--target-itl", type=float, default=0.0, help="seconds; 0: 1.5 times that of a single request")


@dataclass
class Load:
    """Callers, each of which asks again as soon as it is answered."""

    client: AsyncClient
    options: argparse.Namespace
    ended: list[Completion] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    @asynccontextmanager
    async def of(self, num_callers: int) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._ask()) for _ in range(num_callers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _until(self._is_idle)

    async def _ask(self) -> None:
        while True:
            number, tokens = next(self._numbers), self.options.tokens
            length = max(2, tokens // 2 + number * 37 % (tokens + 1))  # in no step, so that they do not end together
            prompt = f"{number} " + "x " * (self.options.prompt_tokens // 2)
            self.ended.append(await self.client.generate(prompt, max_tokens=length, ignore_eos=True))

    async def _is_idle(self) -> bool:
        return not (await self.node()).num_running

    async def _has_answers(self) -> bool:
        return bool(self.ended)

    async def node(self) -> NodeReport:
        return (await self.client.status()).nodes[0]

    async def measure(self, num_callers: int) -> Row:
        """Under way already."""
        await asyncio.sleep(WARM_UP_S)
        before, began = await self.node(), time.perf_counter()
        self.ended.clear()
        await asyncio.sleep(self.options.seconds)
        await _until(self._has_answers)
        after, elapsed = await self.node(), time.perf_counter() - began
        ended = list(self.ended)
        first = sorted(one.ttft_s for one in ended)
        pace = [(one.total_s - one.ttft_s) / (one.usage.completion_tokens - 1) for one in ended]
        return {
            "batch": f"{num_callers}",
            "tokens/s": (_generated(after) - _generated(before)) / elapsed,
            "ITL mean ms": 1000 * sum(pace) / len(pace),
            "p50": 1000 * after.itl_p50_s,
            "p99": 1000 * after.itl_p99_s,
            "TTFT p50 ms": 1000 * percentile(first, 0.50),
            "p99 ": 1000 * percentile(first, 0.99),
            "latency p50 s": percentile(sorted(one.total_s for one in ended), 0.50),
            "": "",
        }


def run(options: argparse.Namespace) -> list[Row]:
    with local_mesh() as mesh:
        return asyncio.run(_run(mesh, options))


async def _run(mesh: LocalMesh, options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    fixed = _start(mesh, options, "fixed")
    async with mesh.async_client(fixed) as client:
        load = Load(client, options)
        slots = (await load.node()).slots_total
        for batch in [*(2**power for power in range(slots.bit_length()) if 2**power < slots), slots]:
            async with load.of(batch):
                rows.append(await load.measure(batch))
    mesh.stop(fixed)
    target_s = options.target_itl or 1.5 * float(rows[0]["ITL mean ms"]) / 1000
    _mark_best(rows, target_s)
    return [*rows, await _adaptive(mesh, options, slots, target_s)]


def _mark_best(rows: Sequence[Row], target_s: float) -> None:
    """The largest batch whose mean time between tokens is within the target."""
    holding = [row for row in rows if float(row["ITL mean ms"]) <= 1000 * target_s]
    if holding:
        holding[-1][""] = f"← the largest within {1000 * target_s:.3g} ms"


async def _adaptive(mesh: LocalMesh, options: argparse.Namespace, slots: int, target_s: float) -> Row:
    node = _start(mesh, options, "adaptive", "--target-itl", f"{target_s:.6f}")
    async with mesh.async_client(node) as client:
        load = Load(client, options)
        num_callers = slots + slots // 4 + 1
        async with load.of(num_callers):
            await asyncio.sleep(SETTLE_S)
            row = await load.measure(num_callers)
            admitted = (await load.node()).slots_total
    return row | {"batch": f"adaptive: {admitted}", "": f"--target-itl {target_s:.3g}, {num_callers} callers"}


def _start(mesh: LocalMesh, options: argparse.Namespace, name: str, *more: str) -> Member:
    engine = options.engine or ("transformers" if options.model else "synthetic")
    is_synthetic = engine == "synthetic"
    # From the user's own models: the folder of this mesh is a new one each time.
    model = "synthetic" if is_synthetic else str(resolve_model(options.model, home_folder(), print).path)
    device = options.device or ("a100" if is_synthetic else "auto")
    words = ["--engine", engine, "--model", model, "--device", device, "--slots", f"{options.slots}", *more]
    return mesh.nodes({name: words})[0]


async def _until(probe: Callable[[], Awaitable[bool]]) -> None:
    """Raises TimeoutError after GIVE_UP_S."""
    for _ in range(int(GIVE_UP_S / 0.05)):
        if await probe():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"waited {GIVE_UP_S:g} s for the node; with a slow model, use --tokens with fewer")


def _generated(node: NodeReport) -> int:
    return node.counters.get("generated_tokens", 0)
