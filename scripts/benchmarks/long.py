"""Prompts of 128K tokens, several at a time: does the agent still answer heartbeats, and what does it take in memory?

The engine is the synthetic one at the pace of an H200, with room for four such prompts; the tokenizer is the demo
model's, on English text, so the agent validates, tokenises and passes on what it would for a real model.
A process of its own pings the node and the broker a hundred times a second; late is an answer that came after so long.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mesh.home import home_folder
from node.engine.model_files import resolve_model
from node.text.tokenizer import load_tokenizer
from scripts.benchmarks.local_mesh import (
    LocalMesh,
    local_mesh,
    memory_bytes,
    peak_memory_bytes,
    reset_peak_memory,
)
from scripts.benchmarks.pinger import pinger
from scripts.benchmarks.processes import MESH, Member
from scripts.benchmarks.prose import prose
from scripts.benchmarks.spread import percentile
from scripts.benchmarks.table import Row

NUM_TOKENS = 128 * 1024
NUM_GENERATED = 32
AT_A_TIME = (1, 4, 8)
CHARACTERS = 550_000
ROOM = 4  # prompts in the engine's cache
LIMIT_MS = 100.0


def run(options: argparse.Namespace) -> list[Row]:
    del options
    folder = resolve_model("demo", home_folder(), lambda line: print(line, file=sys.stderr)).path
    prompts = _prompts(folder, max(AT_A_TIME))
    rows: list[Row] = []
    with local_mesh() as mesh:
        (node,) = mesh.side_by_side({"long": _node_command(folder)})
        broker = mesh.broker_of([node])
        with pinger(node.address, mesh.home) as at_node, pinger(broker.address, mesh.home) as at_broker:
            pingers = {"agent": (node, at_node), "broker": (broker, at_broker)}
            for count in AT_A_TIME:
                for member, ping in pingers.values():
                    reset_peak_memory(member.pid)
                    ping.take()
                before = {name: memory_bytes(member.pid) for name, (member, _) in pingers.items()}
                ttft_s = _ask(mesh, broker, prompts[:count])
                for name, (member, ping) in pingers.items():
                    grown = peak_memory_bytes(member.pid) - before[name]
                    rows.append(_row(name, count, ping.take(), grown, memory_bytes(member.pid), ttft_s))
    return rows


def _node_command(folder: Path) -> Sequence[str]:
    return [
        *(sys.executable, "-m", "scripts.benchmarks.real_text_node", f"{folder}", "--name", "long"),
        *("--bind", "127.0.0.1:0", "--no-mdns", "--mesh", MESH, "--model", "long"),
        *("--device", "h200", "--max-model-len", f"{NUM_TOKENS + 1024}", "--max-batch-tokens", "8192"),
        *("--synthetic", f"cache_tokens={ROOM * (NUM_TOKENS + 1024)}"),
    ]


def _prompts(folder: Path, count: int) -> list[str]:
    """Texts of just under NUM_TOKENS tokens each, all different."""
    codec = load_tokenizer(folder)
    found = []
    for number in range(count):
        text = prose(CHARACTERS, number * 60_000)
        found.append(text[: int(len(text) * NUM_TOKENS / len(codec.encode(text)) * 0.995)])
    return found


def _ask(mesh: LocalMesh, broker: Member, prompts: Sequence[str]) -> float:
    """All at once. Returns the longest time to the first token."""
    with mesh.client(broker) as client:
        answers = client.generate_batch(prompts, max_tokens=NUM_GENERATED, ignore_eos=True)
    for answer in answers:
        if not 0.97 * NUM_TOKENS < answer.usage.prompt_tokens <= NUM_TOKENS:
            raise RuntimeError(f"a prompt has {answer.usage.prompt_tokens} tokens, not {NUM_TOKENS}")
    return max(answer.ttft_s for answer in answers)


def _row(name: str, count: int, delays: Sequence[float], grown: int, now: int, ttft_s: float) -> Row:
    p99_ms = 1000 * percentile(delays, 0.99)
    return {
        "pinged": name,
        "prompts of 128K": f"{count} at a time",
        "pings": f"{len(delays)}",
        "late p50 ms": 1000 * percentile(delays, 0.5),
        "p99 ms": p99_ms,
        "max ms": 1000 * max(delays),
        "p99 at most": LIMIT_MS,
        "met": "yes" if p99_ms <= LIMIT_MS else "NO",
        "peak MB more per prompt": grown / count / 1e6,
        "MB after": now / 1e6,
        "first token after s": ttft_s,
    }
