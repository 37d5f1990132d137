"""Log probabilities of tokens as OpenAI writes them: for chats, and in the older form of plain completions. Pure.

A token may be part of a character. It is named by its bytes then, as OpenAI does: `\\xf0\\x9f`. A node that tells no
pieces leaves the ids, as other servers of this API give them on request.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from mesh import Choice, Chunk

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class Scored:
    """Tokens with their log probabilities, and what each stands for where that is known."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    pieces: Sequence[bytes] | None

    @classmethod
    def in_choice(cls, choice: Choice) -> Self | None:
        return None if choice.logprobs is None else cls(choice.token_ids, choice.logprobs, choice.pieces)

    @classmethod
    def in_chunks(cls, chunks: Sequence[Chunk]) -> Self | None:
        """Of one choice."""
        if chunks[0].logprobs is None:
            return None
        token_ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
        logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs or ()]
        pieces = [piece for chunk in chunks for piece in chunk.pieces or ()]
        return cls(token_ids, logprobs, pieces if len(pieces) == len(token_ids) else None)

    def names(self, prefix: str = "") -> list[str]:
        """`prefix` stands before what is no text."""
        if self.pieces is None:
            return [f"token_id:{token_id}" for token_id in self.token_ids]
        return [_name(piece, prefix) for piece in self.pieces]


class Offsets:
    """Where in the text of an answer each of its tokens begins, in characters, as the tokens come."""

    def __init__(self) -> None:
        self._utf8 = _new_utf8_decoder("replace")
        self._at = 0

    def of(self, pieces: Iterable[bytes]) -> list[int]:
        """Of the next tokens. One within a character begins where the character does."""
        offsets = []
        for piece in pieces:
            offsets.append(self._at)
            self._at += len(self._utf8.decode(piece))
        return offsets


def chat_logprobs(scored: Scored | None, num_top: int, _: Offsets) -> dict[str, Any] | None:
    """`choices[].logprobs` of a chat."""
    if scored is None:
        return None
    raw = [None] * len(scored.token_ids) if scored.pieces is None else [list(piece) for piece in scored.pieces]
    content = []
    for name, logprob, piece in zip(scored.names(), scored.logprobs, raw, strict=True):
        token = {"token": name, "logprob": logprob, "bytes": piece}
        content.append({**token, "top_logprobs": [token] * num_top})
    return {"content": content, "refusal": None}


def text_logprobs(scored: Scored | None, num_top: int, offsets: Offsets) -> dict[str, Any] | None:
    """`choices[].logprobs` of a plain completion; offsets count from the beginning of its text."""
    if scored is None:
        return None
    names = scored.names("bytes:")
    top = [{name: logprob} for name, logprob in zip(names, scored.logprobs, strict=True)] if num_top else None
    return {
        "tokens": names,
        "token_logprobs": list(scored.logprobs),
        "top_logprobs": top,
        "text_offset": offsets.of(scored.pieces or ()),
    }


def _name(piece: bytes, prefix: str) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in piece)
