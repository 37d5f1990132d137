"""The engine worker: one child process around one engine. `python -m node.engine.worker ipc:///path/of/socket`.

The main thread owns the socket and decides nothing; the engine's own thread owns the device. Outputs cross between them
through a queue and a pipe, because a ZeroMQ socket must stay in one thread. The agent speaks first, with `Start`.
The main thread also sends the statistics, so an engine that hangs is seen to hang.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import zmq

from node.engine import ipc
from node.engine.base import Engine, EngineOptions, EngineRequest, StepOutput
from node.engine.claim import Devices
from node.engine.factory import create_engine
from node.engine.model_files import ModelUnavailable
from node.engine.process import prepare_process

STATS_INTERVAL_S = 0.25
LINGER_S = 2.0  # how long the last message may take to leave

log = logging.getLogger(__name__)


class Outbox:
    """Messages on their way from the engine's threads to the socket thread. A pipe wakes the poller: zmq.Poller takes
    file descriptors, not condition variables."""

    def __init__(self) -> None:
        self._messages: deque[ipc.Message] = deque()
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)

    def put(self, message: ipc.Message) -> None:
        self._messages.append(message)
        with suppress(BlockingIOError):  # a pipe full of unread wake-ups wakes the reader anyway
            os.write(self._write_fd, b"\0")

    def take_all(self) -> list[ipc.Message]:
        # The pipe is emptied before the queue: a message put in between leaves a byte behind, and none is stranded.
        with suppress(BlockingIOError):
            os.read(self.wake_fd, 65536)
        return [self._messages.popleft() for _ in range(len(self._messages))]


class Worker:
    """Moves messages between the agent's socket and the engine until one of them ends."""

    def __init__(self, socket: zmq.Socket[bytes], parent_pid: int, scratch: Path | None = None) -> None:
        """`scratch` is a folder that the agent removes when it leaves."""
        self._socket = socket
        self._parent_pid = parent_pid
        self._scratch = scratch
        self._devices = Devices(EngineOptions())
        self._outbox = Outbox()
        self._engine: Engine | None = None
        self._is_ready = False
        self._exit_code: int | None = None

    def run(self) -> int:
        """Serves until told to stop (0), orphaned (0) or broken (1)."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._outbox.wake_fd, zmq.POLLIN)
        next_stats = time.monotonic()
        while self._exit_code is None:
            poller.poll(math.ceil(max(0.0, next_stats - time.monotonic()) * 1000))
            self._take_commands()
            self._publish()
            if time.monotonic() >= next_stats:
                next_stats = time.monotonic() + STATS_INTERVAL_S
                self._beat()
        return self._exit_code

    def _take_commands(self) -> None:
        while self._exit_code is None:
            try:
                frame = self._socket.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._on_message(ipc.decode(frame))

    def _on_message(self, message: ipc.Message) -> None:
        match message:
            case ipc.Start():
                # Loading takes seconds to minutes, and the agent may say Stop meanwhile: it gets a thread of its own.
                threading.Thread(target=self._load, args=(message,), name="engine-load", daemon=True).start()
            case ipc.Submit(requests) if self._engine is not None and self._is_ready:
                self._engine.submit(requests)
            case ipc.Submit(requests):
                self._refuse(requests)
            case ipc.Cancel(request_ids) if self._engine is not None and self._is_ready:
                self._engine.cancel(request_ids)
            case ipc.Stop():
                if self._engine is not None and self._is_ready:
                    self._engine.stop()
                self._exit_code = 0
            case _:
                log.warning("unexpected_message kind=%s", type(message).__name__)

    def _load(self, start: ipc.Start) -> None:
        try:
            self._devices = Devices(start.options)
            engine = create_engine(self._devices.claim(), Path(start.home), self._report, self._scratch)
            self._engine = engine
            info = engine.start(lambda outputs: self._outbox.put(ipc.Outputs(outputs)), self._on_fatal)
        except (ModelUnavailable, ValueError) as error:  # the operator asked for what cannot be: no stack trace helps
            self._on_fatal(str(error))
        except Exception as error:  # the one broad catch of this process: whatever went wrong, the agent must hear it
            log.exception("engine_start_failed model=%s", start.options.model)
            self._on_fatal(str(error) or type(error).__name__)
        else:
            self._outbox.put(ipc.Ready(replace(info, device=self._devices.as_on_host(info.device))))

    def _report(self, line: str) -> None:
        self._outbox.put(ipc.Progress(self._devices.as_on_host(line)))

    def _refuse(self, requests: Sequence[EngineRequest]) -> None:
        error = "the engine is still loading"
        self._outbox.put(ipc.Outputs([StepOutput(r.request_id, (), (), "error", error) for r in requests]))

    def _on_fatal(self, reason: str) -> None:
        reason = self._devices.as_on_host(reason)
        log.error("engine_fatal reason=%s", reason)
        self._outbox.put(ipc.Fatal(reason))

    def _publish(self) -> None:
        for message in self._outbox.take_all():
            self._socket.send(ipc.encode(message))
            if isinstance(message, ipc.Ready):
                self._is_ready = True
            elif isinstance(message, ipc.Fatal):
                self._exit_code = 1
                return

    def _beat(self) -> None:
        if os.getppid() != self._parent_pid:
            log.warning("agent_gone pid=%s", self._parent_pid)
            self._exit_code = 0
        elif self._engine is not None and self._is_ready:
            self._socket.send(ipc.encode(ipc.Stats(self._engine.stats())))


def main(argv: Sequence[str]) -> int:
    """Connects to the agent's socket at `argv[0]` and serves it; the return value is the exit status."""
    parent_pid = os.getppid()
    prepare_process()
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    # No limit: what can pile up is bounded by the running requests, and a step must never wait for the agent.
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = int(LINGER_S * 1000)
    socket.connect(argv[0])
    try:
        return Worker(socket, parent_pid, Path(argv[0].removeprefix("ipc://")).parent).run()
    finally:
        socket.close()
        context.term()


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    logging.shutdown()
    # Not sys.exit: an engine thread that hangs in native code would keep the interpreter, and the GPU, for ever.
    os._exit(exit_code)
