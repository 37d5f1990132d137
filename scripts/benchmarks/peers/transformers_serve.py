"""The demo model behind our whole stack and behind `transformers serve`, by turns: the CPU time of all that takes part.

`transformers serve` is front door and engine in one process, so its front door cannot be measured alone; both stacks
run the same model with the same library's continuous batching.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mesh.home import home_folder
from node.engine.model_files import resolve_model
from scripts.benchmarks.cpu import cpu_s
from scripts.benchmarks.load import LoadClient
from scripts.benchmarks.peers.http_load import HttpLoad, completion
from scripts.benchmarks.peers.routers import free_port
from scripts.benchmarks.processes import BIN, MESH, Member, Stage, stage

NUM_STREAMS = 16
NUM_TOKENS = 32
_PROMPT = "Once upon a time, in a village by the sea, there lived an old fisherman who"  # no end in 32 tokens
_START_WITHIN_S = 180.0


@dataclass
class Stack:
    """One way to serve the model."""

    name: str
    load: HttpLoad
    everything: list[int]
    without_engine: list[int]  # empty where they are one
    cpu_us: list[float] = field(default_factory=list)  # for each token
    front_us: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)

    def take(self, *, is_counted: bool) -> None:
        tokens = NUM_STREAMS * NUM_TOKENS
        before, front = _cpu_s(self.everything), _cpu_s(self.without_engine)
        seconds = self.load.keep_in_flight(NUM_STREAMS, NUM_STREAMS)
        if is_counted:
            self.cpu_us.append(1e6 * (_cpu_s(self.everything) - before) / tokens)
            self.front_us.append(1e6 * (_cpu_s(self.without_engine) - front) / tokens)
            self.per_s.append(tokens / seconds)


def measure(num_rounds: int) -> list[Stack]:
    """Both stacks, on any core they like."""
    folder = resolve_model("demo", home_folder(), lambda line: print(line, file=sys.stderr)).path
    with stage(is_pinned=False) as opened:
        stacks = [_ours(opened, folder), _theirs(opened, folder)]
        for number in range(num_rounds + 1):
            for stack in stacks:
                stack.take(is_counted=number > 0)
        for stack in stacks:
            stack.load.close()
    return stacks


def _ours(opened: Stage, folder: Path) -> Stack:
    node = opened.start(
        "node",
        [str(BIN / "phi3-node"), "--model", str(folder), "--bind", "127.0.0.1:0", "--no-mdns", "--mesh", MESH],
        within_s=_START_WITHIN_S,
    )
    broker = opened.broker([node])
    client = LoadClient(broker.address, MESH, home=opened.home)
    client.wait_until_ready(1, within_s=_START_WITHIN_S)
    client.close()
    gateway = opened.gateway(broker)
    children = [child.pid for child in psutil.Process(node.pid).children(recursive=True)]
    front = [gateway.pid, broker.pid, node.pid]
    return Stack("phi3-mesh", _load(gateway.address, ""), [*front, *children], front)


def _theirs(opened: Stage, folder: Path) -> Stack:
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(BIN / "transformers"), "serve", str(folder), "--continuous-batching", "--device", "cpu",
        "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--log-level", "error",
    ]  # fmt: skip

    def is_ready(_: Member) -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    env = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # the second as in our worker
    served = opened.start("transformers", command, env=env, is_ready=is_ready, within_s=_START_WITHIN_S)
    return Stack("transformers serve", _load(address, str(folder)), [served.pid], [])


def _load(address: str, model: str) -> HttpLoad:
    request = completion(
        model, address.removeprefix("http://"), prompt=_PROMPT, max_tokens=NUM_TOKENS, temperature=0, stream=True
    )
    return HttpLoad(address, request)


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(map(cpu_s, pids))
