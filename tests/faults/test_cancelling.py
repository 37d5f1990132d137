"""Whoever stops waiting, for whatever reason, frees his slots, and nobody else's."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from mesh import Client, DeadlineExceeded
from mesh.client.aio import AsyncClient
from tests.faults.answers import LONG, Answers
from tests.faults.nodes import LEASE_S, MARGIN_S, STEADY, are_idle, numbers, report_of
from tests.support.eventually import eventually
from tests.support.processes import Mesh, wait_for_nodes

FOR_EVER = {"max_tokens": 3900, "ignore_eos": True}


def test_a_closed_stream_frees_its_slot_and_touches_no_other(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY)
    broker = mesh.broker("b", node)

    async def story() -> None:
        async with AsyncClient(broker.address) as client:
            answers = Answers(client, [{"prompt": "stays", **LONG}])
            async with client.stream("goes", **FOR_EVER) as stream:
                await anext(stream)
                await answers.are_under_way()
            async with asyncio.timeout(MARGIN_S):
                while (await client.status()).num_in_flight > 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await answers.end()

    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
    asyncio.run(story())
    are_idle(node, broker)


def test_a_cancelled_stream_makes_room_for_the_next_one_in_line(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY, "--slots", "1")
    with Client(node.address) as client:
        wait_for_nodes(client, 1)
        with client.stream("first", **FOR_EVER) as first:
            next(first)
            second = client.stream("second", max_tokens=3)
        assert "".join(map(str, second))


@pytest.mark.parametrize("way_out", [signal.SIGKILL, signal.SIGSTOP])
def test_a_client_that_is_gone_without_a_word_frees_all_its_slots(mesh: Mesh, way_out: signal.Signals) -> None:
    node = mesh.node("n", *STEADY)
    broker = mesh.broker("b", node)
    code = f"from mesh import Client; Client({broker.address!r}).generate_batch(['p'] * 40, max_tokens=3900)"
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
        caller = subprocess.Popen([sys.executable, "-c", code])
        try:
            eventually(lambda: client.status().num_in_flight == 40, within_s=20)
            caller.send_signal(way_out)
            are_idle(broker, node, within_s=LEASE_S + MARGIN_S)
        finally:
            caller.kill()
            caller.wait()


def test_a_deadline_frees_the_slot(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY)
    broker = mesh.broker("b", node)
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
        with pytest.raises(DeadlineExceeded):  # the client's own or the broker's, whichever is first
            client.generate("slow", timeout_s=0.5, **FOR_EVER)
        are_idle(broker, node, within_s=MARGIN_S)


def test_what_cannot_be_done_in_time_is_dropped_before_it_is_prefilled(mesh: Mesh) -> None:
    """One slot is taken; the prompts behind it cost a second of prefill each, which nobody may spend."""
    node = mesh.node("n", *STEADY, "--slots", "1", *numbers(prefill_tokens_per_s=1000, step_base_s=0.02))
    broker = mesh.broker("b", node)
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
        with client.stream("first", **LONG) as first:
            next(first)
            late = client.generate_batch(["x" * 1000] * 5, max_tokens=1, timeout_s=0.4, return_errors=True)
            assert {type(outcome) for outcome in late} == {DeadlineExceeded}
            assert len("".join(map(str, first))) > 0
            assert first.result.total_s < 1.6 + MARGIN_S  # 80 tokens, and not one prefill in between
        assert report_of(client, "n").num_running == 0
