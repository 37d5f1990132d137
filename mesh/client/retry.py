"""How often and how soon a request is tried again. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mesh.errors import ConfigError

_MAX_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What ends a request that keeps failing. Its own `timeout_s` always does, sooner.

    - A death (the node or the broker died under it, its engine failed) counts against `max_attempts`: a request that
      kills nodes must not walk through the fleet.
    - `not_ready` is waited out for `patience_s` after the last sign of progress, if the request has no deadline.
    - `overloaded` is waited out without limit: it is backpressure, and the queue moves. So is a hand-over by a draining
      node. Neither says anything about the request.
    - With `overload_patience_s`, a request that has no token yet ends with Overloaded once it would have to wait longer
      than that since its troubles began; 0: at once. One that has begun is always finished.
    """

    max_attempts: int = 8
    patience_s: float = 60.0
    overload_patience_s: float | None = None
    first_delay_s: float = 0.05
    max_delay_s: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts: {self.max_attempts}, must be at least 1")
        if self.patience_s < 0:
            raise ConfigError(f"patience_s: {self.patience_s}, must not be negative")
        if self.overload_patience_s is not None and not self.overload_patience_s >= 0:
            raise ConfigError(f"overload_patience_s: {self.overload_patience_s}, must not be negative (None: no limit)")

    def delay_s(self, num_setbacks: int, rng: random.Random, at_least_s: float = 0.0) -> float:
        """How long to wait after that many setbacks in a row: doubling, and spread out so that the requests which one
        event threw back do not return in one step."""
        delay_s = min(self.max_delay_s, self.first_delay_s * 2.0 ** min(num_setbacks - 1, 16))
        return at_least_s + delay_s * rng.uniform(0.5, 1.0)


class History:
    """What became of the attempts, as sentences for the final error. Bounded: attempts in a row with the same fate
    share a sentence, and only the last few dozen sentences are kept."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: list[tuple[int, int, str]] = []  # first attempt, last attempt, what happened

    def add(self, attempt: int, what: str) -> None:
        first = attempt
        if self._told and self._told[-1][2] == what:
            first = self._told.pop()[0]
        self._told.append((first, attempt, what))
        del self._told[:-_MAX_REMEMBERED]

    def sentences(self) -> tuple[str, ...]:
        return tuple(
            f"attempt {first}: {what}" if first == last else f"attempts {first}-{last}: {what}"
            for first, last, what in self._told
        )
