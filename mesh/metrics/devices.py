"""GPUs, as their driver reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import Metric

from mesh.metrics.samples import gauges
from mesh.report import DeviceReport

_GAUGES: tuple[tuple[str, str, Callable[[DeviceReport], float]], ...] = (
    ("utilisation_ratio", "Share of the time in which it computed.", lambda device: device.utilisation),
    ("memory_used_bytes", "Its memory in use, by all processes.", lambda device: device.memory_used_bytes),
    ("memory_size_bytes", "Its memory.", lambda device: device.memory_total_bytes),
    ("temperature_celsius", "Its temperature.", lambda device: device.temperature_c),
    ("power_watts", "What it draws.", lambda device: device.power_w),
)
_ZERO_IS_A_VALUE = {"utilisation_ratio", "memory_used_bytes"}  # elsewhere it means that nobody knows


def device_families(
    prefix: str, labels: Sequence[str], owners: Iterable[tuple[Sequence[str], Sequence[DeviceReport]]]
) -> Iterator[Metric]:
    """Families `{prefix}_device_…`. An owner is the values of `labels`, and its devices."""
    named = [([*owner, name], device) for owner, devices in owners for name, device in _named(devices)]
    for metric, text, value in _GAUGES:
        rows = [(row, value(device)) for row, device in named if metric in _ZERO_IS_A_VALUE or value(device)]
        yield gauges(f"{prefix}_device_{metric}", text, [*labels, "device"], rows)


def _named(devices: Sequence[DeviceReport]) -> Iterator[tuple[str, DeviceReport]]:
    """Two cards of one kind may have one name, and a series must not occur twice."""
    names = [device.name for device in devices]
    for index, device in enumerate(devices):
        is_only = names.count(device.name) == 1
        yield device.name if is_only else f"{device.name} #{index}", device
