"""Drives an engine from a test: submits, waits for answers, and checks the contract of every output on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from node.engine.base import Engine, EngineInfo, EngineRequest, StepOutput

PATIENCE_S = 100.0


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None


@contextmanager
def running(engine: Engine) -> Iterator[Driver]:
    """An engine that is stopped whatever happens: its threads would keep the test run from ending."""
    driver = Driver(engine)
    try:
        yield driver
    finally:
        engine.stop()


class Driver:
    """The one thread that talks to an engine, and the ear for what it says. Request ids are the driver's own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: dict[int, Answer] = {}
        self.fatal: str | None = None
        self.broken_promises: list[str] = []
        self._changed = threading.Condition()
        self._next_id = 1
        self.info: EngineInfo = engine.start(self._on_outputs, self._on_fatal)

    def submit(self, requests: Sequence[EngineRequest]) -> list[int]:
        """Returns the ids that the requests got, in order."""
        with self._changed:
            ids = list(range(self._next_id, self._next_id + len(requests)))
            self._next_id += len(requests)
            self.answers.update((request_id, Answer()) for request_id in ids)
        self.engine.submit([replace(r, request_id=i) for r, i in zip(requests, ids, strict=True)])
        return ids

    def run(self, *requests: EngineRequest) -> list[Answer]:
        """All of them together, to the end."""
        ids = self.submit(requests)
        self.wait(lambda: all(self.answers[i].finish_reason for i in ids))
        return [self.answers[i] for i in ids]

    def ask(self, request: EngineRequest) -> Answer:
        """One alone."""
        return self.run(request)[0]

    def wait(self, condition: Callable[[], object]) -> None:
        """Until `condition` holds, looking again after each step. Fails when the engine dies or nothing happens."""
        with self._changed:
            done = self._changed.wait_for(lambda: condition() or self.fatal, PATIENCE_S)
            assert done, f"nothing happened for {PATIENCE_S} s: {self.engine.stats()}"
            assert condition(), f"the engine died: {self.fatal}"

    def wait_for_death(self) -> str:
        """The reason that the engine gives."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.fatal, PATIENCE_S)
            return self.fatal or ""

    def _on_outputs(self, outputs: list[StepOutput]) -> None:
        with self._changed:
            if not outputs:
                self.broken_promises.append("an empty step was emitted")
            for output in outputs:
                answer = self.answers[output.request_id]
                if answer.finish_reason:
                    self.broken_promises.append(f"{output} came after the end")
                answer.tokens += output.token_ids
                answer.logprobs += output.logprobs
                answer.finish_reason = output.finish_reason
                answer.error = output.error
            self._changed.notify_all()

    def _on_fatal(self, reason: str) -> None:
        with self._changed:
            self.fatal = reason
            self._changed.notify_all()
