"""How long a stream pauses when the node that answers it is killed or suspended: last token before, first token after.

A broker and two synthetic nodes on loopback. Each round puts streams on both nodes, ends one node, and starts it again
only when the round is over, so that the start of a Python process does not take the processor from what is measured.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from mesh import Client
from mesh.errors import MeshError
from scripts.benchmarks.table import Row, median

NUM_ROUNDS = 10
NUM_STREAMS = 8
BIN = Path(sys.executable).parent
NODES = {"n1": "127.0.0.1:5591", "n2": "127.0.0.1:5592"}
BROKER = "127.0.0.1:5590"
TARGETS_S = {signal.SIGKILL: 0.25, signal.SIGSTOP: 1.75}


def run(options: argparse.Namespace) -> list[Row]:
    broker = _start("phi3-broker", "serve", "--bind", BROKER, *(w for a in NODES.values() for w in ("--node", a)))
    nodes = {name: _start_node(name) for name in NODES}
    try:
        with Client(BROKER, mesh="bench", connect_timeout_s=30) as client:
            return [_row(client, nodes, number) for number in (signal.SIGKILL, signal.SIGSTOP)]
    finally:
        for process in (broker, *nodes.values()):
            process.kill()
            process.wait()


def _row(client: Client, nodes: dict[str, subprocess.Popen[bytes]], number: signal.Signals) -> Row:
    pauses = sorted(pause for _ in range(NUM_ROUNDS) for pause in _round(client, nodes, number))
    return {
        "fault": number.name,
        "interrupted streams": len(pauses),
        "pause p50 s": median(pauses),
        "p99 s": pauses[int(0.99 * len(pauses))],
        "max s": pauses[-1],
        "p99 must be below": TARGETS_S[number],
    }


def _round(client: Client, nodes: dict[str, subprocess.Popen[bytes]], number: signal.Signals) -> list[float]:
    _wait_for_nodes(client)
    streams = [_Stream(client, f"stream {index}") for index in range(NUM_STREAMS)]
    for stream in streams:
        stream.has_begun.wait(10)
    name = "n1"
    ended_at = time.perf_counter()
    nodes[name].send_signal(number)
    for stream in streams:
        stream.thread.join(60)
    nodes[name].kill()
    nodes[name].wait()
    nodes[name] = _start_node(name)
    return [stream.pause_around(ended_at) for stream in streams if stream.num_attempts > 1]


class _Stream:
    """Reads one answer and notes when each of its pieces came."""

    def __init__(self, client: Client, prompt: str) -> None:
        self.times: list[float] = []
        self.num_attempts = 0
        self.has_begun = threading.Event()
        self.thread = threading.Thread(target=self._read, args=(client, prompt))
        self.thread.start()

    def _read(self, client: Client, prompt: str) -> None:
        stream = client.stream(prompt, max_tokens=200, ignore_eos=True)
        for _ in stream:
            self.times.append(time.perf_counter())
            if len(self.times) == 5:
                self.has_begun.set()
        if stream.result is not None:
            self.num_attempts = stream.result.attempts

    def pause_around(self, moment: float) -> float:
        """From the last token that came before the next gap after `moment` to the first after it."""
        later = next(index for index, at in enumerate(self.times) if at > moment)
        gaps = [b - a for a, b in zip(self.times[later - 1 :], self.times[later:], strict=False)]
        return max(gaps)


def _start_node(name: str) -> subprocess.Popen[bytes]:
    return _start(
        "phi3-node", "--name", name, "--bind", NODES[name], "--engine", "synthetic", "--device", "instant",
        "--synthetic", "step_base_s=0.02",
    )  # fmt: skip


def _start(command: str, *options: str) -> subprocess.Popen[bytes]:
    arguments: Sequence[str] = [str(BIN / command), *options, "--no-mdns", "--mesh", "bench"]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _wait_for_nodes(client: Client) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if client.status().num_ready == len(NODES):
                return
        except MeshError:
            pass
        time.sleep(0.1)
    raise TimeoutError("the nodes were not ready within 60 s")
