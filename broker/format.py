"""Numbers as a person reads them in a narrow column. Nothing to say is an empty cell."""

from __future__ import annotations

from collections.abc import Sequence

_GIB = 1 << 30
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


def number(value: float) -> str:
    """950, 1.2k, 35k."""
    if value < 1_000:
        return f"{value:.0f}"
    return f"{value / 1000:.1f}k" if value < 10_000 else f"{value / 1000:.0f}k"


def of(part: float, whole: float) -> str:
    """3/8; nothing when there is no whole."""
    return f"{part:.0f}/{whole:.0f}" if whole else ""


def latency(seconds: float) -> str:
    """12ms, 1.4s, 2m."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 120 else age(seconds)


def age(seconds: float) -> str:
    """45s, 12m, 3h 5m, 2d 7h."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f}s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f}m"
    if seconds < _DAY_S:
        return f"{seconds // _HOUR_S:.0f}h {seconds % _HOUR_S // _MINUTE_S:.0f}m"
    return f"{seconds // _DAY_S:.0f}d {seconds % _DAY_S // _HOUR_S:.0f}h"


def bytes_of(used: float, total: float) -> str:
    """20/80G; nothing when unknown."""
    if not total and not used:
        return ""
    if not total:
        return f"{used / _GIB:.1f}G"
    return f"{used / _GIB:.0f}/{total / _GIB:.0f}G" if total >= 10 * _GIB else f"{used / _GIB:.1f}/{total / _GIB:.1f}G"


def device_load(utilisations: Sequence[float], temperatures_c: Sequence[float]) -> str:
    """87% 64°: how busy the devices of a node are on average, and how warm the warmest is, where that is known."""
    if not utilisations:
        return ""
    warmest_c = max(temperatures_c, default=0.0)
    return f"{100 * sum(utilisations) / len(utilisations):.0f}%" + (f" {warmest_c:.0f}°" if warmest_c else "")
