"""`--metrics-port` of a node: what it shows to Prometheus. Imported only when that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from mesh.metrics.buckets import FIRST_TOKEN_S, INTER_TOKEN_S, LATENESS_S, WAIT_S, Buckets
from mesh.metrics.counters import NODE, counter_families
from mesh.metrics.devices import device_families
from mesh.metrics.exporter import Exporter
from mesh.metrics.from_loop import FromLoop
from mesh.metrics.loop_lag import LoopLag
from mesh.metrics.samples import Row, build_info, counters, gauge, gauges, histogram, states
from mesh.report import NodeReport
from node.agent import NodeAgent
from node.config import NodeConfig
from node.engine.base import EngineStats
from node.requesters import Requester
from node.supervisor import WorkerProcess

_PREFIX = "phi3_node"
_MAX_BROKERS = 50


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    name: str
    is_ready: bool
    num_starts: int
    step_age_s: float
    stats: EngineStats | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is taken on the loop; nobody changes it after that."""

    node: NodeReport
    counters: Mapping[str, int]
    workers: Sequence[WorkerSnapshot]
    num_by_role: Mapping[str, int]  # of those who are connected
    silence_s: Mapping[str, float]  # by broker
    histograms: Mapping[str, tuple[str, Buckets]]  # by name, with the help


class NodeMetrics:
    """Made before the node, because it binds its port; started when the agent is there. `observe_…` are called on the
    node's loop, in its busiest places."""

    def __init__(self, config: NodeConfig) -> None:
        """Raises ConfigError when the port cannot be had."""
        self._exporter = Exporter(config.metrics_host or config.endpoint.host, config.metrics_port)
        self.url = self._exporter.url
        self._lag = LoopLag(also=self._look_at_brokers)
        self._queue, self._first_token = Buckets(WAIT_S), Buckets(FIRST_TOKEN_S)
        self._inter_token, self._lateness = Buckets(INTER_TOKEN_S), Buckets(LATENESS_S)

    def observe_queue(self, seconds: float) -> None:
        """A request was given to the engine so long after it had come."""
        self._queue.add(seconds)

    def observe_first_token(self, seconds: float) -> None:
        """Its first token came so long after it had come itself."""
        self._first_token.add(seconds)

    def observe_inter_token(self, seconds: float, count: int) -> None:
        """So long passed between two steps that gave so many requests tokens."""
        self._inter_token.add(seconds, count)

    def start(self, agent: NodeAgent, workers: Sequence[WorkerProcess]) -> None:
        """On the node's loop."""
        self._agent = agent
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        agent.work.facts.listener = self
        self._lag.start()
        self._exporter.start(FromLoop(self._loop, self._take, families))

    async def stop(self) -> None:
        self._lag.stop()
        await self._exporter.stop()

    def _look_at_brokers(self, _: float) -> None:
        """A broker pings each heartbeat, and any message counts as life: what is beyond that is late."""
        now, heartbeat_s = self._loop.time(), self._agent.config.heartbeat_s
        for requester in self._agent.requesters.brokers():
            self._lateness.add(max(0.0, now - requester.last_heard_at - heartbeat_s))

    def _take(self) -> Snapshot:
        agent, now = self._agent, self._loop.time()
        requesters = agent.requesters
        return Snapshot(
            node=agent.report(now).nodes[0],
            counters=dict(agent.work.counters),
            workers=[
                WorkerSnapshot(worker.name, worker.info is not None, worker.num_starts, worker.step_age_s, worker.stats)
                for worker in self._workers
            ],
            num_by_role=requesters.num_by_role(),
            silence_s=_longest_silences(requesters.brokers(), now),
            histograms={
                "queue": ("From the arrival of a request to its start in the engine.", self._queue.copy()),
                "time_to_first_token": (
                    "From the arrival of a request at this node to its first token.", self._first_token.copy(),
                ),
                "inter_token": ("Between two engine steps that gave a request tokens.", self._inter_token.copy()),
                "loop_lag": ("How late the event loop ran a timer, ten times a second.", self._lag.buckets.copy()),
                "heartbeat_lateness": (
                    "How overdue a word of a broker was, looked at ten times a second.", self._lateness.copy(),
                ),
            },
        )  # fmt: skip


