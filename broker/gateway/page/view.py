"""What the page shows of a status report: bounded, finite, and no more than that. Pure."""

from __future__ import annotations

import math
from typing import Any, TypedDict

from broker.gateway.page.naming import keyed, label, short
from mesh.report import ClientReport, DeviceReport, NodeReport, StatusReport

MAX_NODES = 256
MAX_DEVICES = 16  # of one node
MAX_MODELS = 64
_TROUBLED = ("lost", "stalled", "suspect", "draining", "joining")


class MeshView(TypedDict):
    """As JSON on the page."""

    server: dict[str, Any]
    totals: dict[str, float]
    nodes: list[dict[str, Any]]
    num_nodes: int
    models: list[dict[str, Any]]
    callers: list[dict[str, Any]]


def view_of(report: StatusReport) -> MeshView:
    nodes = keyed(report.nodes)
    served = [node for node in report.nodes if node.slots_total]
    if len(nodes) > MAX_NODES:  # whoever needs a person comes first
        nodes = dict(sorted(nodes.items(), key=lambda item: item[1].state not in _TROUBLED)[:MAX_NODES])
    return MeshView(
        server={
            "kind": short(report.kind),
            "name": short(report.name),
            "address": short(report.address.removeprefix("tcp://")),
            "version": short(report.version),
            "policy": short(report.policy),
            "uptime_s": _number(report.uptime_s),
            "num_clients": report.num_clients,
            "num_ready": report.num_ready,
        },
        totals={
            "tokens_per_s": _number(sum(node.tokens_per_s for node in served)),
            "ttft_s": _number(max((node.ttft_p50_s for node in served), default=0.0)),
            "running": sum(node.num_running for node in served),
            "slots": sum(node.slots_total for node in served),
            "queued": report.num_queued + sum(node.num_queued for node in served),
        },
        nodes=[_node(key, node) for key, node in nodes.items()],
        num_nodes=len(report.nodes),
        models=[
            {
                "name": model.name,
                "max_model_len": model.max_model_len,
                "slots": model.slots_total,
                "running": model.num_running,
                "queued": model.num_queued,
            }
            for model in report.models[:MAX_MODELS]
        ],
        callers=[_caller(client) for client in report.clients],
    )


def caller_key(client: ClientReport) -> str:
    """One caller from report to report."""
    return f"{client.kind} {client.has_own_key:d} {client.name}"


def _node(key: str, node: NodeReport) -> dict[str, Any]:
    return {
        "key": key,
        "name": label(node),
        "kind": short(node.kind),
        "state": short(node.state),
        "note": short(node.note),
        "address": short(node.address.removeprefix("tcp://")),
        "engine": short(node.engine),
        "device": short(node.device),
        "dtype": short(node.dtype),
        "models": [short(model.name) for model in node.models[:MAX_MODELS]],
        "slots": node.slots_total,
        "running": node.num_running,
        "queued": node.num_queued,
        "tokens_per_s": _number(node.tokens_per_s),
        "ttft_s": _number(node.ttft_p50_s),
        "devices": [_device(device) for device in _devices(node)[:MAX_DEVICES]],
    }


def _devices(node: NodeReport) -> tuple[DeviceReport, ...]:
    """One that stands for all, of a node that does not report them one by one."""
    if node.devices or not node.memory_total_bytes:
        return node.devices
    whole = DeviceReport(
        name=node.device,
        utilisation=node.busy_fraction,
        memory_used_bytes=node.memory_used_bytes,
        memory_total_bytes=node.memory_total_bytes,
    )
    return (whole,)


def _device(device: DeviceReport) -> dict[str, Any]:
    return {
        "name": short(device.name),
        "utilisation": _number(device.utilisation),
        "memory_used": device.memory_used_bytes,
        "memory_total": device.memory_total_bytes,
        "temperature_c": _number(device.temperature_c),
        "power_w": _number(device.power_w),
    }


def _caller(client: ClientReport) -> dict[str, Any]:
    return {
        "key": caller_key(client),
        "name": short(client.name),
        "kind": short(client.kind),
        "has_own_key": client.has_own_key,
        "connections": client.num_connections,
        "running": client.num_in_flight,
        "queued": client.num_queued,
    }


def _number(value: float) -> float:
    """JSON has neither NaN nor infinity, which a node could report."""
    return round(value, 4) if math.isfinite(value) else 0.0
