"""How far a batch is, on standard error: a bar at a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mesh.cli import terminal
from mesh.cli.batch.tally import Tally

# rich reckons speed from its last 1,000 samples: with one for each answer, that could be a fraction of a second.
_SHOW_EVERY_S = 0.1
_LOG_EVERY_S = 10.0
_TELL_AT_MOST = 20


class _Rate(ProgressColumn):
    """Requests and tokens in a second, over the last half minute."""

    def __init__(self, tokens: Task) -> None:
        super().__init__()
        self._tokens = tokens

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0.0:,.1f} req/s {self._tokens.speed or 0.0:,.0f} tok/s")


class Reporter:
    """Call `update` after each line. Used as a context so that the bar is always taken down."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._num_told = 0
        self._shown_at = time.monotonic()
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        tokens = Progress(console=self._console)
        self._token_task = tokens.add_task("tokens", total=None)
        self._tokens = tokens
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(tokens.tasks[0]),
            TextColumn("{task.fields[failed]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not sys.stderr.isatty(),
        )
        self._lines: TaskID = self._bar.add_task(
            "lines", total=tally.num_lines, completed=tally.num_done, failed=self._failed()
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._bar.disable:
            self._show()
        self._bar.stop()

    def update(self) -> None:
        """Show what the tally says now, if it is time."""
        now = time.monotonic()
        if now - self._shown_at >= (_LOG_EVERY_S if self._bar.disable else _SHOW_EVERY_S):
            self._shown_at = now
            self._show()

    def tell(self, problem: str) -> None:
        """About one line. A file in which every line is wrong must not fill the terminal."""
        self._num_told += 1
        if self._num_told <= _TELL_AT_MOST:
            self._console.print(terminal.harmless(problem), markup=False)
        if self._num_told == _TELL_AT_MOST:
            self._console.print("further problems are in the output file only")

    def _failed(self) -> str:
        return f"{self._tally.num_failed:,} failed" if self._tally.num_failed else ""

    def _show(self) -> None:
        tally = self._tally
        if self._bar.disable:
            self._console.print(f"{tally.num_done:,} of {tally.num_lines:,} {self._failed()}".rstrip())
            return
        self._tokens.update(self._token_task, completed=tally.num_tokens)
        self._bar.update(self._lines, completed=tally.num_done, failed=self._failed())
