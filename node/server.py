"""Sockets, timers, signals and processes around a NodeAgent. Every decision is the agent's."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from mesh.bind import bind_router
from mesh.codec import encode
from mesh.discovery.addresses import parse_endpoint
from mesh.discovery.interfaces import advertised_endpoints, multicast_interfaces
from mesh.discovery.mdns import Advertiser
from mesh.discovery.records import Advert
from mesh.discovery.session import MdnsSession
from mesh.errors import RequestError
from mesh.home import home_folder
from mesh.link import Frames
from mesh.messages import PROTOCOL_VERSION, Message
from mesh.security.identified import server_link
from mesh.security.server_access import server_access
from node.agent import NodeAgent
from node.config import NodeConfig
from node.engine.base import StepOutput
from node.prepare import Prepared
from node.requests import Route
from node.supervisor import WorkerProcess
from node.telemetry_nvml import gpu_telemetry
from node.text.tokenizer import TextCodec, TokenizerError, load_tokenizer

if TYPE_CHECKING:
    from node.metrics import NodeMetrics

logger = logging.getLogger(__name__)

SAME_SIGNAL_S = 0.3  # a terminal or `timeout` tells the process and its group: one wish, two signals
LEAVE_WITHIN_S = 1.0  # for the last messages to reach the wire
_NUM_PREPARING = 2  # threads that validate and tokenise long bodies


class NodeServer:
    """One node: `run` serves until SIGTERM or SIGINT, then drains and leaves."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._background: set[asyncio.Future[Any]] = set()
        # Few: each may take tens of megabytes for a moment, and what they do in Python they cannot do at once.
        self._preparing = ThreadPoolExecutor(_NUM_PREPARING, "prepare")
        self._timer: asyncio.TimerHandle | None = None
        self._told_to_stop_at = 0.0
        self._workers: list[WorkerProcess] = []

    async def run(self) -> None:
        """Serve. Raises ConfigError when the address cannot be bound."""
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._metrics = self._make_metrics()
        self._telemetry = gpu_telemetry(self.config)
        self._handle_signals()  # before anything takes time: whoever stops a starting node wants it gone as well
        self._access = server_access(
            self._context,
            mesh=self.config.mesh,
            bind=self.config.endpoint,
            insecure=self.config.insecure,
            join_token=self.config.join,
            with_clients=self.config.direct,
            home=self.config.home,
        )
        socket, self.address = bind_router(
            self._context, self.config.endpoint, self.config.is_default_bind, self._access.guard
        )
        self.config = self.config.named(parse_endpoint(self.address, bind=True).port, self._access.mesh)
        logger.info("listening address=%s name=%s mesh=%s", self.address, self.config.name, self.config.mesh)
        with tempfile.TemporaryDirectory(prefix="phi3-node-") as folder:
            self._workers = self._make_workers(Path(folder))
            self.agent = NodeAgent(
                self.config,
                self._workers,
                epoch=secrets.randbits(62),
                send=self._send,
                in_thread=self._in_thread,
                now=self._loop.time(),
            )
            self._link = server_link(socket, self._access.gatekeeper, self._on_frames, self._rearm)
            if self._telemetry is not None:
                self.agent.work.facts.gpus = self._telemetry.latest
                self._telemetry.start()
            if self._metrics is not None:
                self._metrics.start(self.agent, self._workers)
                logger.info("metrics url=%s", self._metrics.url)
            session = await self._advertise()
            tasks = [asyncio.create_task(worker.run(), name=worker.name) for worker in self._workers]
            self._beat()
            try:
                await self._stopped.wait()
                self.agent.drain(self._loop.time())
            finally:
                await self._leave(tasks, session)

    def stop(self) -> None:
        """Drain and leave."""
        self._stopped.set()

    # --- starting and leaving -----------------------------------------------------------------------------------------

    def _make_metrics(self) -> NodeMetrics | None:
        """With its port bound: whoever named one that is taken should hear it before anything else has begun."""
        if not self.config.metrics_port:
            return None
        from node.metrics import NodeMetrics  # costs time that only those pay who want it

        return NodeMetrics(self.config)

    def _make_workers(self, folder: Path) -> list[WorkerProcess]:
        return [
            WorkerProcess(
                name,
                options,
                self.config.home or home_folder(),
                folder,
                self._context,
                stall_s=self.config.stall_s,
                on_ready=self._on_worker_ready,
                on_outputs=self._on_outputs,
                on_stats=self._on_stats,
                on_lost=self._on_worker_lost,
            )
            for name, options in self.config.worker_options()
        ]

    async def _advertise(self) -> MdnsSession | None:
        if not self.config.mdns:
            return None
        bound = parse_endpoint(self.address, bind=True)
        advert = Advert(
            kind="node",
            mesh=self.config.mesh,
            instance_id=self.config.node_id,
            epoch=str(self.agent.epoch),
            addresses=advertised_endpoints(bound, self.config.advertise),
            version=PROTOCOL_VERSION,
            models=(self.config.model_name,),
        )
        session = MdnsSession(multicast_interfaces(bound))
        await session.start()
        await Advertiser(session).start(advert)
        return session

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        now = self._loop.time()
        if self._stopped.is_set():
            if now - self._told_to_stop_at < SAME_SIGNAL_S:
                return
            logger.warning("stopping_hard signal=%s", number.name)
            for worker in self._workers:
                worker.kill("the node was told to stop twice")
            raise SystemExit(1)
        self._told_to_stop_at = now
        logger.info("stopping signal=%s", number.name)
        self.stop()

    async def _leave(self, tasks: Sequence[asyncio.Task[None]], session: MdnsSession | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if session is not None:
            await session.close()
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._preparing.shutdown(wait=False, cancel_futures=True)
        self._link.close(linger_s=LEAVE_WITHIN_S)
        if self._metrics is not None:
            await self._metrics.stop()
        if self._telemetry is not None:
            self._telemetry.stop()
        self._access.close()
        await asyncio.to_thread(self._context.term)
        logger.info("stopped name=%s", self.config.name)

    # --- frames -------------------------------------------------------------------------------------------------------

    def _on_frames(self, user: str, frames: Frames) -> None:
        try:
            split = frames.index(b"")
            header = frames[split + 1]
        except (ValueError, IndexError):
            self.agent.work.counters["malformed_envelope"] += 1
            return
        if split:
            self.agent.receive(user, tuple(frames[:split]), header, frames[split + 2 :], self._loop.time())

    def _send(self, route: Route, message: Message, parts: Sequence[bytes]) -> bool:
        try:
            self._link.send([*route, b"", encode(message), *parts])
        except zmq.ZMQError as error:
            # EHOSTUNREACH: gone. EAGAIN: reads too slowly, and is shed rather than waited for.
            self.agent.work.counters["unreachable" if error.errno == zmq.EHOSTUNREACH else "slow_reader"] += 1
            return False
        return True

    def _in_thread(
        self, work: Callable[[], Prepared | RequestError], then: Callable[[Prepared | RequestError], None]
    ) -> None:
        def done(future: asyncio.Future[Prepared | RequestError]) -> None:
            self._background.discard(future)
            if not future.cancelled():
                then(future.result())
                self._rearm()

        future = self._loop.run_in_executor(self._preparing, work)
        self._background.add(future)
        future.add_done_callback(done)

    # --- workers ------------------------------------------------------------------------------------------------------

    def _on_worker_ready(self, worker: WorkerProcess) -> None:
        assert worker.info is not None
        info = worker.info
        logger.info(
            "ready worker=%s model=%s device=%s dtype=%s load_s=%.1f slots=%d (%s) context=%d",
            *(worker.name, info.model, info.device, info.dtype, info.load_s, info.slots, info.slots_reason),
            info.max_model_len,
        )
        future = self._loop.run_in_executor(None, partial(load_codec, self.config.engine, info.folder))
        self._background.add(future)
        future.add_done_callback(partial(self._on_codec, worker))

    def _on_codec(self, worker: WorkerProcess, future: asyncio.Future[TextCodec]) -> None:
        self._background.discard(future)
        try:
            codec = future.result()
        except TokenizerError as error:
            logger.error("tokenizer_failed worker=%s reason=%s", worker.name, error)
            worker.kill(f"its tokenizer cannot be used: {error}")
            return
        self.agent.work.worker_ready(codec, self._loop.time())

    def _on_outputs(self, worker: WorkerProcess, outputs: Sequence[StepOutput]) -> None:
        self.agent.work.take_outputs(outputs, self._loop.time())
        self._rearm()

    def _on_stats(self, worker: WorkerProcess) -> None:
        self.agent.work.facts.worker_stats(worker, self._loop.time())

    def _on_worker_lost(self, worker: WorkerProcess, reason: str) -> None:
        self.agent.work.worker_lost(worker, f"worker {worker.name} of {self.config.name}: {reason}", self._loop.time())

    # --- time ---------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Every half heartbeat: leases, deadlines, hung workers."""
        # First what has arrived: after this process was suspended, the messages that renew the leases wait unread.
        self._link.drain()
        for worker in self._workers:
            worker.check()
        if self._access.gatekeeper is not None:
            self.agent.end_access(self._access.gatekeeper.unwelcome(self.agent.requesters.users))
        self._next_beat = self._loop.time() + self.config.heartbeat_s / 2
        self._tick()

    def _tick(self) -> None:
        self.agent.tick(self._loop.time())
        self._rearm()

    def _rearm(self) -> None:
        """One timer, for whatever comes first."""
        due = self.agent.work.next_due()
        if self._timer is not None:
            self._timer.cancel()
        if due < self._next_beat:
            self._timer = self._loop.call_at(due, self._tick)
        else:
            self._timer = self._loop.call_at(self._next_beat, self._beat)


def load_codec(engine: str, folder: str) -> TextCodec:
    """The text side of a model. Raises TokenizerError."""
    if engine == "synthetic":
        from node.text.synthetic import SyntheticTextCodec

        return SyntheticTextCodec()
    return load_tokenizer(Path(folder))
