"""The answers of a batch, put back into the order of its prompts."""

from __future__ import annotations

from collections.abc import Callable

from mesh.client.call import Outcome
from mesh.errors import MeshError

OnProgress = Callable[[int, int], object]  # (done, total)


class Gathering:
    """Takes results in any order. Pure, so that the async client and the blocking one share it."""

    def __init__(self, total: int, on_progress: OnProgress | None, *, return_errors: bool) -> None:
        self._outcomes: list[Outcome | None] = [None] * total
        self._num_done = 0
        self._on_progress = on_progress
        self._return_errors = return_errors

    def add(self, index: int, outcome: Outcome) -> None:
        """Raises the outcome if it is an error and those are not to be returned."""
        if isinstance(outcome, MeshError) and not self._return_errors:
            outcome.add_note(f"(prompt {index} of the batch; return_errors=True gives the other answers nevertheless)")
            raise outcome
        self._outcomes[index] = outcome
        self._num_done += 1
        if self._on_progress is not None:
            self._on_progress(self._num_done, len(self._outcomes))

    def outcomes(self) -> list[Outcome]:
        """All of them, in order."""
        return [outcome for outcome in self._outcomes if outcome is not None]
