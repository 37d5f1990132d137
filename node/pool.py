"""The node's own queue and its workers: late binding once more, so that a request waits here and not in an engine.

A request in an engine's queue cannot be dropped before prefill, handed over or moved to the worker that is free first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from node.concurrency import Concurrency
from node.engine.base import EngineInfo, EngineRequest, EngineStats
from node.requests import ActiveRequest


class Worker(Protocol):
    """One engine worker as the pool sees it."""

    @property
    def name(self) -> str: ...

    @property
    def info(self) -> EngineInfo | None:
        """None until the model is loaded."""

    @property
    def stats(self) -> EngineStats | None: ...

    @property
    def step_age_s(self) -> float:
        """How long its work has waited for a step, its own silence included; 0 without work."""

    @property
    def note(self) -> str:
        """What it is doing, or why it is not ready, in words."""

    @property
    def num_starts(self) -> int:
        """Processes so far, the first one included."""

    def submit(self, requests: Sequence[EngineRequest]) -> None: ...

    def cancel(self, engine_ids: Sequence[int]) -> None: ...


class WorkerPool:
    """Who waits, and what each worker has. `feed` is the only place where work is handed out."""

    def __init__(self, workers: Sequence[Worker], concurrency: Concurrency, *, batch_delay_s: float = 0.0) -> None:
        self.workers = tuple(workers)
        self._concurrency = concurrency
        self._batch_delay_s = batch_delay_s
        self._waiting: deque[ActiveRequest] = deque()
        self._running: dict[str, set[int]] = {worker.name: set() for worker in workers}

    @property
    def ready(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.info is not None]

    @property
    def slots_total(self) -> int:
        """Sequences that may run at the same time: all slots, or as many as the target of the node allows."""
        return sum(self._concurrency.limit(worker) for worker in self.ready)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return sum(map(len, self._running.values()))

    def num_running_at(self, worker: Worker) -> int:
        return len(self._running[worker.name])

    def add(self, request: ActiveRequest) -> None:
        self._waiting.append(request)

    def remove(self, request: ActiveRequest) -> bool:
        """Forget it. True if a worker has it and must be told to cancel."""
        if request.worker is not None:
            running = self._running[request.worker.name]
            had_it = request.engine_id in running
            running.discard(request.engine_id)
            return had_it
        if request in self._waiting:
            self._waiting.remove(request)
        return False

    def feed(self, now: float) -> None:
        """Give every free slot a waiting request, each to the worker with the most room for its size."""
        if not self._waiting or self._gathering(now):
            return
        given: dict[str, list[ActiveRequest]] = {}
        for worker in self._free_slots():
            request = self._waiting.popleft()
            request.worker = worker
            request.submitted_at = now
            self._running[worker.name].add(request.engine_id)
            given.setdefault(worker.name, []).append(request)
        for worker in self.workers:
            if requests := given.get(worker.name):
                worker.submit([request.to_engine() for request in requests])

    def next_due(self) -> float:
        """When `feed` may find something to do without anything else happening."""
        return (
            self._waiting[0].accepted_at + self._batch_delay_s
            if self._waiting and self._batch_delay_s
            else float("inf")
        )

    def _free_slots(self) -> Iterator[Worker]:
        """The worker for each waiting request in turn, until the room or the queue is used up. Least connections."""
        while self._waiting:
            free = [(self._load(worker), index) for index, worker in enumerate(self.workers) if self._has_room(worker)]
            if not free:
                return
            yield self.workers[min(free)[1]]

    def _load(self, worker: Worker) -> float:
        return len(self._running[worker.name]) / self._concurrency.limit(worker)

    def _has_room(self, worker: Worker) -> bool:
        return len(self._running[worker.name]) < self._concurrency.room(worker)

    def _gathering(self, now: float) -> bool:
        """With a batch delay, an idle engine waits a little for company before it starts."""
        if not self._batch_delay_s or self.num_running or len(self._waiting) >= self.slots_total:
            return False
        return now < self._waiting[0].accepted_at + self._batch_delay_s
