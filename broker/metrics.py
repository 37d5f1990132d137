"""`--metrics-port` of a broker: what it shows to Prometheus. Imported only when that is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

from broker.config import BrokerConfig
from broker.core import BrokerCore
from broker.times import Times
from mesh.metrics.buckets import Buckets
from mesh.metrics.exporter import Exporter
from mesh.metrics.from_loop import FromLoop
from mesh.metrics.loop_lag import LoopLag
from mesh.metrics.mesh_view import mesh_families
from mesh.metrics.samples import build_info, histogram
from mesh.report import StatusReport

_PREFIX = "phi3_broker"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is taken on the loop; nobody changes it after that."""

    report: StatusReport
    times: Times
    loop_lag: Buckets


class BrokerMetrics:
    """Made before the broker, because it binds its port; started when the broker runs."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises ConfigError when the port cannot be had."""
        self._exporter = Exporter(config.metrics_host or config.endpoint.host, config.metrics_port)
        self._lag = LoopLag()
        self.url = self._exporter.url

    def start(self, core: BrokerCore) -> None:
        """On the broker's loop."""

        def take() -> Snapshot:
            return Snapshot(core.status(time.monotonic()), core.times.copy(), self._lag.buckets.copy())

        self._lag.start()
        self._exporter.start(FromLoop(asyncio.get_running_loop(), take, families))

    async def stop(self) -> None:
        self._lag.stop()
        await self._exporter.stop()


def families(snapshot: Snapshot) -> Iterator[Metric]:
    yield build_info(_PREFIX)
    times = snapshot.times
    for name, text, buckets in (
        ("queue", "From the arrival of a request to its leaving for a node.", times.queue),
        ("request_duration", "From the arrival of a request to a node's last word on it.", times.duration),
        ("heartbeat_delay", "From a Ping to its Pong, all nodes together.", times.heartbeat),
        ("loop_lag", "How late the event loop ran a timer, ten times a second.", snapshot.loop_lag),
    ):
        yield histogram(f"{_PREFIX}_{name}_seconds", text, buckets)
    yield from mesh_families(_PREFIX, snapshot.report)
