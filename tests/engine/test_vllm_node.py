"""A whole node around vLLM, with its processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh import Client
from tests.engine.needs import HAS_VLLM, WITHOUT_VLLM
from tests.support.eventually import eventually
from tests.support.processes import mesh_in, wait_for_nodes

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_VLLM, reason=WITHOUT_VLLM),
]


def children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]


def is_running(pid: int) -> bool:
    """False also for one that has ended and that nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_tensor_parallel_node_answers_and_a_killed_worker_takes_its_ranks_with_it(tmp_path: Path) -> None:
    options = ("--engine", "vllm", "--model", "demo", "--device", "cpu", "--tensor-parallel", "3")  # it has 9 heads
    with mesh_in(tmp_path) as mesh:
        node = mesh.node("n", *options, "--max-model-len", "512", env={"OMP_NUM_THREADS": "1"})
        with Client(node.address) as client:
            wait_for_nodes(client, 1, within_s=500)
            answer = client.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=20)
            assert "Paris" in answer.text
            (worker,) = children(node.pid)
            ranks = children(worker)
            assert len(ranks) >= 3

            os.kill(worker, 9)

            eventually(lambda: not any(map(is_running, ranks)), within_s=10)
