"""Metric families in one line each, with labels that cannot grow without end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from mesh.metrics.buckets import Buckets
from mesh.version import __version__

MAX_LABEL_CHARS = 100
MAX_VALUES = 500  # of one label: names are what others chose to say, and each costs the monitoring memory for weeks

Row = tuple[Sequence[str], float]
"""The values of the labels, and the value."""


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def gauges(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def counter(name: str, text: str, value: float) -> Metric:
    """`name` without `_total`, which the format adds."""
    return CounterMetricFamily(name, text, value=value)


def counters(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def histogram(name: str, text: str, buckets: Buckets) -> Metric:
    return HistogramMetricFamily(name, text, buckets=buckets.cumulative(), sum_value=buckets.total)


def build_info(prefix: str) -> Metric:
    rows = [([__version__], 1.0)]
    return gauges(f"{prefix}_build_info", "The version of the software, as a label.", ["version"], rows)


def states(name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], str]]) -> Metric:
    """One series for each state, 1 for the one that it is in."""
    all_rows = [([*values, state], float(state == its)) for values, its in rows for state in STATES]
    return gauges(name, text, [*labels, "state"], all_rows)


STATES = ("joining", "ready", "busy", "suspect", "stalled", "draining", "lost")


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for values, value in _distinct(rows):
        family.add_metric(values, value)
    return family


def _distinct(rows: Iterable[Row]) -> Iterator[tuple[Sequence[str], float]]:
    """A series must not occur twice, and long names may begin alike."""
    seen = set()
    for values, value in rows:
        shown = tuple([label(one) for one in values])
        if shown not in seen:
            seen.add(shown)
            yield shown, value


def label(value: str) -> str:
    return value if len(value) <= MAX_LABEL_CHARS else f"{value[: MAX_LABEL_CHARS - 1]}…"
