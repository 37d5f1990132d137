"""Whatever dies, hangs or falls silent under a stream: its text is that of the undisturbed run, after a short pause."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest

from mesh import Client
from mesh.client.aio import AsyncClient
from tests.faults.answers import Answers
from tests.faults.nodes import LEASE_S, MARGIN_S, STEADY, are_idle, signal_workers
from tests.support.processes import Member, Mesh, wait_for_nodes

Fault = Callable[[Member], None]


def _survives(addresses: list[str], hurt: Callable[[], object], longest_pause_s: float) -> Answers:
    """Streams of every kind and a batch, `hurt` in the middle of them: everything ends, and right."""

    async def story() -> Answers:
        async with AsyncClient(addresses) as client:
            answers = Answers.of_every_kind(client)
            batch = asyncio.create_task(client.generate_batch(["p", "q"], max_tokens=100, ignore_eos=True))
            await answers.are_under_way()
            hurt()
            await answers.end()
            assert [len(completion.token_ids) for completion in await batch] == [100, 100]
        assert answers.interrupted, "the fault hit no stream, so nothing was tested"
        assert max(answer.longest_pause_s for answer in answers.all) < longest_pause_s
        return answers

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("hurt", "longest_pause_s"),
    [
        pytest.param(Member.kill, MARGIN_S, id="killed"),
        pytest.param(lambda node: node.process.send_signal(signal.SIGSTOP), LEASE_S + MARGIN_S, id="silent"),
        pytest.param(lambda node: node.process.terminate(), MARGIN_S, id="leaving"),
        pytest.param(lambda node: signal_workers(node, signal.SIGKILL), MARGIN_S, id="worker-killed"),
        pytest.param(lambda node: signal_workers(node, signal.SIGSTOP), 1.0 + 2 * MARGIN_S, id="worker-silent"),
    ],
)
def test_streams_of_a_node_go_on_elsewhere(mesh: Mesh, hurt: Fault, longest_pause_s: float) -> None:
    first, second = mesh.node("first", *STEADY), mesh.node("second", *STEADY)
    broker = mesh.broker("b", first, second)
    with Client(broker.address) as client:
        wait_for_nodes(client, 2)
    _survives([broker.address], lambda: hurt(first), longest_pause_s)
    are_idle(second, broker)


@pytest.mark.parametrize(
    ("hurt", "longest_pause_s"),
    [
        pytest.param(Member.kill, MARGIN_S, id="killed"),
        pytest.param(lambda broker: broker.process.send_signal(signal.SIGSTOP), LEASE_S + MARGIN_S, id="silent"),
        pytest.param(lambda broker: broker.process.terminate(), MARGIN_S, id="leaving"),
    ],
)
def test_streams_do_not_end_with_the_broker_they_run_through(mesh: Mesh, hurt: Fault, longest_pause_s: float) -> None:
    node = mesh.node("n", *STEADY)
    first, second = mesh.broker("first", node), mesh.broker("second", node)
    for broker in (first, second):
        with Client(broker.address) as client:
            wait_for_nodes(client, 1)
    _survives([first.address, second.address], lambda: hurt(first), longest_pause_s)
    are_idle(second, node)


def test_the_only_broker_comes_back_at_its_address_and_streams_go_on(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY)
    broker = mesh.broker("b", node)
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)

    def restart() -> None:
        broker.kill()
        mesh.broker("b", node, bind=broker.address.removeprefix("tcp://"))

    _survives([broker.address], restart, longest_pause_s=10.0)  # most of it is Python starting


def test_the_only_node_comes_back_at_its_address_under_its_name_and_streams_go_on(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY)
    broker = mesh.broker("b", node)
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)

    def restart() -> None:
        node.kill()
        mesh.node("n", *STEADY, bind=node.address.removeprefix("tcp://"))

    _survives([broker.address], restart, longest_pause_s=15.0)


def test_a_node_that_wakes_up_finds_its_old_requests_cancelled_and_takes_new_ones(mesh: Mesh) -> None:
    first, second = mesh.node("first", *STEADY), mesh.node("second", *STEADY)
    broker = mesh.broker("b", first, second)
    with Client(broker.address) as client:
        wait_for_nodes(client, 2)
        _survives(
            [broker.address], lambda: first.process.send_signal(signal.SIGSTOP), longest_pause_s=LEASE_S + MARGIN_S
        )
        first.process.send_signal(signal.SIGCONT)
        are_idle(first)
        wait_for_nodes(client, 2)


def test_a_client_that_stood_still_goes_on_where_it_was(mesh: Mesh) -> None:
    """Its broker has given it up meanwhile. That is nobody's death, so it costs no attempt of `max_attempts`."""
    node = mesh.node("n", *STEADY)
    with Client(node.address) as client:
        wait_for_nodes(client, 1)

    async def story() -> None:
        async with AsyncClient(node.address, max_attempts=1) as client:
            answers = Answers.of_every_kind(client, copies=1)
            await answers.are_under_way()
            _block_the_loop(2 * LEASE_S)
            await answers.end()
            assert answers.interrupted

    asyncio.run(story())


def _block_the_loop(seconds: float) -> None:
    """What SIGSTOP would do to the whole process, done to its loop alone: the process is the test's own."""
    import time

    time.sleep(seconds)
