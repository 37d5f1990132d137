"""The mesh as Prometheus sees it from a gateway, made from the last status report when it is scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from broker.gateway.watch import Watch
from mesh.metrics.mesh_view import mesh_families
from mesh.metrics.samples import gauge


class MeshCollector(Collector):
    """Reads the watch; asks nobody, because a scrape must not wait for the mesh."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        report = self._watch.report
        yield gauge("phi3_mesh_up", "Whether the mesh answers.", float(report is not None))
        if report is not None:
            yield from mesh_families("phi3_mesh", report)
