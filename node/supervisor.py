"""One engine worker process: started, listened to, and started again when it dies. It never takes the agent with it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import zmq

from mesh.link import Context, Link
from node.engine import ipc
from node.engine.base import EngineInfo, EngineOptions, EngineRequest, EngineStats, StepOutput

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 60.0
STEADY_AFTER_S = 60.0  # a worker that served this long starts over with the first delay
STOP_WITHIN_S = 2.0
SILENT_AFTER_S = 10.0  # statistics come four times a second; an idle worker this silent hangs in native code


class WorkerProcess:
    """The supervisor of one worker, in the form that the pool knows (`node.pool.Worker`).

    `on_ready`, `on_outputs`, `on_stats` and `on_lost(reason)` are called on the loop. `on_lost` is called once for each
    process that ended while it was ready, before the next one starts.
    """

    def __init__(
        self,
        name: str,
        options: EngineOptions,
        home: Path,
        folder: Path,
        context: Context,
        *,
        stall_s: float,
        on_ready: Callable[[WorkerProcess], None],
        on_outputs: Callable[[WorkerProcess, Sequence[StepOutput]], None],
        on_stats: Callable[[WorkerProcess], None],
        on_lost: Callable[[WorkerProcess, str], None],
    ) -> None:
        self.name = name
        self.info: EngineInfo | None = None
        self.stats: EngineStats | None = None
        self.note = "starting"
        self.num_starts = 0
        self._options = options
        self._home = home
        self._folder = folder
        self._context = context
        self._stall_s = stall_s
        self._on_ready = on_ready
        self._on_outputs = on_outputs
        self._on_stats = on_stats
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._process: Process | None = None
        self._heard_at = 0.0
        self._ready_at = 0.0
        self._reason = ""
        self._last_failure = ""  # why the process before this one ended, until this one is ready
        self._is_stopping = False
        self._is_connected = False
        self._has_work = False

    # --- what the pool calls ------------------------------------------------------------------------------------------

    @property
    def step_age_s(self) -> float:
        """A worker that is stopped reports nothing, and its last report said that all was well: its silence counts."""
        if not self._has_work or self.info is None:
            return 0.0
        last_step_age_s = self.stats.last_step_age_s if self.stats is not None else 0.0
        return last_step_age_s + self._loop.time() - self._heard_at

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        self._has_work = True
        self._tell(ipc.Submit(requests))

    def cancel(self, engine_ids: Sequence[int]) -> None:
        self._tell(ipc.Cancel(engine_ids))

    def _tell(self, message: ipc.Message) -> None:
        if self._link is None:
            return
        with suppress(zmq.Again):  # nobody is there: it has not connected yet, or is dead, which `_run_once` notices
            self._link.send([ipc.encode(message)])

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep one process alive until `stop`. Waits longer after each failure, so a broken model does not spin."""
        delay_s = FIRST_DELAY_S
        while not self._is_stopping:
            await self._run_once()
            if self._is_stopping:
                return
            served_s = self._loop.time() - self._ready_at if self.info is not None else 0.0
            delay_s = FIRST_DELAY_S if served_s > STEADY_AFTER_S else min(MAX_DELAY_S, delay_s * 2)
            self._report_loss()
            self._last_failure = self._reason
            wait_s = delay_s * random.uniform(0.5, 1.0)
            self.note = f"{self._reason}; starting again in {wait_s:.1f} s"
            await asyncio.sleep(wait_s)

    def _report_loss(self) -> None:
        logger.warning("worker_lost worker=%s reason=%s", self.name, self._reason)
        was_ready, self.info, self.stats = self.info is not None, None, None
        if was_ready:
            self._on_lost(self, self._reason)

    async def _run_once(self) -> None:
        """One process, from its start to its end."""
        self.num_starts += 1
        self._reason = ""
        self._has_work = False
        self._is_connected = False
        self._note("starting")
        address = f"ipc://{self._folder}/{self.name}-{self.num_starts}"
        socket = self._context.socket(zmq.PAIR)
        socket.sndhwm = socket.rcvhwm = 0  # bounded by the slots; a step must never wait
        socket.linger = 0
        socket.bind(address)
        # A PAIR takes nothing until its peer is there, so what to load is said when the worker has connected.
        monitor = Link(socket.get_monitor_socket(int(zmq.Event.HANDSHAKE_SUCCEEDED)), self._introduce)
        self._link = Link(socket, self._on_frames)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "node.engine.worker", address, stdin=asyncio.subprocess.DEVNULL
            )
            logger.debug("worker_started worker=%s pid=%d", self.name, self._process.pid)
            self._heard_at = self._loop.time()
            code = await self._process.wait()
            self._link.drain()  # its last words: outputs that were under way, and why it died
            self._reason = self._reason or _describe_exit(code)
        finally:  # also when the node leaves in the middle of this: an open socket would keep its context for ever
            self.kill("the node leaves")
            socket.disable_monitor()
            monitor.close()
            self._link.close()
            self._link = None
            self._process = None

    def _introduce(self, event: list[bytes]) -> None:
        self._is_connected = True
        self._tell(ipc.Start(self._options, str(self._home)))

    async def stop(self) -> None:
        """Ask it to leave; kill it if it does not within STOP_WITHIN_S."""
        self._is_stopping = True
        process = self._process
        if process is None:
            return
        if not self._is_connected:  # Python is still starting in there, and hears nothing
            self.kill("the node leaves")
        self._tell(ipc.Stop())
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            self.kill("did not stop when asked")

    def kill(self, reason: str) -> None:
        """End the process now; `run` starts the next one."""
        if self._process is not None and self._process.returncode is None:
            self._reason = reason
            with suppress(ProcessLookupError):
                self._process.kill()

    def check(self) -> None:
        """Kill a worker that hangs: it has work and makes no step, or it is silent altogether."""
        if self.info is None:
            return
        if self.step_age_s > self._stall_s:
            self.kill(f"no step for {self.step_age_s:.1f} s while work waits")
        elif self._loop.time() - self._heard_at > max(SILENT_AFTER_S, self._stall_s):
            self.kill(f"silent for {self._loop.time() - self._heard_at:.1f} s")

    # --- messages -----------------------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        self._heard_at = self._loop.time()
        match ipc.decode(frames[0]):
            case ipc.Outputs(outputs):
                self._on_outputs(self, outputs)
            case ipc.Stats(stats):
                self.stats = stats
                self._has_work = bool(stats.num_running or stats.num_waiting)
                self._on_stats(self)
            case ipc.Progress(text):
                self._note(text)
                logger.info("loading worker=%s %s", self.name, text)
            case ipc.Ready(info):
                self.info = info
                self.note = self._last_failure = ""
                self._ready_at = self._loop.time()
                self._keep_device(info)
                self._on_ready(self)
            case ipc.Fatal(reason):
                self._reason = reason
            case other:
                logger.warning("unexpected_message worker=%s kind=%s", self.name, type(other).__name__)

    def _note(self, text: str) -> None:
        """What it does, and why it has to do it again: a worker that fails time and again is seldom seen failing."""
        self.note = f"{text} (before: {self._last_failure})" if self._last_failure else text

    def _keep_device(self, info: EngineInfo) -> None:
        """What found a GPU by itself is to have a GPU for good. One that was lost would be found missing by the next
        process, which would take the CPU, be a hundred times as slow, and still be given work."""
        if self._options.device == "auto" and info.device.startswith("cuda"):
            self._options = dataclasses.replace(self._options, device="cuda:0")


def _describe_exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exited with status {code}"
