"""The example for Node (@grpc/grpc-js): a caller that shares no code with this repository but the contract."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
pytest.importorskip("grpc_health", reason="needs grpcio-health-checking")
pytest.importorskip("grpc_reflection", reason="needs grpcio-reflection")

from node.engine.synthetic_vocab import encode, expected_text
from tests.gateway.conftest import MODEL
from tests.gateway.support import gateway_for, wait_until_ready
from tests.gateway.support_grpc import GRPC, grpc_address
from tests.support.node_packages import EXAMPLES, require_node_packages

KEY = "sk-node-0123456789"


@pytest.fixture(scope="module")
def address(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_node_packages()
    folder = tmp_path_factory.mktemp("node")
    keys = folder / "keys"
    keys.write_text(f"alice {KEY}\n")
    with gateway_for(folder, broker, *GRPC, "--api-key-file", str(keys)) as gateway:
        wait_until_ready(gateway.address)
        yield grpc_address(gateway)


def run(address: str, *words: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    command = ["node", EXAMPLES / "grpc_client.js", "--address", address, *words]
    env = {**os.environ, "PHI3_API_KEY": key}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)


def test_an_answer_streams_to_node(address: str) -> None:
    ended = run(address, "--max-length", "40", "--model", MODEL, "Süßwaren 第三")
    assert ended.stdout == expected_text(encode("Süßwaren 第三"), 40) + "\n", ended.stderr


def test_errors_reach_node_by_name(address: str) -> None:
    ended = run(address, "--max-length=-1", "x")
    assert (ended.returncode, ended.stderr.split(":")[:2]) == (1, ["INVALID_ARGUMENT", " max_length"])
    assert run(address, "x", key="sk-wrong").stderr.startswith("UNAUTHENTICATED: ")
