"""What a step of the examination comes to. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Mark(Enum):
    """How it went, and how that is shown where the terminal can and where it cannot."""

    PASSED = ("✓", "ok")
    FAILED = ("✗", "FAIL")
    SKIPPED = ("–", "-")


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one step. Only a `fatal` failure means that the mesh cannot be used from here."""

    mark: Mark
    step: str
    told: str
    remedy: str = ""  # what to do about a failure
    fatal: bool = False


def passed(step: str, told: str) -> Finding:
    return Finding(Mark.PASSED, step, told)


def skipped(step: str, told: str) -> Finding:
    return Finding(Mark.SKIPPED, step, told)


def warned(step: str, told: str, remedy: str = "") -> Finding:
    """Something is wrong, but there may be another way."""
    return Finding(Mark.FAILED, step, told, remedy)


def failed(step: str, told: str, remedy: str) -> Finding:
    return Finding(Mark.FAILED, step, told, remedy, fatal=True)


def verdict(findings: list[Finding]) -> tuple[bool, list[str]]:
    """Whether the mesh can be used, and what to tell: the failure that matters first, then what may be behind it."""
    troubles = [finding for finding in findings if finding.mark is Mark.FAILED and finding.remedy]
    advice = list(dict.fromkeys(f"{trouble.step}: {trouble.remedy}" for trouble in troubles if not trouble.fatal))
    first_fatal = next((finding for finding in troubles if finding.fatal), None)
    if first_fatal is not None:
        told = f"{first_fatal.step}: {first_fatal.remedy}"
        return False, [told, *(sentence for sentence in advice if sentence != told)]
    if advice:
        return True, ["the mesh works from here, in spite of what is marked above", *advice]
    return True, ["the mesh works from here"]
