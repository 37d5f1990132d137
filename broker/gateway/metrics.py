"""What this gateway counts, for Prometheus. Durations are in seconds, sizes in bytes, as its rules want."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.metrics.buckets import DURATION_S, FIRST_TOKEN_S, INTER_TOKEN_S, Buckets
from mesh.metrics.loop_lag import LoopLag
from mesh.metrics.samples import build_info, histogram

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series beside each counter that says when it began: nobody asks for it

_OUTCOMES = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 429: "overloaded", 499: "cancelled"}
_OUTCOMES |= {503: "not_ready", 408: "deadline", 504: "deadline"}


def outcome_of(status: int) -> str:
    """The label for a request that ended with this status, were it only in the middle of a stream."""
    if status < 400:
        return "finished"
    return _OUTCOMES.get(status) or ("invalid" if status < 500 else "failed")


class _OfProcess(Collector):
    """What is not about requests."""

    def __init__(self, lag: LoopLag) -> None:
        self._lag = lag

    def collect(self) -> Iterator[Metric]:
        yield build_info("phi3_gateway")
        yield histogram(
            "phi3_gateway_loop_lag_seconds", "How late the event loop ran a timer, ten times a second.",
            self._lag.buckets,
        )  # fmt: skip


class _Gaps(Collector):
    """The one histogram that every token of every stream goes into. prometheus_client's own takes five times as long to
    add to."""

    def __init__(self, by_api: Mapping[str, Buckets]) -> None:
        self._by_api = by_api

    def collect(self) -> Iterator[Metric]:
        text = "Between two arrivals of tokens of one streamed answer."
        family = HistogramMetricFamily("phi3_gateway_inter_token_seconds", text, labels=["api"])
        for api, buckets in sorted(self._by_api.items()):
            family.add_metric([api], buckets.cumulative(), buckets.total)
        yield family


class Metrics:
    """One registry for each gateway: two in one process (as in tests) do not add up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.lag = LoopLag()
        self.registry.register(_OfProcess(self.lag))
        self.requests = Counter(
            "phi3_gateway_requests", "Requests by API and outcome.", ["api", "outcome"], registry=self.registry
        )
        self.ttft = Histogram(
            "phi3_gateway_time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            ["api"], buckets=FIRST_TOKEN_S, registry=self.registry,
        )  # fmt: skip
        self.gaps: defaultdict[str, Buckets] = defaultdict(lambda: Buckets(INTER_TOKEN_S))  # by API
        self.registry.register(_Gaps(self.gaps))
        self.duration = Histogram(
            "phi3_gateway_request_duration_seconds",
            "From the arrival of a request to the end of its answer.",
            ["api"], buckets=DURATION_S, registry=self.registry,
        )  # fmt: skip
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of the prompts of finished answers.")
        self.cached_tokens = self._counter("cached_tokens", "Those of them that were found in a prefix cache.")
        self.generated_tokens = self._counter("generated_tokens", "Tokens of finished answers.")
        self.retries = self._counter("retries", "Attempts after the first: nodes lost, drained or full on the way.")
        self.in_flight = Gauge("phi3_gateway_in_flight_requests", "Answers not ended yet.", registry=self.registry)
        self.waiting = Gauge(
            "phi3_gateway_waiting_requests", "Of these, the ones without a first token.", registry=self.registry
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"phi3_gateway_{name}", text, registry=self.registry)
