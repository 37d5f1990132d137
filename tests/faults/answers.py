"""Requests of every kind under way at the same time, and a judge who knows every answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mesh.client.aio import AsyncClient
from mesh.client.results import Chunk, Completion
from scripts.chaostool import oracle

LONG = {"max_tokens": 80, "ignore_eos": True}  # 1.6 seconds of a node of `nodes.STEADY`
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 11},
    "two choices": {"temperature": 0.7, "seed": 5, "n": 2},
    "a stop string": {"stop": ["no such words", "round node garden"]},
    "logprobs": {"logprobs": True},
}


@dataclass
class Answer:
    """One stream and what has come of it."""

    params: dict[str, Any]
    chunks: list[Chunk] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    completion: Completion | None = None

    @property
    def longest_pause_s(self) -> float:
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))

    def check(self) -> None:
        """The result and the pieces that were streamed are exactly those of an undisturbed run."""
        assert self.completion is not None
        for choice in self.completion.choices:
            assert oracle.difference(self.params, choice) == ""
        assert oracle.torn(self.chunks, self.completion.choices) == ""


class Answers:
    """Streams of one client, read by tasks of their own."""

    def __init__(self, client: AsyncClient, params: Sequence[dict[str, Any]]) -> None:
        self.all = [Answer(each) for each in params]
        self._tasks = [asyncio.create_task(_read(client, answer)) for answer in self.all]

    @classmethod
    def of_every_kind(cls, client: AsyncClient, copies: int = 2) -> Answers:
        names = [(name, copy) for name in KINDS for copy in range(copies)]
        return cls(client, [{"prompt": f"{name} {copy}", **LONG, **KINDS[name]} for name, copy in names])

    async def are_under_way(self, num_chunks: int = 4) -> None:
        """Until each stream has that many chunks."""
        await until(lambda: all(len(answer.chunks) >= num_chunks for answer in self.all))

    async def end(self, within_s: float = 30.0) -> list[Answer]:
        """All of them, read to their end and checked."""
        async with asyncio.timeout(within_s):
            await asyncio.gather(*self._tasks)
        for answer in self.all:
            answer.check()
        return self.all

    @property
    def interrupted(self) -> list[Answer]:
        return [answer for answer in self.all if answer.completion is not None and answer.completion.attempts > 1]


async def _read(client: AsyncClient, answer: Answer) -> None:
    async with client.stream(**answer.params) as stream:
        async for chunk in stream:
            answer.chunks.append(chunk)
            answer.times.append(time.monotonic())
    answer.completion = stream.result


async def until(probe: Any, within_s: float = 10.0) -> None:
    """`eventually` for a coroutine: the loop goes on meanwhile."""
    async with asyncio.timeout(within_s):
        while not probe():  # noqa: ASYNC110 - the probe looks at what other processes do
            await asyncio.sleep(0.005)
