"""The demo model three ways in one run: the engine called in its own process, through a node, through broker and node.

Rounds alternate between the three, and what is quoted is the median of the ratios within a round: the machine's speed
drifts, the ratio does not. Only one engine computes at any time; the others wait for work and use no processor.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mesh import Client
from mesh.errors import MeshError
from mesh.home import home_folder
from node.engine.base import EngineOptions, EngineRequest, StepOutput
from node.engine.factory import create_engine
from node.engine.model_files import resolve_model
from node.text.tokenizer import load_tokenizer
from scripts.benchmarks.table import Row, median

NUM_ROUNDS = 5
HEARTBEAT_S = 0.5
NUM_TOKENS = 48
BATCH = 16
BIN = Path(sys.executable).parent
NODE, BROKER = "127.0.0.1:5597", "127.0.0.1:5596"

Run = Callable[[Sequence[str]], float]
"""Answers these prompts, all at once, with NUM_TOKENS each; returns the seconds it took."""


def run() -> list[Row]:
    prompts = [f"Tell me something about the number {number}." for number in range(BATCH)]
    folder = resolve_model("demo", home_folder(), print).path
    with direct(folder) as engine, mesh() as clients:
        ways: dict[str, Run] = {"engine alone": engine}
        ways |= {name: _through(client) for name, client in clients.items()}
        rows: list[Row] = []
        for at_once in (1, BATCH):
            times = _measure(ways, prompts[:at_once])
            for name, seconds in times.items():
                ratios = [alone / s for alone, s in zip(times["engine alone"], seconds, strict=True)]
                rows.append(
                    {
                        "at once": f"{at_once}",
                        "way": name,
                        "tokens/s": at_once * NUM_TOKENS / median(seconds),
                        "of the engine alone": median(ratios),
                    }
                )
    return rows


def _measure(ways: dict[str, Run], prompts: Sequence[str]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(NUM_ROUNDS + 1):
        for name, way in ways.items():
            # A broker hears of what others have at its nodes with each heartbeat. Without this pause it would still
            # believe in the requests of the round before, and hold half of its own back for that long.
            time.sleep(2 * HEARTBEAT_S)
            seconds = way(prompts)
            if number > 0:  # the first round warms up
                times[name].append(seconds)
    return times


@contextmanager
def direct(folder: Path) -> Iterator[Run]:
    """The engine in this process, driven through its own contract."""
    engine = create_engine(EngineOptions(model=str(folder)), home_folder())
    codec = load_tokenizer(folder)
    unfinished: set[int] = set()
    done = threading.Event()
    last_id = 0

    def emit(outputs: list[StepOutput]) -> None:
        unfinished.difference_update(o.request_id for o in outputs if o.finish_reason is not None)
        if not unfinished:
            done.set()

    def answer(prompts: Sequence[str]) -> float:
        nonlocal last_id
        began = time.perf_counter()
        requests = []
        for prompt in prompts:
            last_id += 1
            token_ids = codec.encode(prompt)
            requests.append(EngineRequest(last_id, token_ids, NUM_TOKENS, num_prompt=len(token_ids)))
        unfinished.update(request.request_id for request in requests)
        done.clear()
        engine.submit(requests)
        if not done.wait(600):
            raise TimeoutError("the engine did not answer within 600 s")
        return time.perf_counter() - began

    engine.start(emit, lambda reason: print(f"engine failed: {reason}", file=sys.stderr))
    try:
        yield answer
    finally:
        engine.stop()


@contextmanager
def mesh() -> Iterator[dict[str, Client]]:
    """A node, and a broker in front of the same node."""
    commands = [
        [str(BIN / "phi3-node"), "--model", "demo", "--bind", NODE, "--no-mdns", "--mesh", "bench"],
        [str(BIN / "phi3-broker"), "serve", "--bind", BROKER, "--node", NODE, "--no-mdns", "--mesh", "bench"],
    ]
    started = [subprocess.Popen(c, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for c in commands]
    clients = {
        "through a node": Client(NODE, mesh="bench", connect_timeout_s=60),
        "through broker and node": Client(BROKER, mesh="bench", connect_timeout_s=60),
    }
    try:
        for client in clients.values():
            _wait_until_ready(client)
        yield clients
    finally:
        for client in clients.values():
            client.close()
        for process in started:
            process.terminate()
        for process in started:
            process.wait(15)


def _wait_until_ready(client: Client) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if client.status().num_ready:
                return
        except MeshError:
            pass
        time.sleep(0.2)
    raise TimeoutError("the node was not ready within 120 s")


def _through(client: Client) -> Run:
    def answer(prompts: Sequence[str]) -> float:
        began = time.perf_counter()
        client.generate_batch(prompts, max_tokens=NUM_TOKENS, ignore_eos=True)
        return time.perf_counter() - began

    return answer
