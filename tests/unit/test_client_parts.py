"""The small parts of the client: results, alarms, the order of a batch, the table of messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
import uvloop

from mesh import Completion, Overloaded
from mesh.client.alarms import Alarms
from mesh.client.gathering import Gathering
from mesh.client.results import Choice, Usage
from mesh.client.retry import History
from mesh.client.session import Session
from mesh.messages import MESSAGES

FIRST_ANSWER_TAG = 16


def choice(index: int, ttft_s: float = 1.0, attempts: int = 1) -> Choice:
    return Choice(
        index, f"text {index}", (index,), "stop", Usage(5, 10, 2), index, None, "m", "n", ttft_s, 3.0, attempts
    )


def test_a_completion_reads_as_its_text_and_sums_its_choices():
    completion = Completion.of((choice(0, 1.0), choice(1, 0.5, attempts=3)))

    assert str(completion) == "text 0"
    assert completion.usage == Usage(5, 20, 4)
    assert (completion.ttft_s, completion.attempts, completion.usage.total_tokens) == (0.5, 3, 25)


def test_every_message_of_a_server_has_exactly_one_handler():
    answers = {cls for tag, cls in MESSAGES.items() if tag >= FIRST_ANSWER_TAG}

    assert set(Session._HANDLERS) == answers
    assert len(set(Session._HANDLERS.values())) == len(answers) - 1  # Pong and Accepted share theirs


def test_a_batch_comes_back_in_order_with_progress():
    told: list[tuple[int, int]] = []
    gathering = Gathering(2, lambda done, total: told.append((done, total)), return_errors=True)
    error = Overloaded("full")
    gathering.add(1, error)
    gathering.add(0, Completion.of((choice(0),)))

    assert [str(outcome) for outcome in gathering.outcomes()] == ["text 0", "full"]
    assert told == [(1, 2), (2, 2)]


def test_the_first_error_of_a_batch_is_raised_and_says_which_prompt_it_was():
    with pytest.raises(Overloaded) as caught:
        Gathering(2, None, return_errors=False).add(1, Overloaded("full"))
    assert "prompt 1" in caught.value.__notes__[0]


def test_the_history_of_attempts_stays_short():
    history = History()
    for number in range(100):
        history.add(number, f"lost {number}")
    for number in range(100, 1000):
        history.add(number, "full")

    assert len(history.sentences()) == 32
    assert history.sentences()[-1] == "attempts 100-999: full"


def test_alarms_ring_in_order_and_forget_the_dead():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        rung: list[int] = []
        done = asyncio.Event()

        def ring(key: int, now: float) -> None:
            rung.append(key)
            if key == 2:
                done.set()

        alarms = Alarms(loop, ring, is_live=lambda key: key < 10)
        now = loop.time()
        for key in range(10, 5000):
            alarms.set(now + 60, key)
        assert len(alarms) < 2048
        alarms.set(now + 0.02, 2)
        alarms.set(now + 0.01, 1)
        async with asyncio.timeout(5):
            await done.wait()
        alarms.close()
        assert rung == [1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_alarms_for_times_that_have_come_ring_too(run):
    """On uvloop such a timer is of another kind, which cannot say when it is due."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        rung: asyncio.Queue[int] = asyncio.Queue()
        alarms = Alarms(loop, lambda key, now: rung.put_nowait(key), is_live=lambda key: True)
        for key, ago_s in ((1, 1.0), (2, 0.5), (3, 2.0)):
            alarms.set(loop.time() - ago_s, key)
        async with asyncio.timeout(5):
            assert {await rung.get(), await rung.get(), await rung.get()} == {1, 2, 3}

    run(scenario())


def test_importing_the_client_brings_in_nothing_heavy():
    heavy = ("torch", "transformers", "zeroconf", "rich", "uvloop", "node", "broker")
    check = f"import sys, mesh; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_tracker_needs_no_socket_no_loop_and_no_clock():
    """Read, not imported: importing any part of mesh brings in the client."""
    import mesh.client.retry
    import mesh.client.tracker

    for module in (mesh.client.tracker, mesh.client.retry):
        assert not {"zmq", "asyncio", "time"} & set(vars(module))
