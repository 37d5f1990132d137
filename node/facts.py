"""What this node measures about itself, over the last seconds: for `status`, for Pong, and for retry-after."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mesh.messages import NodeFacts
from mesh.version import __version__
from node.config import NodeConfig
from node.pool import Worker, WorkerPool

WINDOW_S = 5.0
_BUCKET_S = 0.25
_NUM_LATENCIES = 256


class Rate:
    """Events per second over the last WINDOW_S, in buckets: constant memory at any rate."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, float]] = deque()

    def add(self, amount: float, now: float) -> None:
        if self._buckets and now - self._buckets[-1][0] < _BUCKET_S:
            start, sum_so_far = self._buckets[-1]
            self._buckets[-1] = (start, sum_so_far + amount)
        else:
            self._buckets.append((now, amount))
        while self._buckets[0][0] < now - 2 * WINDOW_S:
            self._buckets.popleft()

    def per_s(self, now: float) -> float:
        """The mean over the window, or over the time since the first event in it if that is shorter."""
        recent = [(start, amount) for start, amount in self._buckets if start >= now - WINDOW_S]
        if not recent:
            return 0.0
        return sum(amount for _, amount in recent) / max(now - recent[0][0], _BUCKET_S)


class Facts:
    """Counts and times. Decides nothing."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._tokens = Rate()
        self._finished = Rate()
        self._busy: dict[str, tuple[float, Rate]] = {}
        self._ttft: deque[float] = deque(maxlen=_NUM_LATENCIES)

    def first_token(self, after_s: float) -> None:
        self._ttft.append(after_s)

    def tokens(self, num_tokens: int, now: float) -> None:
        self._tokens.add(num_tokens, now)

    def finished(self, now: float) -> None:
        self._finished.add(1, now)

    def worker_stats(self, worker: Worker, now: float) -> None:
        """Called when a worker's statistics arrived."""
        if worker.stats is None:
            return
        before, rate = self._busy.get(worker.name, (worker.stats.busy_s, Rate()))
        rate.add(max(0.0, worker.stats.busy_s - before), now)  # a restarted worker begins at 0 again
        self._busy[worker.name] = (worker.stats.busy_s, rate)

    def progress(self, workers: Sequence[Worker]) -> tuple[int, float]:
        """Steps of all workers, and the age of the last step where work waits longest."""
        all_stats = [worker.stats for worker in workers if worker.stats is not None]
        return sum(stats.steps for stats in all_stats), max((w.step_age_s for w in workers), default=0.0)

    def expected_wait_s(self, pool: WorkerPool, now: float) -> float:
        """How long until a queue as long as now's has drained, between 0.5 and 30 s."""
        rate = self._finished.per_s(now)
        return min(30.0, max(0.5, pool.num_waiting / rate if rate else 1.0))

    def note(self, workers: Sequence[Worker]) -> str:
        """Why a worker is not ready; empty when all are."""
        return "; ".join(worker.note for worker in workers if worker.info is None and worker.note)

    def snapshot(self, workers: Sequence[Worker], config: NodeConfig, now: float) -> NodeFacts:
        infos = [worker.info for worker in workers if worker.info is not None]
        all_stats = [worker.stats for worker in workers if worker.stats is not None]
        ttft = sorted(self._ttft)
        busy = [rate.per_s(now) for _, rate in self._busy.values()]
        return NodeFacts(
            engine=config.engine,
            device=", ".join(dict.fromkeys(info.device for info in infos)) or config.device,
            dtype=infos[0].dtype if infos else "",
            version=__version__,
            tokens_per_s=self._tokens.per_s(now),
            ttft_p50_s=_quantile(ttft, 0.50),
            ttft_p99_s=_quantile(ttft, 0.99),
            memory_used_bytes=sum(stats.memory_used_bytes for stats in all_stats),
            memory_total_bytes=sum(stats.memory_total_bytes for stats in all_stats),
            busy_fraction=min(1.0, sum(busy) / len(busy)) if busy else 0.0,
            uptime_s=now - self._started_at,
            note=self.note(workers)[:1000],
        )


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0
