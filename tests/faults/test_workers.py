"""Engine workers break in every way there is: the agent stays, the caller waits a little, the reason is told."""

from __future__ import annotations

import asyncio
import os
import re
import signal

import pytest

from mesh import Client, EngineFailed, NodeLost, PromptTooLong
from mesh.client.aio import AsyncClient
from scripts.chaostool.member import children_of
from tests.faults.answers import LONG, Answers
from tests.faults.nodes import MARGIN_S, STEADY, numbers, report_of, signal_workers
from tests.support.eventually import eventually
from tests.support.processes import Mesh, wait_for_nodes

STALL_S = 1.0  # what nodes.STEADY says


@pytest.mark.parametrize(
    ("fault", "told", "longest_pause_s"),
    [
        ("fatal_after_steps", "fell off the bus", MARGIN_S),
        ("oom_after_steps", "out of memory", MARGIN_S),
        ("hang_after_steps", "no step for", STALL_S + 0.5 + MARGIN_S),
    ],
)
def test_what_ran_on_a_broken_engine_goes_on_elsewhere_and_the_engine_is_started_again(
    mesh: Mesh, fault: str, told: str, longest_pause_s: float
) -> None:
    broken, sound = mesh.node("broken", *STEADY, *numbers(**{fault: 30})), mesh.node("sound", *STEADY)
    broker = mesh.broker("b", broken, sound)

    async def story() -> None:
        async with AsyncClient(broker.address) as client:
            answers = Answers.of_every_kind(client)
            await answers.end()
            assert answers.interrupted
            assert max(answer.longest_pause_s for answer in answers.all) < longest_pause_s

    with Client(broker.address) as client:
        wait_for_nodes(client, 2)
        asyncio.run(story())
        assert told in broken.log_text()
        wait_for_nodes(client, 2)


def test_a_request_that_breaks_every_engine_ends_after_max_attempts_and_tells_the_story(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY, *numbers(fatal_after_steps=5))
    with Client(node.address, max_attempts=2) as client:
        wait_for_nodes(client, 1)
        with pytest.raises((NodeLost, EngineFailed), match="given up") as raised:
            client.generate("poison", **LONG)
    story = "\n".join(raised.value.attempts)
    assert "attempt 1: lost: node n: " in story
    assert "fell off the bus" in story
    assert node.process.poll() is None


def test_a_worker_that_cannot_start_says_why_in_status_and_does_not_spin(mesh: Mesh) -> None:
    node = mesh.node("n", "--engine", "synthetic", "--device", "abacus")
    with Client(node.address) as client:
        note = eventually(lambda: report_of(client, "n").note, within_s=20)
        eventually(lambda: "no device 'abacus'" in report_of(client, "n").note, within_s=20)
        eventually(lambda: node.log_text().count("worker_lost") >= 2, within_s=20)
        assert "choose one of" in report_of(client, "n").note, note
    assert node.log_text().count("worker_lost") <= 3  # the pauses double
    assert report_is_joining(node.address)


def report_is_joining(address: str) -> bool:
    with Client(address) as client:
        return client.status().nodes[0].state == "joining"


def test_a_request_that_the_cache_cannot_hold_is_rejected_at_the_door_and_harms_no_other(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY, *numbers(cache_tokens=500, max_model_len=4000))
    broker = mesh.broker("b", node)

    async def story() -> None:
        async with AsyncClient(broker.address) as client:
            answers = Answers(client, [{"prompt": "small", **LONG}])
            await answers.are_under_way()
            with pytest.raises(PromptTooLong, match="cache holds 500"):
                await client.generate("x" * 450, max_tokens=60)
            await answers.end()
            assert not answers.interrupted

    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
    asyncio.run(story())
    assert "worker_lost" not in node.log_text()


def test_a_killed_worker_is_back_in_about_a_second(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY)
    with Client(node.address) as client:
        wait_for_nodes(client, 1)
        signal_workers(node, signal.SIGKILL)
        eventually(lambda: client.status().num_ready == 0)
        assert "killed by signal 9" in eventually(lambda: report_of(client, "n").note)
        wait_for_nodes(client, 1, within_s=5)


def test_a_lost_gpu_takes_only_what_its_worker_had(mesh: Mesh) -> None:
    node = mesh.node("n", *STEADY, "--device", "auto,auto")  # two devices, a worker for each

    async def story() -> None:
        async with AsyncClient(node.address) as client:
            answers = Answers.of_every_kind(client)
            await answers.are_under_way()
            os.kill(children_of(node.pid)[0], signal.SIGKILL)
            await answers.end()
            assert 0 < len(answers.interrupted) < len(answers.all)

    with Client(node.address) as client:
        wait_for_nodes(client, 1)
        eventually(lambda: report_of(client, "n").note == "")
        slots = report_of(client, "n").slots_total
        asyncio.run(story())
        eventually(lambda: report_of(client, "n").slots_total == slots, within_s=5)
    assert node.log_text().count("worker_lost") == 1


def test_a_worker_that_cannot_come_back_counts_no_slots_and_stops_nobody(mesh: Mesh) -> None:
    one = mesh.node("one", *STEADY, "--device", "auto")
    two = mesh.node("two", *STEADY, "--device", "auto,abacus")
    with Client(one.address) as sound, Client(two.address) as client:
        wait_for_nodes(sound, 1)
        wait_for_nodes(client, 1)
        # What it says between its attempts, and during them.
        eventually(lambda: re.match(r"the synthetic engine has no device 'abacus'", report_of(client, "two").note))
        eventually(lambda: "starting (before: the synthetic engine has no" in report_of(client, "two").note)
        report = report_of(client, "two")
        assert report.slots_total == report_of(sound, "one").slots_total
        assert report.state == "ready"
        assert client.generate("hello", max_tokens=5).choices[0].finish_reason == "length"
