"""The mesh as Prometheus sees it, made from the last status report when it is scraped. Nothing is kept between scrapes,
so a node that is gone leaves no series behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.gateway.watch import Watch
from mesh.report import NodeReport, StatusReport

STATES = ("joining", "ready", "busy", "suspect", "stalled", "draining", "lost")

_NODE_GAUGES: tuple[tuple[str, str, Callable[[NodeReport], float]], ...] = (
    ("running_requests", "Requests in a slot.", lambda node: node.num_running),
    ("queued_requests", "Requests taken in by the node, not yet in a slot.", lambda node: node.num_queued),
    ("slots", "Requests that can run at the same time.", lambda node: node.slots_total),
    ("heartbeat_age_seconds", "Since the broker last heard of it.", lambda node: node.heartbeat_age_s),
    ("memory_used_bytes", "Device memory in use.", lambda node: node.memory_used_bytes),
    ("memory_size_bytes", "Device memory there is.", lambda node: node.memory_total_bytes),
    ("busy_ratio", "Share of the time in which its engine computed.", lambda node: node.busy_fraction),
    ("generation_rate", "Tokens per second over the last seconds.", lambda node: node.tokens_per_s),
    ("time_to_first_token_p50_seconds", "Median at the node, without the queue.", lambda node: node.ttft_p50_s),
    ("time_to_first_token_p99_seconds", "99th percentile, likewise.", lambda node: node.ttft_p99_s),
    ("uptime_seconds", "Since its start.", lambda node: node.uptime_s),
)


class MeshCollector(Collector):
    """Reads the watch; asks nobody, because a scrape must not wait for the mesh."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def describe(self) -> Iterable[Metric]:
        return ()  # or registering would collect once, before anything is known

    def collect(self) -> Iterator[Metric]:
        report = self._watch.report
        yield GaugeMetricFamily("phi3_mesh_up", "Whether the mesh answers.", value=float(report is not None))
        if report is not None:
            yield from _of_broker(report)
            yield from _of_nodes(_distinct(report.nodes))


def _of_broker(report: StatusReport) -> Iterator[Metric]:
    yield GaugeMetricFamily("phi3_mesh_queued_requests", "Waiting at the broker for a node.", value=report.num_queued)
    yield GaugeMetricFamily("phi3_mesh_in_flight_requests", "Not ended yet.", value=report.num_in_flight)
    yield GaugeMetricFamily("phi3_mesh_clients", "Connected to the broker.", value=report.num_clients)
    yield GaugeMetricFamily("phi3_mesh_ready_nodes", "Nodes that take work.", value=report.num_ready)
    counters = dict(report.counters)
    yield CounterMetricFamily(
        "phi3_mesh_tokens", "Generated since the broker's start.", value=counters.pop("tokens", 0)
    )
    yield CounterMetricFamily(
        "phi3_mesh_nodes_lost", "Nodes that died or fell silent.", value=counters.get("nodes_lost", 0)
    )
    failovers = counters.get("lost", 0) + counters.get("handed_over", 0)
    yield CounterMetricFamily("phi3_mesh_failovers", "Requests given back to go on elsewhere.", value=failovers)
    events = CounterMetricFamily("phi3_mesh_events", "What the broker counted, by its own names.", labels=["event"])
    for event, count in sorted(counters.items()):
        events.add_metric([event], count)
    yield events


def _of_nodes(nodes: dict[str, NodeReport]) -> Iterator[Metric]:
    states = GaugeMetricFamily("phi3_mesh_node_state", "1 for the state it is in.", labels=["node", "state"])
    for name, node in nodes.items():
        for state in STATES:
            states.add_metric([name, state], float(node.state == state))
    yield states
    for metric, text, value in _NODE_GAUGES:
        family = GaugeMetricFamily(f"phi3_mesh_node_{metric}", text, labels=["node"])
        for name, node in nodes.items():
            family.add_metric([name], value(node))
        yield family


def _distinct(nodes: Iterable[NodeReport]) -> dict[str, NodeReport]:
    """By a name for each: a series must not occur twice, and nothing keeps two hosts from having one name."""
    named: dict[str, NodeReport] = {}
    for node in nodes:
        name = node.name or node.address
        named[name if name not in named else f"{name} {node.address} {len(named)}"] = node
    return named
