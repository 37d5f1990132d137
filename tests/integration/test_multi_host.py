"""Several hosts for real: network namespaces on one bridge, found over mDNS only."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.netns import Host, network, running

pytestmark = [pytest.mark.netns, pytest.mark.timeout(180)]

SYNTHETIC = ("--engine", "synthetic", "--device", "instant")


def node(host: Host, name: str, mesh: str, *options: str) -> tuple[str, list[str]]:
    return name, host.python("-m", "node.cli", "--name", name, "--mesh", mesh, *options)


def broker(host: Host, name: str, mesh: str) -> tuple[str, list[str]]:
    return name, host.python("-m", "broker.cli", "serve", "--name", name, "--mesh", mesh)


def ready_nodes(host: Host, mesh: str) -> set[str]:
    """What a status command on this host sees, by itself: no address is given."""
    command = host.python("-m", "broker.cli", "status", "--json", "--mesh", mesh)
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        return set()
    return {node["name"] for node in json.loads(done.stdout)["nodes"] if node["state"] == "ready"}


def generate(host: Host, mesh: str, prompt: str) -> dict[str, object]:
    command = host.python("-m", "mesh.cli.main", "generate", "--json", "--mesh", mesh, "--max-tokens", "16", prompt)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_hosts_find_each_other_and_a_second_mesh_on_the_same_wire_stays_separate(tmp_path: Path) -> None:
    with network(3) as (first, second, third):
        commands = [
            broker(first, "red-broker", "red"),
            node(second, "red-1", "red", *SYNTHETIC),
            node(third, "red-2", "red", *SYNTHETIC),
            broker(second, "blue-broker", "blue"),
            node(third, "blue-1", "blue", *SYNTHETIC),
        ]
        with running(commands, tmp_path, {}):
            eventually(lambda: ready_nodes(first, "red") == {"red-1", "red-2"}, within_s=60)
            eventually(lambda: ready_nodes(third, "blue") == {"blue-1"}, within_s=60)
            answer = generate(third, "red", "a prompt from another host")
            assert answer["node"] in ("red-1", "red-2")
            assert generate(first, "blue", "hello")["node"] == "blue-1"


@pytest.mark.model
def test_a_prompt_typed_on_one_host_is_answered_by_a_real_model_on_another(tmp_path: Path, model_home: Path) -> None:
    with network(3, "10.78.0") as (first, second, third):
        commands = [
            broker(first, "b", "m"),
            *(node(h, n, "m", "--model", "demo") for h, n in ((second, "n1"), (third, "n2"))),
        ]
        with running(commands, tmp_path, {"PHI3_MESH_HOME": str(model_home), "OMP_NUM_THREADS": "1"}):
            eventually(lambda: ready_nodes(first, "m") == {"n1", "n2"}, within_s=120)
            answer = generate(first, "m", "What is the capital of France?")
            assert "Paris" in str(answer["text"])
            assert answer["node"] in ("n1", "n2")
