"""One answer: shown as it comes, stopped by Ctrl-C, and kept as far as it got."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mesh import AsyncClient, Completion
from mesh.cli import terminal
from mesh.errors import MeshError


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is all that came. Neither completion nor error: it was stopped."""

    text: str
    completion: Completion | None = None
    error: MeshError | None = None


class Answering:
    """Asks one question at a time; `stop` ends the one that is being answered."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._task: asyncio.Task[Answer] | None = None
        self._texts: list[str] = []

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def stop(self) -> None:
        """The request is cancelled on its node, too."""
        if self._task is not None:
            self._task.cancel()

    async def ask(self, messages: Sequence[dict[str, str]], values: dict[str, Any]) -> Answer:
        """Never raises for the mesh's sake."""
        self._texts = []
        self._task = asyncio.create_task(self._ask(messages, values))
        try:
            # wait, not await: a cancelled answer must not look like a cancelled chat.
            await asyncio.wait([self._task])
            stopped = Answer("".join(self._texts))
            return stopped if self._task.cancelled() else self._task.result()
        finally:
            self._task.cancel()
            self._task = None

    async def _ask(self, messages: Sequence[dict[str, str]], values: dict[str, Any]) -> Answer:
        try:
            async with self._client.stream(messages=messages, **values) as stream:
                async for chunk in stream:
                    self._texts.append(chunk.text)
                    terminal.write_answer(chunk.text)
            return Answer("".join(self._texts), completion=stream.result)
        except MeshError as error:
            return Answer("".join(self._texts), error=error)
