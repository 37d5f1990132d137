"""Names, ids and versions: who is who, and who may not take part."""

from __future__ import annotations

import asyncio

import pytest
import zmq

from mesh import Client
from mesh.client.aio import AsyncClient
from mesh.codec import decode
from mesh.link import new_socket
from mesh.messages import PROTOCOL_VERSION, Refused
from tests.faults.answers import LONG, Answers
from tests.faults.nodes import STEADY, numbers
from tests.support.eventually import eventually
from tests.support.processes import Mesh, wait_for_nodes


@pytest.mark.parametrize("same", ["--name", "--node-id"])
def test_two_nodes_that_call_themselves_the_same_both_work(mesh: Mesh, same: str) -> None:
    """Two containers on two hosts may have the same hardware address, and so the same id."""
    nodes = [mesh.node(f"n{i}", *STEADY, same, "twin", "--slots", "4") for i in range(2)]
    broker = mesh.broker("b", *nodes)

    async def story() -> None:
        async with AsyncClient(broker.address) as client:
            answers = Answers(client, [{"prompt": f"p{i}", **LONG} for i in range(8)])
            await answers.end(within_s=10)
            assert not answers.interrupted

    with Client(broker.address) as client:
        wait_for_nodes(client, 2)
    asyncio.run(story())


@pytest.mark.parametrize("kind", ["node", "broker"])
def test_another_version_of_the_protocol_is_refused_with_both_versions_named(mesh: Mesh, kind: str) -> None:
    member = mesh.node("n", "--insecure") if kind == "node" else mesh.broker("b", options=("--insecure",))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, new_socket(context, zmq.DEALER) as socket:
        socket.connect(member.address)
        other_version = PROTOCOL_VERSION - 1
        socket.send_multipart([b"", bytes((0x96, other_version, 1)) + b"\xa6client\xa3old\x01\xa7default"])
        assert socket.poll(5000)
        refused = decode(socket.recv_multipart()[1])
        assert isinstance(refused, Refused)
        assert refused.code == "version_mismatch"
        assert str(PROTOCOL_VERSION) in refused.text
        assert str(other_version) in refused.text


def test_the_only_node_of_a_model_may_restart_while_others_serve_other_models(mesh: Mesh) -> None:
    """Its streams were told that there is no such model, and ended."""
    options = (*STEADY, *numbers(step_base_s=0.02))
    tiny, other = mesh.node("tiny", *options, "--served-name", "tiny"), mesh.node("o", "--served-name", "other")
    broker = mesh.broker("b", tiny, other)

    async def story() -> None:
        async with AsyncClient(broker.address) as client:
            answers = Answers(client, [{"prompt": "p", "model": "tiny", **LONG}])
            await answers.are_under_way()
            tiny.kill()
            await asyncio.to_thread(
                mesh.node, "tiny", *options, "--served-name", "tiny", bind=tiny.address.removeprefix("tcp://")
            )
            assert (await client.generate("new", model="tiny", max_tokens=3)).node == "tiny"
            await answers.end()
            assert answers.interrupted

    with Client(broker.address) as client:
        wait_for_nodes(client, 2)
        eventually(lambda: {model.name for model in client.models()} == {"tiny", "other"})
    asyncio.run(story())
