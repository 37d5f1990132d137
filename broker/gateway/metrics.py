"""What this gateway counts, for Prometheus. Durations are in seconds, sizes in bytes, as its rules want."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series beside each counter that says when it began: nobody asks for it

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_GAP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DURATION = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_OUTCOMES = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 429: "overloaded", 499: "cancelled"}
_OUTCOMES |= {503: "not_ready", 408: "deadline", 504: "deadline"}


def outcome_of(status: int) -> str:
    """The label for a request that ended with this status, were it only in the middle of a stream."""
    if status < 400:
        return "finished"
    return _OUTCOMES.get(status) or ("invalid" if status < 500 else "failed")


class Metrics:
    """One registry for each gateway: two in one process (as in tests) do not add up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "phi3_gateway_requests", "Requests by API and outcome.", ["api", "outcome"], registry=self.registry
        )
        self.ttft = Histogram(
            "phi3_gateway_time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            ["api"], buckets=_LATENCY, registry=self.registry,
        )  # fmt: skip
        self.gap = Histogram(
            "phi3_gateway_inter_token_seconds",
            "Between two arrivals of tokens of one streamed answer.",
            ["api"], buckets=_GAP, registry=self.registry,
        )  # fmt: skip
        self.duration = Histogram(
            "phi3_gateway_request_duration_seconds",
            "From the arrival of a request to the end of its answer.",
            ["api"], buckets=_DURATION, registry=self.registry,
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
