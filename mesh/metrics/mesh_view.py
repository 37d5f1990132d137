"""The mesh as its status report tells of it, for the broker itself and for a gateway in front of it. Nothing is kept
between scrapes, so a node that is gone leaves no series behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from prometheus_client.core import Metric

from mesh.metrics.counters import BROKER, NODE, counter_families
from mesh.metrics.devices import device_families
from mesh.metrics.samples import MAX_VALUES, STATES, counter, counters, gauge, gauges, label, states
from mesh.report import ModelReport, NodeReport, StatusReport

_MODEL_GAUGES: tuple[tuple[str, str, Callable[[ModelReport], float]], ...] = (
    ("running_requests", "Requests in a slot.", lambda model: model.num_running),
    ("queued_requests", "Requests taken in and not yet in a slot.", lambda model: model.num_queued),
    ("slots", "Requests that can run at the same time.", lambda model: model.slots_total),
)
_NODE_GAUGES: tuple[tuple[str, str, Callable[[NodeReport], float]], ...] = (
    ("memory_used_bytes", "Device memory in use.", lambda node: node.memory_used_bytes),
    ("memory_size_bytes", "Device memory there is.", lambda node: node.memory_total_bytes),
    ("busy_ratio", "Share of the time in which its engine computed.", lambda node: node.busy_fraction),
    ("generation_rate", "Tokens per second over the last seconds.", lambda node: node.tokens_per_s),
    ("time_to_first_token_p50_seconds", "Median, without the broker's queue.", lambda node: node.ttft_p50_s),
    ("time_to_first_token_p99_seconds", "99th percentile, likewise.", lambda node: node.ttft_p99_s),
    ("inter_token_p50_seconds", "Median time between two tokens of a request.", lambda node: node.itl_p50_s),
    ("inter_token_p99_seconds", "99th percentile, likewise.", lambda node: node.itl_p99_s),
    ("inter_token_target_seconds", "What adaptive concurrency holds it to; 0: off.", lambda node: node.target_itl_s),
    ("uptime_seconds", "Since its start.", lambda node: node.uptime_s),
    ("heartbeat_age_seconds", "Since the broker last heard of it.", lambda node: node.heartbeat_age_s),
)
_NODE_COUNTERS = {
    **{name: text for name, text in NODE.named.values() if name.endswith("_tokens") or name == "resumed_requests"},
    "worker_restarts": "Engine processes started again.",
}


def mesh_families(prefix: str, report: StatusReport) -> Iterator[Metric]:
    """Everything a broker's report says. That of a lone node has the node's own counters."""
    yield gauge(f"{prefix}_uptime_seconds", "Since the start of whoever reports.", report.uptime_s)
    yield gauge(f"{prefix}_queued_requests", "Waiting at the broker for a node.", report.num_queued)
    yield gauge(f"{prefix}_in_flight_requests", "At a node, not ended yet.", report.num_in_flight)
    yield gauge(f"{prefix}_clients", "Connected to the broker.", report.num_clients)
    yield from counter_families(prefix, NODE if report.kind == "node" else BROKER, report.counters)
    failovers = report.counters.get("lost", 0) + report.counters.get("handed_over", 0)
    yield counter(f"{prefix}_failovers", "Requests given back to their clients, to go on elsewhere.", failovers)
    yield from _of_models(prefix, report)
    yield from _of_nodes(prefix, report)


def _of_models(prefix: str, report: StatusReport) -> Iterator[Metric]:
    models = report.models[:MAX_VALUES]
    for metric, text, value in _MODEL_GAUGES:
        rows = [([model.name], value(model)) for model in models]
        yield gauges(f"{prefix}_model_{metric}", f"{text[:-1]}, over all nodes and here.", ["model"], rows)


def _of_nodes(prefix: str, report: StatusReport) -> Iterator[Metric]:
    in_state = Counter(node.state for node in report.nodes)
    rows = [([state], in_state[state]) for state in STATES]
    yield gauge(f"{prefix}_ready_nodes", "Nodes that take work.", report.num_ready)
    yield gauges(f"{prefix}_nodes", "Nodes known, by state.", ["state"], rows)
    nodes = _distinct(report.nodes)
    its_state = [([name], node.state) for name, node in nodes.items()]
    yield states(f"{prefix}_node_state", "1 for the state it is in, 0 for the others.", ["node"], its_state)
    connected = {name: node for name, node in nodes.items() if node.state != "lost" and node.version}
    for metric, text, value in _NODE_GAUGES:
        yield gauges(
            f"{prefix}_node_{metric}", text, ["node"], [([name], value(node)) for name, node in connected.items()]
        )
    served = list(islice(((n, m) for n, node in connected.items() for m in node.models), MAX_VALUES))
    for metric, text, of_model in _MODEL_GAUGES:
        model_rows = [([name, model.name], of_model(model)) for name, model in served]
        yield gauges(f"{prefix}_node_{metric}", text, ["node", "model"], model_rows)
    yield from _node_counters(prefix, connected)
    owners = [([name], node.devices) for name, node in connected.items()]
    yield from device_families(f"{prefix}_node", ["node"], owners)


def _node_counters(prefix: str, nodes: dict[str, NodeReport]) -> Iterator[Metric]:
    """What each has counted since its start. Only names known here: what others send must not make metrics."""
    for name, text in _NODE_COUNTERS.items():
        rows = [([node], report.counters.get(name, 0)) for node, report in nodes.items()]
        yield counters(f"{prefix}_node_{name}", text, ["node"], rows)
    outcomes = [
        ([node, outcome], report.counters.get(outcome, 0))
        for node, report in nodes.items()
        for outcome in NODE.outcomes
    ]
    yield counters(f"{prefix}_node_requests", "Requests that have left it, by outcome.", ["node", "outcome"], outcomes)


def _distinct(nodes: Iterable[NodeReport]) -> dict[str, NodeReport]:
    """By a name for each: a series must not occur twice, and nothing keeps two hosts from having one name."""
    named: dict[str, NodeReport] = {}
    for node in islice(nodes, MAX_VALUES):
        name = label(node.name or node.address)
        named[name if name not in named else label(f"{len(named)} {node.address} {name}")] = node
    return named
