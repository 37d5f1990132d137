"""Ten thousand prompts in one call: bounded messages, shared out by frames that nobody on the way reads."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from broker.server import BrokerServer
from mesh import AsyncClient
from mesh.codec import decode
from mesh.link import Frames
from mesh.messages import RequestHead, Submit, Tokens
from tests.support.broker_client import until
from tests.support.broker_world import World, in_world

NUM_PROMPTS = 10_000
NUM_NODES, SLOTS = 4, 256
BROKER_TAKES, NODE_TAKES = 512, 256  # requests in one message; the latter is what a fake node says


@pytest.mark.usefixtures("plain_text")
def test_ten_thousand_prompts_move_in_few_bounded_messages_to_all_nodes() -> None:
    async def story(world: World) -> None:
        nodes = [world.node(f"n{number}", slots=SLOTS, answers_with=1) for number in range(NUM_NODES)]
        limits = {"max_batch": BROKER_TAKES, "max_queued": 4 * NUM_PROMPTS, "max_requests_per_client": NUM_PROMPTS}
        broker = await world.broker(*(node.address for node in nodes), **limits)
        sizes = _sizes_of_submits_to(broker)
        await until(lambda: broker.core.status(time.monotonic()).num_ready == NUM_NODES)
        async with AsyncClient(broker.address, mesh=world.mesh) as client:
            answers = await client.generate_batch([f"prompt {i}" for i in range(NUM_PROMPTS)], max_tokens=1)

        assert [answer.token_ids for answer in answers] == [(0,)] * NUM_PROMPTS
        assert sum(sizes) == NUM_PROMPTS  # each was sent once
        assert max(sizes) <= BROKER_TAKES
        assert len(sizes) < 3 * NUM_PROMPTS / BROKER_TAKES
        for node in nodes:
            submits = [len(message.requests) for message in node.received if isinstance(message, Submit)]
            assert max(submits) <= NODE_TAKES
            assert len(submits) < sum(submits) / 10  # not one by one either
        assert min(Counter(answer.node for answer in answers).values()) > NUM_PROMPTS / NUM_NODES / 2

    in_world(story)


def test_a_batch_is_shared_out_and_answered_without_a_look_into_its_bodies() -> None:
    """These are no MessagePack at all, in either direction, and arrive byte for byte."""

    async def story(world: World) -> None:
        nodes = [world.node(f"n{number}", slots=50) for number in range(2)]
        broker = await world.broker(*(node.address for node in nodes))
        client = await world.client(broker.address, slots=100)
        bodies = {request_id: b"\xc1 body %d" % request_id for request_id in range(1, 101)}
        client.sends(Submit(tuple(RequestHead(request_id, 1) for request_id in bodies)), *bodies.values())
        await until(lambda: sum(len(node.requests) for node in nodes) == 100)
        assert all(node.requests for node in nodes)
        assert {held.head.request_id: held.body for node in nodes for held in node.requests} == bodies

        for node in nodes:
            finished = tuple(held.key for held in node.requests)
            node._send(node.requests[0].route, Tokens(finished, len(finished)), b"\xc1 of " + node.name.encode())
        await until(lambda: len(client.of(Tokens)) == 2)
        answers = [body for message, body in client.heard if isinstance(message, Tokens)]
        assert sorted(answers) == [[b"\xc1 of n0"], [b"\xc1 of n1"]]
        assert broker.core.status(time.monotonic()).models[0].num_running == 0  # the header said that all have ended

    in_world(story)


def _sizes_of_submits_to(broker: BrokerServer) -> list[int]:
    """Fills with the number of requests in each Submit that arrives."""
    sizes: list[int] = []
    receive = broker.core.from_client

    def counting(frames: Frames, now: float, user: str) -> None:
        message = decode(frames[frames.index(b"") + 1])
        if isinstance(message, Submit):
            sizes.append(len(message.requests))
        receive(frames, now, user)

    broker.core.from_client = counting  # type: ignore[method-assign]
    return sizes
