"""From a token id to the bytes it stands for. Owns the knowledge of how tokenizers write their pieces.

Every decoder that language models use today works token by token: the text is the UTF-8 of the joined bytes, and only
its very beginning is special (SentencePiece models drop the space they put in front of a text). That makes streaming
exact and cheap: nothing has to be decoded twice to find out where the new text begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedDecoder(ValueError):
    """The tokenizer turns tokens into text in a way that cannot be streamed token by token."""


class PieceTable:
    """Bytes of each token, found on first use and kept. Special tokens and unknown ids have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_of: Callable[[int], str | None] = tokenizer.id_to_token
        self._special = frozenset(
            token_id for token_id, added in tokenizer.get_added_tokens_decoder().items() if added.special
        )
        decoder = tokenizer.decoder
        if decoder is None:
            raise UnsupportedDecoder("the tokenizer has no decoder: it cannot turn tokens back into text")
        self._steps = _steps(json.loads(decoder.__getstate__()))
        self._pieces: dict[int, bytes] = {}

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def piece(self, token_id: int) -> bytes:
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._look_up(token_id)
        return piece

    def opening_piece(self, token_id: int) -> bytes:
        """The piece as the first one of a text: without the space that SentencePiece put in front."""
        piece = self.piece(token_id)
        for step in self._steps:
            if step["type"] == "Strip":
                content = step["content"].encode()
                for _ in range(step["start"]):
                    piece = piece.removeprefix(content)
            elif step["type"] == "Metaspace" and step["prepend_scheme"] != "never":
                piece = piece.replace(b" ", b"")  # the library drops every space of the first token, not only one
        return piece

    def _look_up(self, token_id: int) -> bytes:
        # A model's vocabulary is often padded beyond the tokenizer's: those ids stand for nothing.
        token = None if token_id in self._special else self._token_of(token_id)
        if token is None:
            return b""
        for step in self._steps:
            match step["type"]:
                case "ByteLevel":
                    return _byte_level(token)
                case "ByteFallback" if found := _BYTE_TOKEN.fullmatch(token):
                    return bytes.fromhex(found[1])
                case "Replace":
                    token = token.replace(step["pattern"]["String"], step["content"])
                case "Metaspace":
                    token = token.replace(step["replacement"], " ")
        return token.encode("utf-8", "replace")


def _steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The decoder as a flat list of steps, each of which we know how to take one token at a time."""
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    known = {
        "ByteLevel": True,
        "ByteFallback": True,
        "Fuse": True,  # joins what we join anyway
        "Metaspace": True,
        "Replace": "String" in decoder.get("pattern", {}),
        "Strip": decoder.get("stop") == 0,  # at the end of a text one would have to know that it is the end
    }
    if not known.get(decoder["type"]):
        raise UnsupportedDecoder(f"the tokenizer's decoder step {json.dumps(decoder)} cannot be streamed")
    return [decoder]


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[char] for char in token)
    except KeyError:  # an added token is written as it is
        return token.encode("utf-8", "replace")


def _bytes_as_letters() -> dict[str, int]:
    """The GPT-2 alphabet: a printable Latin-1 byte is written as itself, the n-th other one as chr(256 + n)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _bytes_as_letters()
