"""The messages between the node agent and an engine worker, and how each becomes one msgpack frame.

Pure data: no socket, no torch. Both ends run the same version of this file (the agent starts the worker), so the rows
are positional and there is no version field.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgpack

from node.engine.base import EngineInfo, EngineOptions, EngineRequest, EngineStats, StepOutput

# --- agent → worker ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: what to load. `home` is the folder that holds models and keys."""

    options: EngineOptions
    home: str


@dataclass(frozen=True, slots=True)
class Submit:
    requests: Sequence[EngineRequest]


@dataclass(frozen=True, slots=True)
class Cancel:
    request_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave now: whatever runs is abandoned."""


# --- worker → agent ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """One line for the operator while the model loads: what, where from, how long."""

    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class Outputs:
    """Everything one engine step produced."""

    outputs: Sequence[StepOutput]


@dataclass(frozen=True, slots=True)
class Stats:
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Fatal:
    """The worker's last message: it exits after sending it."""

    reason: str


Message = Start | Submit | Cancel | Stop | Progress | Ready | Outputs | Stats | Fatal


class BadFrame(ValueError):
    """A frame that is none of these messages: the other end runs different code, or is not a worker at all."""


def encode(message: Message) -> bytes:
    """One frame: `[tag, field, …]`, with nested records as arrays of their fields."""
    return msgpack.packb([_TAG_OF[type(message)], *_row(message)], default=_plain)  # type: ignore[no-any-return]


def decode(frame: bytes) -> Message:
    """The message in a frame. Raises `BadFrame` if it is not one."""
    try:
        tag, *row = msgpack.unpackb(frame)
        return _BUILD[tag](row)
    except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
        raise BadFrame(f"not a worker message ({len(frame)} bytes): {error}") from error


def _plain(value: Any) -> list[Any] | bytes:
    """What msgpack cannot say. An array is its own bytes, which both ends read alike on one host: to pack a prompt of
    128K tokens one by one keeps the agent from its heartbeats for 3 ms, and several come at a time."""
    return value.tobytes() if type(value) is array else _row(value)


def _row(record: Any) -> list[Any]:
    return [getattr(record, name) for name in _FIELDS[type(record)]]


def _request(request_id: int, token_ids: Sequence[int] | bytes, *more: Any) -> EngineRequest:
    return EngineRequest(request_id, array("I", token_ids) if type(token_ids) is bytes else token_ids, *more)


_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind))
    for kind in (
        *(Start, Submit, Cancel, Stop, Progress, Ready, Outputs, Stats, Fatal),
        *(EngineOptions, EngineRequest, StepOutput, EngineInfo, EngineStats),
    )
}

_TAG_OF: dict[type, int] = {
    Start: 1, Submit: 2, Cancel: 3, Stop: 4, Progress: 5, Ready: 6, Outputs: 7, Stats: 8, Fatal: 9,
}  # fmt: skip

_BUILD: dict[int, Callable[[list[Any]], Message]] = {
    1: lambda row: Start(EngineOptions(*row[0]), row[1]),
    2: lambda row: Submit([_request(*request) for request in row[0]]),
    3: lambda row: Cancel(row[0]),
    4: lambda row: Stop(),
    5: lambda row: Progress(row[0]),
    6: lambda row: Ready(EngineInfo(*row[0])),
    7: lambda row: Outputs([StepOutput(*output) for output in row[0]]),
    8: lambda row: Stats(EngineStats(*row[0])),
    9: lambda row: Fatal(row[0]),
}
