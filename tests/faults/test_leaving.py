"""Drain, undrain and signals: a node leaves when it is told to, and nobody notices."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from mesh import Client, Rejected
from mesh.client.aio import AsyncClient
from scripts.chaostool.member import children_of
from tests.faults.answers import Answers
from tests.faults.nodes import MARGIN_S, STEADY, are_idle, report_of, signal_workers
from tests.support.eventually import eventually
from tests.support.processes import Mesh, wait_for_nodes

FOR_LONG = {"max_tokens": 3000, "ignore_eos": True}  # a minute


def test_a_drained_node_hands_its_streams_over_at_once_and_takes_work_again_when_undrained(mesh: Mesh) -> None:
    first, second = mesh.node("first", *STEADY), mesh.node("second", *STEADY)
    broker = mesh.broker("b", first, second)

    async def story() -> None:
        async with AsyncClient(broker.address) as client:
            answers = Answers.of_every_kind(client)
            await answers.are_under_way()
            began = time.monotonic()
            await client.drain("first")
            await asyncio.to_thread(are_idle, first)
            assert time.monotonic() - began < MARGIN_S
            await answers.end()
            assert answers.interrupted
            assert max(answer.longest_pause_s for answer in answers.all) < MARGIN_S
            assert {(await client.generate(f"{i}", max_tokens=1)).node for i in range(8)} == {"second"}

    with Client(broker.address) as client:
        wait_for_nodes(client, 2)
        asyncio.run(story())
        client.undrain("first")
        wait_for_nodes(client, 2)
        nodes = {completion.node for completion in client.generate_batch(["p"] * 30, max_tokens=10)}
        assert nodes == {"first", "second"}


def test_a_drain_through_one_broker_may_be_taken_back_through_another(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY)
    first, second = mesh.broker("b1", node), mesh.broker("b2", node)
    with Client(first.address) as one, Client(second.address) as other:
        wait_for_nodes(one, 1)
        wait_for_nodes(other, 1)
        one.drain("n")
        eventually(lambda: report_of(other, "n").state == "draining")
        other.undrain("n")
        eventually(lambda: report_of(one, "n").state == "ready")
        assert one.generate("hello", max_tokens=3, timeout_s=5).node == "n"


def test_draining_a_node_that_is_not_there_says_who_is(mesh: Mesh) -> None:
    broker = mesh.broker("b", mesh.node("n"))
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
        with pytest.raises(Rejected, match=r"no node is called 'm'; known: n"):
            client.drain("m")


def test_sigterm_lets_a_node_leave_in_about_a_second_however_long_its_answers_are(mesh: Mesh) -> None:
    node, heir = mesh.node("n", *STEADY), mesh.node("heir", *STEADY)
    broker = mesh.broker("b", node, heir)
    with Client(broker.address) as client:
        wait_for_nodes(client, 2)
        with client.stream("one", **FOR_LONG) as one, client.stream("other", **FOR_LONG) as other:
            next(one), next(other)
            began = time.monotonic()
            node.process.send_signal(signal.SIGTERM)
            assert node.process.wait(10) == 0
            assert time.monotonic() - began < 3.0
            eventually(lambda: report_of(client, "heir").num_running == 2)
    assert "stopped name=n" in node.log_text()


def test_a_second_sigterm_ends_a_node_at_once(mesh: Mesh) -> None:
    """Its worker is stopped, so that the first one has something to wait for."""
    node = mesh.node("n", *STEADY)
    with Client(node.address) as client:
        wait_for_nodes(client, 1)
    signal_workers(node, signal.SIGSTOP)
    node.process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping signal" in node.log_text())
    began = time.monotonic()
    # A terminal sends two signals for one wish, so the node takes what follows very closely for an echo.
    eventually(lambda: node.process.send_signal(signal.SIGTERM) or node.process.poll() is not None, within_s=2)
    assert time.monotonic() - began < 1.5
    assert node.process.returncode in (1, -signal.SIGTERM)  # a third one may find it without its handlers


def test_a_second_sigterm_ends_a_broker_at_once(mesh: Mesh) -> None:
    broker = mesh.broker("b")
    broker.process.send_signal(signal.SIGTERM)
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(5) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.parametrize("moment", ["it listens", "its worker exists"])
def test_a_node_that_is_stopped_while_its_worker_starts_ends_cleanly(mesh: Mesh, moment: str) -> None:
    """It hung until it was killed: the socket of the unfinished start was left open."""
    node = mesh.node("n")
    if moment == "its worker exists":
        eventually(lambda: children_of(node.pid))
    node.process.terminate()
    assert node.process.wait(5) == 0
    eventually(lambda: children_of(node.pid) == [])
