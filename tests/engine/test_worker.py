"""A real worker process over a real socket, with the synthetic engine inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import zmq

from node.engine import ipc
from node.engine import synthetic_vocab as vocab
from node.engine.base import EngineOptions, EngineRequest

ROOT = Path(__file__).parents[2]
PATIENCE_MS = 20_000
PROMPT = vocab.encode("hello")

M = TypeVar("M", bound=ipc.Message)


class Agent:
    """The agent's end of the socket."""

    def __init__(self, socket: zmq.Socket[bytes], process: subprocess.Popen[bytes]) -> None:
        self.socket = socket
        self.process = process

    def send(self, message: ipc.Message) -> None:
        self.socket.send(ipc.encode(message))

    def start(self, **options: object) -> ipc.Ready:
        self.send(ipc.Start(EngineOptions("synthetic", **{"device": "instant", **options}), "unused"))  # type: ignore[arg-type]
        return self.hear(ipc.Ready)

    def hear(self, kind: type[M]) -> M:
        """The next message of a kind; others are passed over."""
        while self.socket.poll(PATIENCE_MS):
            message = ipc.decode(self.socket.recv())
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")

    def answer(self, request_id: int) -> list[int]:
        tokens: list[int] = []
        while True:
            for output in self.hear(ipc.Outputs).outputs:
                if output.request_id == request_id:
                    tokens += output.token_ids
                    if output.finish_reason:
                        return tokens


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    address = f"ipc://{tmp_path}/worker"
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.linger = 0
        socket.bind(address)
        process = subprocess.Popen([sys.executable, "-m", "node.engine.worker", address], cwd=ROOT)
        yield Agent(socket, process)
        process.kill()
        process.wait()


def test_it_loads_answers_and_stops_when_told(agent: Agent) -> None:
    assert agent.start().info.device == "synthetic instant"
    agent.send(ipc.Submit([EngineRequest(7, PROMPT, 40), EngineRequest(8, PROMPT, 40)]))
    assert agent.answer(7) == vocab.expected_tokens(PROMPT, 40, stop_token_ids=())
    agent.send(ipc.Stop())
    assert agent.process.wait(timeout=10) == 0


def test_one_message_carries_a_whole_step(agent: Agent) -> None:
    agent.start(synthetic={"step_base_s": 0.002})
    agent.send(ipc.Submit([EngineRequest(i, PROMPT, 5) for i in range(10)]))
    for _ in range(5):
        assert len(agent.hear(ipc.Outputs).outputs) == 10


def test_it_reports_statistics_though_the_engine_hangs(agent: Agent) -> None:
    agent.start(synthetic={"hang_after_steps": 2})
    agent.send(ipc.Submit([EngineRequest(1, PROMPT, 100)]))
    ages = [agent.hear(ipc.Stats).stats.last_step_age_s for _ in range(4)]
    assert ages[-1] > ages[-2] > 0


def test_a_cancelled_request_ends(agent: Agent) -> None:
    agent.start(synthetic={"step_base_s": 0.01})
    agent.send(ipc.Submit([EngineRequest(1, PROMPT, 2000)]))
    agent.hear(ipc.Outputs)
    agent.send(ipc.Cancel([1]))
    assert len(agent.answer(1)) < 2000


def test_a_fatal_error_is_told_before_the_process_ends(agent: Agent) -> None:
    agent.start(synthetic={"oom_after_steps": 1})
    agent.send(ipc.Submit([EngineRequest(1, PROMPT, 100)]))
    assert "out of memory" in agent.hear(ipc.Fatal).reason
    assert agent.process.wait(timeout=10) == 1


def test_an_engine_that_cannot_start_says_why(agent: Agent) -> None:
    agent.send(ipc.Start(EngineOptions("synthetic", device="abacus"), "unused"))
    assert "abacus" in agent.hear(ipc.Fatal).reason
    assert agent.process.wait(timeout=10) == 1


def test_it_can_be_stopped_while_it_loads_and_refuses_work_till_then(agent: Agent) -> None:
    agent.send(ipc.Start(EngineOptions("synthetic", synthetic={"load_s": 60.0}), "unused"))
    agent.send(ipc.Submit([EngineRequest(3, PROMPT, 5)]))
    (refusal,) = agent.hear(ipc.Outputs).outputs
    assert (refusal.request_id, refusal.finish_reason) == (3, "error")
    agent.send(ipc.Stop())
    assert agent.process.wait(timeout=10) == 0


def test_ctrl_c_is_left_to_the_agent(agent: Agent) -> None:
    agent.start()
    agent.process.send_signal(signal.SIGINT)
    agent.send(ipc.Submit([EngineRequest(1, PROMPT, 3)]))
    assert len(agent.answer(1)) == 3


def test_it_does_not_outlive_its_agent(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/worker"
    script = f"""
        import subprocess, sys
        worker = subprocess.Popen([sys.executable, "-m", "node.engine.worker", {address!r}])
        print(worker.pid, flush=True)
        worker.wait()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.linger = 0
        socket.bind(address)
        parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        worker = os.pidfd_open(int(parent.stdout.readline()))
        agent = Agent(socket, parent)
        agent.start()
        parent.kill()
        parent.communicate()
        poller = zmq.Poller()
        poller.register(worker, zmq.POLLIN)  # readable when that process has ended
        assert poller.poll(10_000)
        os.close(worker)
