"""What a client process tells the run, one JSON object a line. Times are of the monotonic clock, which all processes of
a host share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    RIGHT = "right"
    CANCELLED = "cancelled"  # by the load itself, and right so far
    DEADLINE = "deadline"  # its own, not before its time
    LOST = "lost"  # no ending
    TORN = "torn"  # a token was delivered twice, or skipped
    DIFFERENT = "different"
    ERROR = "error"


GOOD = frozenset({Verdict.RIGHT, Verdict.CANCELLED, Verdict.DEADLINE})


@dataclass(frozen=True, slots=True)
class Setback:
    """The client was told that a node or its broker is gone."""

    at: float
    who: str  # node name, or address of the broker
    reason: str
    num_requests: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """The hole that setbacks made in a stream: from its last chunk before to its first one after."""

    at: float
    until: float
    setbacks: tuple[Setback, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """How one request ended."""

    kind: str
    verdict: Verdict
    is_stream: bool
    attempts: int
    took_s: float
    detail: str = ""
    pauses: tuple[Pause, ...] = field(default=())


def to_line(record: Result | Setback) -> str:
    return json.dumps({"record": type(record).__name__, **asdict(record)})


def from_line(line: bytes) -> Result | Setback:
    values = json.loads(line)
    if values.pop("record") == "Setback":
        return Setback(**values)
    values["verdict"] = Verdict(values["verdict"])
    values["pauses"] = tuple(
        Pause(pause["at"], pause["until"], tuple(Setback(**setback) for setback in pause["setbacks"]))
        for pause in values["pauses"]
    )
    return Result(**values)
