"""The one right answer to a request: a pure function of what was asked. Lost and doubled tokens show at once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from mesh.bodies import End, TokenEntry


def token_at(body: dict[str, Any], index: int) -> int:
    return zlib.crc32(repr((body.get("prompt") or body.get("messages"), body.get("seed"), index)).encode()) % 1000


def tokens_of(body: dict[str, Any], count: int) -> list[int]:
    return [token_at(body, index) for index in range(count)]


def text_of(token_ids: Sequence[int], *, is_whole: bool) -> str:
    """One word for each token. Until the end the last character is held back, as a node holds back half a character."""
    text = "".join(f"w{token_id} " for token_id in token_ids)
    return text if is_whole else text[:-1]


def entry_of(
    body: dict[str, Any], request_id: int, attempt: int, start: int, stop: int, *, ends: bool = False
) -> TokenEntry:
    """Tokens start … stop - 1 as a node would send them."""
    tokens = tokens_of(body, stop)
    shown_before = len(text_of(tokens[:start], is_whole=False))
    return TokenEntry(
        request_id,
        attempt,
        start,
        tuple(tokens[start:stop]),
        text_of(tokens, is_whole=ends)[shown_before:],
        tuple(-float(token_id) for token_id in tokens[start:stop]) if body.get("logprobs") else None,
        End("length", 7, stop, 0, "fake", "fake-model", 0.01) if ends else None,
        tuple(f"w{token_id} ".encode() for token_id in tokens[start:stop]) if body.get("logprobs") else None,
    )
