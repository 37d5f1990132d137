"""From the input to the output: checks first, then a window of requests in flight, each answer written as it comes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mesh import AsyncClient
from mesh.cli import terminal
from mesh.cli.batch.ledger import Ledger
from mesh.cli.batch.lines import Keys, Line, question_of, read_lines
from mesh.cli.batch.progress import Reporter
from mesh.cli.batch.tally import Tally
from mesh.cli.record import slim_record
from mesh.cli.running import run_until_told
from mesh.cli.values import new_client, sampling_values
from mesh.client.params import asks_of
from mesh.errors import ConfigError, InvalidRequest, RequestError, error_for

_SYNC_EVERY_S = 5.0


def run(args: argparse.Namespace) -> int:
    """0 if every line has an answer, 1 if some failed. Raises ConfigError before anything is sent."""
    source, target = Path(args.input), Path(args.output)
    shared = sampling_values(args)
    asks_of({"prompt": "", **shared})  # a wrong option is one error, not one for each line
    if args.window < 1:
        raise ConfigError(f"--window: {args.window}, must be at least 1")
    keys = Keys(shared)
    with _open(source, target) as file, contextlib.closing(_ledger(target, args)) as ledger:
        tally = Tally(_checked(source, file, ledger, keys), ledger.num_kept, ledger.num_failed)
        if tally.num_kept:
            terminal.write_note(f"going on: {tally.num_kept:,} of {tally.num_lines:,} lines are done")
        if ledger.num_retried:
            terminal.write_note(f"trying {ledger.num_retried:,} failed lines again")
        todo = (line for line in read_lines(file, keys) if not ledger.key_of(line.number))
        started_at = time.monotonic()
        try:
            with Reporter(tally) as reporter:
                run_until_told(_Batch(source, todo, ledger, tally, reporter, shared).run(args))
        except BaseException:
            done = f"{tally.num_done:,} of {tally.num_lines:,} lines are done"
            terminal.write_note(f"stopped: {done}; run the same command again to go on")
            raise
        for sentence in tally.summary(time.monotonic() - started_at):
            terminal.write_note(sentence)
    return 1 if tally.num_failed else 0


class _Batch:
    """The workers of a window share one iterator over the lines: so memory does not grow with the file."""

    def __init__(
        self,
        source: Path,
        todo: Iterator[Line],
        ledger: Ledger,
        tally: Tally,
        reporter: Reporter,
        shared: dict[str, Any],
    ) -> None:
        self._source = source
        self._todo = todo
        self._ledger = ledger
        self._tally = tally
        self._reporter = reporter
        self._shared = shared

    async def run(self, args: argparse.Namespace) -> int:
        """Raises the error that makes going on pointless, such as BrokerUnreachable."""
        syncing = asyncio.create_task(self._sync_now_and_then())
        num_workers = min(args.window, self._tally.num_lines - self._tally.num_kept)
        try:
            async with new_client(args) as client, asyncio.TaskGroup() as group:
                for _ in range(num_workers):
                    group.create_task(self._work(client))
        except BaseExceptionGroup as several:
            raise _first(several) from None
        finally:
            syncing.cancel()
            self._ledger.sync()
        return 0

    async def _work(self, client: AsyncClient) -> None:
        for line in self._todo:
            await self._answer(client, line)
            self._reporter.update()

    async def _answer(self, client: AsyncClient, line: Line) -> None:
        question = question_of(line, self._shared)
        record: dict[str, Any] = {} if question.id is None else {"id": question.id}
        if question.values is None:
            self._fail(line, record, InvalidRequest(question.problem))
            await asyncio.sleep(0)  # a long run of bad lines must not starve the heartbeats
            return
        ask = client.chat if "messages" in question.values else client.generate
        try:
            completion = await ask(**question.values)
        except RequestError as error:
            self._fail(line, record, error)
        else:
            self._ledger.write(line.number, line.key, record | slim_record(completion))
            self._tally.num_answered += 1
            self._tally.num_tokens += completion.usage.completion_tokens

    def _fail(self, line: Line, record: dict[str, Any], error: RequestError) -> None:
        told = {"code": error.code, "message": error.message}
        self._ledger.write(line.number, line.key, record | {"error": told})
        self._tally.failed[error.code] += 1
        self._reporter.tell(f"{self._source}:{line.number}: {error.code}: {error.message}")

    async def _sync_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_EVERY_S)
            await asyncio.to_thread(self._ledger.sync)


def _open(source: Path, target: Path) -> BinaryIO:
    """Raises ConfigError for what cannot be read twice: once to check it, once to ask."""
    try:
        if not source.is_file():
            raise ConfigError(f"{source}: {'not a regular file' if source.exists() else 'no such file'}")
        if target.exists() and source.samefile(target):
            raise ConfigError(f"{target}: is the input, too")
        return source.open("rb")
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror}") from None


def _ledger(target: Path, args: argparse.Namespace) -> Ledger:
    return Ledger(target, lambda code: args.retry_failed or error_for(code).retryable, restart=args.restart)


def _checked(source: Path, file: BinaryIO, ledger: Ledger, keys: Keys) -> int:
    """How many lines there are to answer, done ones included. Raises ConfigError if the answers in the ledger are not
    the answers to these lines."""
    num_lines = 0
    last = 0
    for line in read_lines(file, keys):
        num_lines += 1
        last = line.number
        if (key := ledger.key_of(line.number)) and key != line.key:
            raise _changed(f"line {line.number} of {source}")
    if ledger.last_line > last:
        raise _changed(f"{source} ends at line {last}, an answer is to line {ledger.last_line}; it")
    file.seek(0)
    return num_lines


def _changed(what: str) -> ConfigError:
    return ConfigError(
        f"{what} is not what the answers in the output file belong to: the input or the sampling options have changed; "
        "put them back, give another output file, or begin anew with --restart"
    )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """All workers fail for the same reason."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
