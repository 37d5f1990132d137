"""What this run has done so far. Pure."""

from __future__ import annotations

from collections import Counter

from mesh.errors import error_for


class Tally:
    """Counts of this run, beside what earlier runs left."""

    def __init__(self, num_lines: int, num_kept: int, num_failed_before: int) -> None:
        self.num_lines = num_lines
        self.num_kept = num_kept
        self.num_failed_before = num_failed_before
        self.num_answered = 0
        self.num_tokens = 0
        self.failed: Counter[str] = Counter()  # by code

    @property
    def num_done(self) -> int:
        """Earlier runs included."""
        return self.num_kept + self.num_answered + self.failed.total()

    @property
    def num_failed(self) -> int:
        return self.num_failed_before + self.failed.total()

    def summary(self, elapsed_s: float) -> list[str]:
        """What a person wants to know at the end, a sentence a line."""
        per_s = self.num_tokens / max(elapsed_s, 1e-6)
        lines = [
            f"{self.num_answered:,} answered, {self.num_tokens:,} tokens in {elapsed_s:.1f} s ({per_s:,.0f} tok/s); "
            f"{self.num_done:,} of {self.num_lines:,} lines are done"
        ]
        if self.failed:
            reasons = ", ".join(f"{count:,} {code}" for code, count in self.failed.most_common())
            lines.append(f"{self.failed.total():,} failed: {reasons}")
        if self.num_failed_before:
            lines.append(f"{self.num_failed_before:,} had failed before; --retry-failed tries them again")
        num_retryable = sum(count for code, count in self.failed.items() if error_for(code).retryable)
        if num_retryable:
            lines.append(f"run the same command again to retry {num_retryable:,} of them")
        return lines