def _longest_silences(brokers: Iterable[Requester], now: float) -> dict[str, float]:
    """Of those, so many, that are silent for longest; of two with one name as well."""
    silences = sorted((now - broker.last_heard_at, broker.name) for broker in brokers)[-_MAX_BROKERS:]
    return {name: seconds for seconds, name in silences}


def families(snapshot: Snapshot) -> Iterator[Metric]:
    node = snapshot.node
    yield build_info(_PREFIX)
    yield from _of_itself(node)
    for name, (text, buckets) in snapshot.histograms.items():
        yield histogram(f"{_PREFIX}_{name}_seconds", text, buckets)
    yield from counter_families(_PREFIX, NODE, snapshot.counters)
    yield from device_families(_PREFIX, [], [([], node.devices)])
    yield from _of_workers(snapshot.workers)
    by_role: list[Row] = [([role], number) for role, number in snapshot.num_by_role.items()]
    yield gauges(f"{_PREFIX}_connections", "Brokers and clients that are connected.", ["role"], by_role)
    silence: list[Row] = [([name], seconds) for name, seconds in snapshot.silence_s.items()]
    yield gauges(f"{_PREFIX}_heartbeat_age_seconds", "Since a broker was last heard.", ["broker"], silence)


def _of_itself(node: NodeReport) -> Iterator[Metric]:
    model = node.models[0].name if node.models else ""
    what = [node.name, model, node.engine, node.device, node.dtype]
    labels = ["node", "model", "engine", "device", "dtype"]
    yield gauges(f"{_PREFIX}_info", "What it serves and on what, as labels.", labels, [(what, 1.0)])
    yield states(f"{_PREFIX}_state", "1 for the state it is in, 0 for the others.", [], [([], node.state)])
    yield gauge(f"{_PREFIX}_uptime_seconds", "Since its start.", node.uptime_s)
    yield gauge(f"{_PREFIX}_running_requests", "Requests in the engine.", node.num_running)
    yield gauge(f"{_PREFIX}_waiting_requests", "Requests that wait here for a slot.", node.num_queued)
    yield gauge(f"{_PREFIX}_slots", "Requests that can run at the same time.", node.slots_total)
    yield gauge(f"{_PREFIX}_inter_token_target_seconds", "Of adaptive concurrency; 0: off.", node.target_itl_s)


def _of_workers(workers: Sequence[WorkerSnapshot]) -> Iterator[Metric]:
    def family(name: str, text: str, rows: list[Row]) -> Metric:
        return gauges(f"{_PREFIX}_worker_{name}", text, ["worker"], rows)

    def total(name: str, text: str, rows: list[Row]) -> Metric:
        return counters(f"{_PREFIX}_worker_{name}", text, ["worker"], rows)

    restarts: list[Row] = [([worker.name], max(0, worker.num_starts - 1)) for worker in workers]
    yield total("restarts", "Engine processes started again after one ended.", restarts)
    yield family("ready", "Whether its model is loaded.", [([worker.name], worker.is_ready) for worker in workers])
    yield family(
        "step_age_seconds", "How long its work has waited for a step; 0 without work.",
        [([worker.name], worker.step_age_s) for worker in workers],
    )  # fmt: skip
    measured = [([worker.name], worker.stats) for worker in workers if worker.stats is not None]
    yield total("steps", "Engine steps.", [(name, stats.steps) for name, stats in measured])
    yield total("busy_seconds", "Time spent inside engine steps.", [(name, stats.busy_s) for name, stats in measured])
    yield family(
        "cache_used_tokens", "Tokens in its cache.", [(name, stats.cache_tokens_used) for name, stats in measured]
    )
