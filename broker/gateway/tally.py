"""What became of one HTTP request, for the metrics: begun by the entrance, filled in on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.gateway.metrics import Metrics, outcome_of
from broker.gateway.problems import CALLER_LEFT, Problem, problem_of
from mesh import Completion
from mesh.errors import MeshError

_APIS = {
    "/v1/chat/completions": "openai_chat",
    "/v1/completions": "openai_completions",
    "/v1/messages": "anthropic_messages",
}


def api_of(path: str) -> str:
    """The label for a path. A fixed set, or callers could make series at will."""
    if path in _APIS:
        return _APIS[path]
    if path.startswith("/v2/models/"):
        last = path.rpartition("/")[2]
        if last == "infer":
            return "kserve_infer"
        if last in ("generate", "generate_stream"):
            return "kserve_generate"
    return "other"


@dataclass(slots=True)
class Tally:
    """`status` is that of the answer, or of what ended its stream later on, when the answer had said 200 already."""

    metrics: Metrics
    api: str
    started_at: float
    status: int = 0
    is_own_deadline: bool = False  # set by the caller, not by the gateway's options
    last_token_at: float = 0.0

    def on_tokens(self, now: float) -> None:
        """Some have come, for a caller who streams."""
        if self.last_token_at:
            self.metrics.gaps[self.api].add(now - self.last_token_at)
        else:
            self.metrics.ttft.labels(self.api).observe(now - self.started_at)
        self.last_token_at = now

    def on_whole(self, completions: Sequence[Completion]) -> None:
        """All has come, for a caller who waits for the whole."""
        self.metrics.ttft.labels(self.api).observe(min(completion.ttft_s for completion in completions))
        for completion in completions:
            self.on_finished(completion)

    def on_finished(self, completion: Completion) -> None:
        metrics, usage = self.metrics, completion.usage
        metrics.prompt_tokens.inc(usage.prompt_tokens)
        metrics.cached_tokens.inc(usage.cached_tokens)
        metrics.generated_tokens.inc(usage.completion_tokens)
        metrics.retries.inc(completion.attempts - 1)

    def on_error(self, error: MeshError) -> Problem:
        """What to tell of it."""
        problem = problem_of(error, is_own_deadline=self.is_own_deadline)
        self.status = problem.status
        return problem

    def on_left(self) -> None:
        """The caller is gone."""
        self.status = CALLER_LEFT

    def end(self, now: float) -> None:
        outcome = outcome_of(self.status or 500)
        self.metrics.requests.labels(self.api, outcome).inc()
        if outcome == "finished" and self.api != "other":
            self.metrics.duration.labels(self.api).observe(now - self.started_at)
