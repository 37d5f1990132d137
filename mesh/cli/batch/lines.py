"""The lines of the input: what each asks, or what is wrong with it. A line never stops the lines after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO

from mesh.client.params import asks_of
from mesh.errors import InvalidRequest

_NOT_IN_KEY = ("timeout_s", "priority")  # they change when an answer comes, not which


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank. `key` tells whether an answer from an earlier run still belongs to it."""

    number: int  # from 1, blank ones included: as an editor counts
    key: int  # 63 bits, never 0
    raw: bytes


@dataclass(frozen=True, slots=True)
class Question:
    """`values` go to the client as they are; None: `problem` says what is wrong with the line."""

    id: Any
    values: dict[str, Any] | None
    problem: str = ""


class Keys:
    """Makes keys: from the line and from the options that all lines share."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        told = {name: value for name, value in shared.items() if name not in _NOT_IN_KEY}
        self._shared = blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=8)

    def of(self, raw: bytes) -> int:
        digest = self._shared.copy()
        digest.update(raw)
        return int.from_bytes(digest.digest(), "big") >> 1 or 1


def read_lines(file: BinaryIO, keys: Keys) -> Iterator[Line]:
    for number, raw in enumerate(file, 1):
        if stripped := raw.strip():
            yield Line(number, keys.of(stripped), stripped)


def question_of(line: Line, shared: Mapping[str, Any]) -> Question:
    """Checked as the client would, so that a line with a mistake is known before anything is sent."""
    try:
        values = json.loads(line.raw.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        return Question(None, None, f"not JSON: {error}")
    if not isinstance(values, dict):
        return Question(None, None, 'must be a JSON object with "prompt" or "messages"')
    identity = values.pop("id", None)
    values = {**shared, **values}
    try:
        if b"\\u" in line.raw:  # JSON can spell half a character, which is no text and cannot be sent
            json.dumps(values, ensure_ascii=False).encode()
        asks_of(values)
    except UnicodeEncodeError:
        return Question(None, None, "has half a surrogate pair (\\ud800 to \\udfff), which is no text")
    except InvalidRequest as error:
        return Question(identity, None, error.message)
    return Question(identity, values)
