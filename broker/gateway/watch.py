"""The last status report, asked for once a second: what models there are, whether any node is ready, the metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from broker.gateway.problems import Problem
from mesh.errors import MeshError
from mesh.report import ModelReport, StatusReport

logger = logging.getLogger(__name__)

EVERY_S = 1.0
NO_ANSWER_YET = "no answer yet"
STALE_S = 5.0  # the client goes on looking for a lost broker for longer than what it last said is worth


class Watch:
    """`report` is None while the mesh does not answer; `trouble` says why then."""

    def __init__(self, ask: Callable[[], Awaitable[StatusReport]], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._refreshing: asyncio.Task[None] | None = None
        self._last: StatusReport | None = None
        self.answered_at = 0.0
        self._answered = asyncio.Event()
        self.trouble = NO_ANSWER_YET

    @property
    def report(self) -> StatusReport | None:
        return self._last if self._clock() - self.answered_at < STALE_S else None

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(EVERY_S)

    async def refresh(self) -> None:
        """Ask now. Those who ask at the same time share one question, which a caller that leaves does not end."""
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        try:
            self._last = await self._ask()
            self.answered_at = self._clock()
            self.trouble = ""
        except MeshError as error:
            if not self.trouble:
                logger.warning("mesh_unreachable reason=%s", str(error).splitlines()[0])
            self._last = None
            self.trouble = str(error)
        finally:
            self._refreshing = None
            self._answered.set()
            self._answered = asyncio.Event()

    async def answered(self) -> None:
        """Until the mesh has answered the next time, or has failed to."""
        await self._answered.wait()

    @property
    def is_ready(self) -> bool:
        """Whether some node could take a request, as far as is known."""
        report = self.report
        return report is not None and report.num_ready > 0

    async def require_report(self) -> StatusReport:
        """Raises Problem 503."""
        if self.report is None:
            await self.refresh()
        report = self.report
        if report is None:
            raise Problem(503, self.trouble or "the mesh does not answer", code="mesh_unreachable", retry_after_s=1.0)
        return report

    async def require_ready(self) -> None:
        """Raises Problem 503, but never because of an old report: it is asked for again first."""
        if self.is_ready:
            return
        await self.refresh()
        report = await self.require_report()
        if not report.num_ready:
            notes = "; ".join(f"{node.name or node.address} is {node.state}" for node in report.nodes)
            raise Problem(503, f"no node is ready: {notes or 'none is known'}", code="not_ready", retry_after_s=1.0)

    @property
    def models(self) -> tuple[ModelReport, ...]:
        report = self.report
        return report.models if report is not None else ()

    def model(self, name: str) -> ModelReport | None:
        """The model of that name; of the empty name if only one is served."""
        for model in self.models:
            if model.name == name or (not name and len(self.models) == 1):
                return model
        return None
