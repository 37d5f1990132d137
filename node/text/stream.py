"""Incremental detokenisation: tokens in, text out, nothing shown that would have to be taken back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from node.text.stop import StopStrings
from node.text.tokenizer import TextCodec

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class Delta:
    """What one push added. `num_tokens` counts up to and including the token that completed a stop string."""

    text: str
    num_tokens: int
    stopped: bool


class TextStream:
    """The text of one answer while its tokens arrive.

    Invariant: the text shown after k tokens depends on those k tokens alone, not on how they were grouped or where
    they came from. So after a failover another node replays what the client has, and goes on at the same character.

    Held back: bytes of an unfinished character, and text that may turn out to begin a stop string. A token costs the
    same wherever it stands: nothing is decoded twice.
    """

    def __init__(self, codec: TextCodec, prompt_ids: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        """Raises ValueError for an empty stop string."""
        self._codec = codec
        self._stop = StopStrings(stop)
        self._utf8 = _new_utf8_decoder("replace")  # holds back an unfinished character by itself
        self._held = ""
        self._is_opening = _ends_in_nothing(codec, prompt_ids)
        self.stop_string = ""  # that ended the text, if one did

    @property
    def is_stopped(self) -> bool:
        return bool(self.stop_string)

    def push(self, token_ids: Sequence[int]) -> Delta:
        """Tokens after the one that completes a stop string are ignored."""
        shown = []
        num_tokens = 0
        for token_id in token_ids:
            if self.stop_string:
                break
            num_tokens += 1
            shown.append(self._show(self._decode(token_id)))
        return Delta("".join(shown), num_tokens, bool(self.stop_string))

    def pieces(self, token_ids: Sequence[int]) -> list[bytes]:
        """What each of these stands for if they are pushed next, maybe part of a character. Takes nothing in."""
        found = []
        is_opening = self._is_opening
        for token_id in token_ids:
            piece = self._codec.piece(token_id)
            if is_opening and piece:
                is_opening = False
                piece = self._codec.opening_piece(token_id)
            found.append(piece)
        return found

    def replay(self, token_ids: Sequence[int]) -> None:
        """Take in tokens whose text the caller has already."""
        self.push(token_ids)

    def finish(self) -> str:
        """What was held back, once no more tokens will come. Bytes that are no character become U+FFFD."""
        if self.stop_string:
            return ""
        shown = self._show(self._utf8.decode(b"", final=True))
        held, self._held = self._held, ""
        return shown if self.stop_string else shown + held

    def _decode(self, token_id: int) -> str:
        piece = self._codec.piece(token_id)
        if self._is_opening and piece:
            self._is_opening = False
            piece = self._codec.opening_piece(token_id)
        return self._utf8.decode(piece)

    def _show(self, text: str) -> str:
        """Add text and return what can be shown by now."""
        if not self._stop:
            return text
        text = self._held + text
        num_safe, self.stop_string = self._stop.scan(text)
        self._held = "" if self.stop_string else text[num_safe:]
        return text[:num_safe]


def decode(codec: TextCodec, token_ids: Sequence[int], prompt_ids: Sequence[int] = (), stop: Sequence[str] = ()) -> str:
    """The whole text at once: by definition what a stream shows in total."""
    stream = TextStream(codec, prompt_ids, stop)
    return stream.push(token_ids).text + stream.finish()


def _ends_in_nothing(codec: TextCodec, prompt_ids: Sequence[int]) -> bool:
    """Whether the answer begins a text of its own (a chat: the prompt ends with a special token) or goes on with the
    prompt's, in which case its first space is meant."""
    for token_id in reversed(prompt_ids):
        if codec.is_special(token_id):
            return True
        if codec.piece(token_id):
            return False
    return True
