"""How many requests a worker may run, so that the time between tokens stays near a target: `--target-itl`.

A controller in the manner of gradient limits: the next limit is the present one times target/measured, damped and
bounded (Netflix concurrency-limits, `Gradient2Limit`; the idea is TCP Vegas', Brakmo and Peterson 1995). A step takes
`a + b · batch` seconds with a > 0, so a batch that grows by target/measured takes no longer than the target: the limit
comes near it and stays, where additive increase with multiplicative decrease would saw about it.

What is measured is the mean over all tokens of a window, not a quantile of them. A prefill between two decodes makes a
few gaps ten times as long. Whether a quantile sees them depends on whether they are more or fewer than its share, so it
jumps by that factor at some batch size and the limit would jump, or collapse, with it. The mean counts each prefill by
what it costs, and is what a reader of the stream sees: the time for a stretch of text over its tokens. It also does not
mind that the loop's clock may tick in milliseconds, or takes in two steps at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.pool import Worker, WorkerPool

WINDOW_S = 1.0  # two heartbeats: brokers hear of a change before the next one is decided
MIN_STEPS = 20  # a window of a slow engine is longer
# What counts as held, in shares of the target. A step hardly grows with its batch: 5 % of its time may be 20 % of that.
HELD_FROM, HELD_TO = 0.98, 1.05
# How far to go where the gradient points: all of it at the start; half of it after a target that was held or missed,
# since a window is noise as much as load; twice as far with each raise in a row, since a limit still too low after the
# whole of it belongs to a step that hardly grows.
MIN_GAIN, MAX_GAIN = 0.5, 4.0
MAX_RATIO, MIN_RATIO = 2.0, 0.4  # of target to measured: one window at most doubles the limit, or takes off 30 %
START_SHARE = 4  # a worker begins with a quarter of its slots: what was let in too much cannot be sent away


def prefetch(slots: int) -> int:
    """How many requests an engine may hold beyond its slots: the next one is there before a slot falls free."""
    return max(1, slots // 8)


@dataclass(frozen=True, slots=True)
class Step:
    """What one engine step showed of its worker."""

    gap_s: float  # since the last token of each request that got one, summed
    num_gaps: int
    num_running: int  # handed to the worker and not finished, after free places were given away
    num_inside: int  # of those, waiting in the engine for cache or a slot
    is_waiting: bool  # whether more requests wait for the worker


@dataclass(slots=True)
class _Window:
    began_at: float
    gap_s: float = 0.0
    num_gaps: int = 0
    num_steps: int = 0
    num_full: int = 0  # steps with no place free and work waiting
    most_running: int = 0

    def add(self, step: Step, limit: int) -> None:
        self.gap_s += step.gap_s
        self.num_gaps += step.num_gaps
        self.num_steps += 1
        self.num_full += step.is_waiting and step.num_running >= limit
        self.most_running = max(self.most_running, step.num_running)

    @property
    def was_full(self) -> bool:
        return 2 * self.num_full >= self.num_steps


@dataclass(slots=True)
class AdaptiveLimit:
    """The limit of one worker, between 1 and its slots. Running requests are never taken away: a lower limit lets fewer
    in, and nothing is judged until that many have left."""

    target_s: float
    slots: int
    limit: int = 0
    itl_s: float = 0.0  # as last judged; 0: not yet
    _window: _Window | None = None
    _gain: float = 2 * MIN_GAIN

    def __post_init__(self) -> None:
        self.limit = self.limit or max(1, self.slots // START_SHARE)

    @property
    def room(self) -> int:
        """How many requests the worker may hold. Below its slots none is prefetched: the engine would run it."""
        return self.limit + (prefetch(self.slots) if self.limit == self.slots else 0)

    def after_step(self, step: Step, now: float) -> bool:
        """True if the limit has changed. Only windows in which the worker was busy without a break count."""
        window = self._window
        if step.num_running == 0:
            self._window = None  # idle now
            return False
        if window is None or step.num_running > self.room:
            self._window = _Window(now)
            return False
        window.add(step, self.limit)
        if now - window.began_at < WINDOW_S or window.num_steps < MIN_STEPS:
            return False
        self._window = _Window(now)
        before, self.limit = self.limit, self._judge(window, step.num_inside)
        return self.limit != before

    def _judge(self, window: _Window, num_inside: int) -> int:
        self.itl_s = window.gap_s / window.num_gaps if window.num_gaps else 0.0
        ratio = self.target_s / self.itl_s if self.itl_s else MAX_RATIO
        way = min(MAX_RATIO, max(MIN_RATIO, ratio)) - 1
        if self.itl_s > self.target_s * HELD_TO:
            self._gain = MIN_GAIN
            # A limit that was not reached is no cause (RFC 7661 says the same of TCP's window): what ran is.
            ran = min(self.limit, window.most_running)
            return max(1, min(ran - 1, int(ran * (1 + MIN_GAIN * way))))
        if self.itl_s < self.target_s * HELD_FROM and window.was_full and num_inside <= prefetch(self.limit):
            growth = min(MAX_RATIO, 1 + self._gain * way)
            self._gain = min(MAX_GAIN, 2 * self._gain)
            return min(self.slots, max(self.limit + 1, int(self.limit * growth)))
        self._gain = MIN_GAIN
        return self.limit

    def __str__(self) -> str:
        target = f"target {_ms(self.target_s)} between tokens"
        if not self.itl_s:
            return f"{self.limit} of {self.slots} slots to begin with, {target}"
        if self.limit == 1 and self.itl_s > self.target_s * HELD_TO:
            return f"1 of {self.slots} slots: even so {_ms(self.itl_s)}, {target}"
        share = f"all {self.slots}" if self.limit == self.slots else f"{self.limit} of {self.slots}"
        return f"{share} slots: {_ms(self.itl_s)}, {target}"


class Concurrency:
    """The limits of all workers of a node: adaptive with a target, else their slots."""

    def __init__(self, target_itl_s: float = 0.0) -> None:
        self._target_s = target_itl_s
        self._limits: dict[str, AdaptiveLimit] = {}

    def limit(self, worker: Worker) -> int:
        """How many requests of this worker run at the same time. It must be ready."""
        assert worker.info is not None
        return self._of(worker).limit if self._target_s else worker.info.slots

    def room(self, worker: Worker) -> int:
        """How many it may hold: none before it is ready."""
        if worker.info is None:
            return 0
        return self._of(worker).room if self._target_s else worker.info.slots + prefetch(worker.info.slots)

    def after_step(self, worker: Worker, gaps: Counter[float], pool: WorkerPool, now: float) -> bool:
        """Once the free places are given away. `gaps`: since the last token -> how many requests waited so long.
        True if the worker's limit has changed."""
        if not self._target_s or worker.info is None:
            return False
        step = Step(
            gap_s=sum(gap * count for gap, count in gaps.items()),
            num_gaps=gaps.total(),
            num_running=pool.num_running_at(worker),
            num_inside=worker.stats.num_waiting if worker.stats is not None else 0,
            is_waiting=pool.num_waiting > 0,
        )
        return self._of(worker).after_step(step, now)

    def note(self, workers: Sequence[Worker]) -> str:
        """What each limit is and why, in words; empty without a target."""
        if not self._target_s:
            return ""
        ready = [worker for worker in workers if worker.info is not None]
        prefix = "{}: " if len(workers) > 1 else ""
        return "; ".join(prefix.format(worker.name) + str(self._of(worker)) for worker in ready)

    def _of(self, worker: Worker) -> AdaptiveLimit:
        assert worker.info is not None
        limit = self._limits.get(worker.name)
        if limit is None or limit.slots != worker.info.slots:  # the first time, or it came back with other slots
            limit = self._limits[worker.name] = AdaptiveLimit(self._target_s, worker.info.slots)
        return limit


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
