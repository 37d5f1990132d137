"""One process of the load: `python -m scripts.chaostool.client ADDRESSES SEED TASKS`. Until SIGTERM it keeps TASKS
requests in flight, checks each answer, and prints a line for it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence

from mesh.client.aio import AsyncClient
from mesh.client.results import Choice, Chunk, Completion
from mesh.errors import DeadlineExceeded, MeshError
from scripts.chaostool import oracle
from scripts.chaostool.cases import Case, Cases
from scripts.chaostool.options import ANSWER_WITHIN_S
from scripts.chaostool.records import Result, Setback, Verdict, to_line
from scripts.chaostool.setbacks import Setbacks

_EARLY_S = 0.01  # a deadline may be told this much before its time


def tell(record: Result | Setback) -> None:
    print(to_line(record), flush=True)


class Load:
    """Tasks that ask one request after another of one shared client."""

    def __init__(self, addresses: str, seed: str, num_tasks: int) -> None:
        # Patience far beyond the bound: what is late must show as lost, not as an error that excuses it.
        self._client = AsyncClient(addresses or None, connect_timeout_s=30, reconnect_timeout_s=60, patience_s=300)
        self._cases = Cases(seed)
        self._num_tasks = num_tasks
        self._setbacks = Setbacks(tell)
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._is_over.set)
        async with self._client, asyncio.TaskGroup() as group:
            for _ in range(self._num_tasks):
                group.create_task(self._ask_on())

    async def _ask_on(self) -> None:
        while not self._is_over.is_set():
            tell(await self._judged(self._cases.next()))

    async def _judged(self, case: Case) -> Result:
        """Ask, and say what became of it. Nothing escapes: whatever is raised is a verdict."""
        began = time.monotonic()
        chunks: list[Chunk] = []
        times: list[float] = []
        attempts, detail = 1, ""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                completions = await self._ask(case, chunks, times)
        except TimeoutError:
            verdict, detail = Verdict.LOST, f"no ending within {ANSWER_WITHIN_S:g} s, after {len(times)} chunks"
        except DeadlineExceeded as error:
            is_fair = time.monotonic() - began >= case.params.get("timeout_s", 1e9) - _EARLY_S
            detail = oracle.torn_prefix(case.params, chunks) if is_fair else f"too early: {error}"
            verdict = Verdict.DEADLINE if is_fair and not detail else Verdict.ERROR
        except MeshError as error:
            verdict, detail = Verdict.ERROR, f"{type(error).__name__}: {error}"
        except Exception as error:  # a bug in the client is what a chaos run is for
            verdict, detail = Verdict.ERROR, f"bug: {error!r}"
        else:
            attempts = max((completion.attempts for completion in completions), default=1)
            verdict, detail = _verdict(case, chunks, completions)
        pauses = self._setbacks.pauses(times, attempts) if case.is_stream and "n" not in case.params else ()
        took_s = time.monotonic() - began
        return Result(case.kind, verdict, case.is_stream, attempts, took_s, detail, pauses)

    async def _ask(self, case: Case, chunks: list[Chunk], times: list[float]) -> Sequence[Completion]:
        """The completions of a case; none if it was cancelled on the way."""
        if case.prompts:
            completions: list[Completion] = await self._client.generate_batch(case.prompts, **case.params)
            return completions
        if not case.is_stream:
            return [await self._client.generate(**case.params)]
        async with self._client.stream(**case.params) as stream:
            async for chunk in stream:
                chunks.append(chunk)
                times.append(time.monotonic())
                if case.cancel_after is not None and len(chunks) > case.cancel_after:
                    return []
        return [stream.result]


def _verdict(case: Case, chunks: Sequence[Chunk], completions: Sequence[Completion]) -> tuple[Verdict, str]:
    if not completions:
        detail = oracle.torn_prefix(case.params, chunks)
        return (Verdict.TORN, detail) if detail else (Verdict.CANCELLED, "")
    for number, completion in enumerate(completions):
        params = {**case.params, "prompt": case.prompts[number]} if case.prompts else case.params
        choices: Sequence[Choice] = completion.choices
        for choice in choices:
            if detail := oracle.difference(params, choice):
                return Verdict.DIFFERENT, f"{detail}; attempts {choice.attempts}, node {choice.node}, {params}"[:600]
        if case.is_stream and (detail := oracle.torn(chunks, choices)):
            return Verdict.TORN, detail
    return Verdict.RIGHT, ""


async def main(addresses: str, seed: str, num_tasks: str) -> None:
    await Load(addresses, seed, int(num_tasks)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
