"""What this node measures about itself, over the last seconds: for `status`, for Pong, and for retry-after."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from mesh.messages import DeviceFacts, NodeFacts
from mesh.version import __version__
from node.config import NodeConfig
from node.pool import Worker, WorkerPool

WINDOW_S = 5.0
_BUCKET_S = 0.25
_NUM_LATENCIES = 256
_NUM_GAPS = 1024
_KEPT_S = 0.2  # quantiles are made this often at most, however many requesters ping


class Listener(Protocol):
    """Hears of every duration that a request spends here, in seconds: for histograms."""

    def observe_queue(self, seconds: float) -> None:
        """From admission to the worker's hands."""

    def observe_first_token(self, seconds: float) -> None:
        """From admission to the first token."""

    def observe_inter_token(self, seconds: float, count: int) -> None:
        """From one token to the next of the same request, for so many requests."""


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


class Gaps:
    """Times between tokens: those of the last WINDOW_S before the newest, at most _NUM_GAPS. All requests of a step
    waited equally long for it but for a few, so each entry is a gap with how many had it."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float, int]] = deque(maxlen=_NUM_GAPS)  # at, gap, count
        self._made_at = float("-inf")
        self._made: list[float] = []

    def add(self, gaps: Mapping[float, int], now: float) -> None:
        self._entries.extend((now, gap, count) for gap, count in gaps.items())
        while self._entries and self._entries[0][0] < now - WINDOW_S:
            self._entries.popleft()

    def quantiles(self, fractions: Sequence[float], now: float) -> list[float]:
        """0 for each while there is none. Asked for by every heartbeat of everybody, so kept for _KEPT_S."""
        if now - self._made_at >= _KEPT_S:
            self._made_at, self._made = now, self._quantiles(fractions)
        return self._made

    def _quantiles(self, fractions: Sequence[float]) -> list[float]:
        counts: Counter[float] = Counter()
        for _, gap, count in self._entries:
            counts[gap] += count
        ordered, total = sorted(counts), counts.total()
        found: list[float] = []
        passed, index = 0, 0
        for fraction in fractions:  # in rising order
            while index < len(ordered) - 1 and passed + counts[ordered[index]] <= fraction * total:
                passed += counts[ordered[index]]
                index += 1
            found.append(ordered[index] if ordered else 0.0)
        return found


class Facts:
    """Counts and times. Decides nothing.

    `gpus` says what the driver knows of the GPUs of this node; `listener` hears of every duration.
    """

    def __init__(self, started_at: float) -> None:
        self.gpus: Callable[[], tuple[DeviceFacts, ...]] = tuple
        self.listener: Listener | None = None
        self._started_at = started_at
        self._tokens = Rate()
        self._finished = Rate()
        self._busy: dict[str, tuple[float, Rate]] = {}
        self._ttft: deque[float] = deque(maxlen=_NUM_LATENCIES)
        self._gaps = Gaps()

    def first_token(self, after_s: float, queue_s: float) -> None:
        """After `after_s` since its admission, of which a request waited `queue_s` for a place in a worker."""
        self._ttft.append(after_s)
        if self.listener is not None:
            self.listener.observe_queue(queue_s)
            self.listener.observe_first_token(after_s)

    def inter_token(self, gaps: Mapping[float, int], now: float) -> None:
        """The gaps that one engine step ended, each with the number of requests that had it."""
        self._gaps.add(gaps, now)
        if self.listener is not None:
            for gap, count in gaps.items():
                self.listener.observe_inter_token(gap, count)

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

    def snapshot(
        self,
        workers: Sequence[Worker],
        config: NodeConfig,
        now: float,
        *,
        counters: Mapping[str, int] = MappingProxyType({}),
        concurrency_note: str = "",
    ) -> NodeFacts:
        infos = [worker.info for worker in workers if worker.info is not None]
        all_stats = [worker.stats for worker in workers if worker.stats is not None]
        ttft = sorted(self._ttft)
        busy = [rate.per_s(now) for _, rate in self._busy.values()]
        itl_p50_s, itl_p99_s = self._gaps.quantiles((0.50, 0.99), now)
        restarts = sum(max(0, worker.num_starts - 1) for worker in workers)
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
            note="; ".join(filter(None, [self.note(workers), concurrency_note]))[:1000],
            itl_p50_s=itl_p50_s,
            itl_p99_s=itl_p99_s,
            target_itl_s=config.target_itl_s,
            devices=self._devices(workers, now),
            counters=tuple(sorted({**counters, "worker_restarts": restarts}.items())),
        )

    def _devices(self, workers: Sequence[Worker], now: float) -> tuple[DeviceFacts, ...]:
        """GPUs as their driver sees them. What is no GPU, such as the CPU, is as busy as its
        engine; of a GPU whose driver says nothing only the memory is known."""
        infos = [worker.info for worker in workers if worker.info is not None]
        gpus = self.gpus() if not infos or any(info.device.startswith("cuda") for info in infos) else ()
        devices = list(gpus)
        for worker in workers:
            if worker.info is None or worker.stats is None:
                continue
            is_gpu = worker.info.device.startswith("cuda")
            if is_gpu and gpus:
                continue
            busy = self._busy[worker.name][1].per_s(now) if worker.name in self._busy and not is_gpu else 0.0
            memory = worker.stats.memory_used_bytes, worker.stats.memory_total_bytes
            devices.append(DeviceFacts(worker.info.device, min(1.0, busy), *memory))
        return tuple(devices)


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0
