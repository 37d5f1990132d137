"""Several takes of one figure: their median, how far they lie apart, and whether it reaches what it must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> str:
    """From the smallest to the largest take."""
    return f"{min(values):.3g} to {max(values):.3g}"


@dataclass(frozen=True, slots=True)
class Goal:
    """One condition on a figure, in the same unit."""

    limit: float
    text: str  # what the limit is: "100 us", "half of vllm-router"
    value: float

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit


def verdict(goals: Sequence[Goal]) -> dict[str, str]:
    """The last two columns of a row: what it must reach, and whether it does."""
    missed = "; ".join(goal.text for goal in goals if not goal.is_met)
    said = (f"NO: {missed}" if missed else "yes") if goals else ""
    return {"at most": "; ".join(goal.text for goal in goals), "reached": said}
