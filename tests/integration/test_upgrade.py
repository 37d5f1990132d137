"""A client that came before the broker: it uses the node it finds, and goes over when a broker appears."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh import Client
from mesh.client import upgrade
from node.engine.synthetic_vocab import encode, expected_text
from tests.support.eventually import eventually
from tests.support.processes import mesh_in, wait_for_nodes

NAME = ("--mesh", "upgrade-test")


def test_a_client_of_a_lone_node_goes_over_to_a_broker_and_its_answer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed with the node it had found first, for as long as it lived, and the other nodes stood idle."""
    monkeypatch.delenv("PHI3_MESH_BROKER", raising=False)
    monkeypatch.setattr(upgrade, "LOOK_EVERY_S", 0.1)
    with mesh_in(tmp_path) as mesh:
        mesh.node("n", "--mdns", *NAME, "--synthetic", "step_base_s=0.02")
        with Client(mesh=NAME[1], connect_timeout_s=20) as client:
            wait_for_nodes(client, 1)
            assert client.status().kind == "node"
            stream = client.stream("go over", max_tokens=200)
            pieces = [next(stream).text]
            mesh.broker("b", options=("--mdns", *NAME))
            eventually(lambda: client.status().kind == "broker", within_s=20)
            pieces += [chunk.text for chunk in stream]
            assert "".join(pieces) == expected_text(encode("go over"), 200)
            assert stream.result is not None
            assert stream.result.attempts >= 2
