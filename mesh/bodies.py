"""Body frames: one byte that says how it is packed, then MessagePack. Brokers pass them on unread.

A request's body is a map (mesh.request.WireRequest); the body of Tokens is an array of TokenEntry arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import msgpack
import zstandard

from mesh.errors import BadMessage
from mesh.shape import check_shape, is_harmless

PLAIN = 0
ZSTD = 1
CODECS = ("zstd",)
COMPRESS_FROM_BYTES = 8 << 10  # below that, zstd costs more time than 1 Gbit/s saves (scripts/bench compression)
MAX_BODY_BYTES = 16 << 20  # after decompression
_ZSTD_LEVEL = 1

_PLAIN = bytes([PLAIN])
_ZSTD = bytes([ZSTD])


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended, said with its last tokens."""

    finish_reason: str  # "stop" or "length"
    prompt_tokens: int
    completion_tokens: int  # over all attempts
    cached_tokens: int
    node: str
    model: str
    engine_ttft_s: float  # taken in by the node -> first token
    stop_string: str = ""  # that ended the text, if one did


@dataclass(slots=True)  # not frozen: one is made for each token, and that would take twice as long
class TokenEntry:
    """New tokens of one request. `index` counts generated tokens from 0, over all attempts."""

    request_id: int
    attempt: int
    index: int
    token_ids: Sequence[int]
    text: str  # may lag behind token_ids: characters and stop strings are never split
    logprobs: Sequence[float] | None = None
    end: End | None = None
    pieces: Sequence[bytes] | None = None  # what each token stands for, maybe part of a character; beside logprobs only


def pack(value: Any, *, codec: str = "", max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """One body frame. Raises BadMessage when it is over `max_bytes` or holds what MessagePack cannot say."""
    try:
        payload: bytes = msgpack.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
        raise BadMessage("body", f"cannot be packed ({type(error).__name__})") from None
    if len(payload) > max_bytes:
        raise BadMessage("body", f"{len(payload)} bytes, at most {max_bytes}")
    if codec == "zstd" and len(payload) >= COMPRESS_FROM_BYTES:
        packed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(payload)
        if len(packed) < len(payload):
            return _ZSTD + packed
    return _PLAIN + payload


def unpack(frame: bytes, *, max_bytes: int = MAX_BODY_BYTES) -> Any:
    """The value in a body frame; arrays become tuples. Raises BadMessage, whatever the bytes are."""
    if not frame:
        raise BadMessage("body", "is empty")
    payload = frame[1:]
    if frame[0] == ZSTD:
        payload = _decompress(payload, max_bytes)
    elif frame[0] != PLAIN:
        raise BadMessage("body", f"packing {frame[0]} is unknown")
    if len(payload) > max_bytes:
        raise BadMessage("body", f"{len(payload)} bytes, at most {max_bytes}")
    if not is_harmless(payload):
        check_shape(payload, "body")
    try:
        return msgpack.unpackb(payload, use_list=False, max_ext_len=0, max_bin_len=0)
    except Exception as error:  # msgpack raises ValueError and several of its own; all mean the same here
        raise BadMessage("body", f"not MessagePack within the limits ({type(error).__name__})") from None


def stated_bytes(frame: bytes) -> int:
    """How long the payload is, or says that it will be once it is decompressed. Costs nothing; promises nothing."""
    if frame[:1] != _ZSTD:
        return len(frame)
    try:
        return max(len(frame), zstandard.frame_content_size(frame[1:64]))
    except zstandard.ZstdError:
        return len(frame)


def _decompress(payload: bytes, max_bytes: int) -> bytes:
    """Bounded before anything is allocated: the frame must state its size, and the size must fit."""
    try:
        stated = zstandard.frame_content_size(payload)
        if not 0 <= stated <= max_bytes:
            raise BadMessage("body", f"states {stated} bytes decompressed, at most {max_bytes}")
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=max_bytes)
    except zstandard.ZstdError as error:
        raise BadMessage("body", f"broken zstd frame ({error})") from None


def pack_entries(entries: Iterable[TokenEntry], *, codec: str = "") -> bytes:
    """The body of a Tokens message."""
    return pack(
        [
            (
                e.request_id,
                e.attempt,
                e.index,
                e.token_ids,
                e.text,
                e.logprobs,
                None if e.end is None else _end_row(e.end),
            )
            if e.pieces is None
            else (*_UP_TO_LOGPROBS(e), None if e.end is None else _end_row(e.end), _pieces_row(e.pieces))
            for e in entries
        ],
        codec=codec,
    )


def unpack_entries(frame: bytes) -> list[TokenEntry]:
    """The entries in the body of a Tokens message. Raises BadMessage."""
    rows = unpack(frame)
    if type(rows) is not tuple:
        raise BadMessage("tokens", "must be an array")
    return [_entry(row) for row in rows]


def _entry(row: Any) -> TokenEntry:
    try:
        pieces = None
        if len(row) > 7:
            pieces, row = _pieces(row[7]), row[:7]
        request_id, attempt, index, token_ids, text, logprobs, end = row
        ended = None if end is None else _ended(end)
        entry = TokenEntry(request_id, attempt, index, token_ids, text, logprobs, ended, pieces)
    except (TypeError, ValueError, LookupError):
        raise BadMessage("tokens", "an entry has the wrong shape") from None
    if not (
        type(request_id) is type(attempt) is type(index) is int
        and type(token_ids) is tuple
        and type(text) is str
        and (logprobs is None or type(logprobs) is tuple)
        and (pieces is None or len(pieces) == len(token_ids))
    ):
        raise BadMessage("tokens", "an entry has a field of the wrong type")
    return entry


# What older peers read is left as it is: an ending without a stop string has seven fields, an entry without pieces too.

_UP_TO_LOGPROBS = attrgetter("request_id", "attempt", "index", "token_ids", "text", "logprobs")
_END = attrgetter(*(field.name for field in fields(End)))


def _end_row(end: End) -> Sequence[Any]:
    row: Sequence[Any] = _END(end)
    return row if end.stop_string else row[:-1]


def _pieces_row(pieces: Sequence[bytes]) -> list[str | list[int]]:
    """Text where it is some, for MessagePack has no other bytes that every reader of this protocol takes."""
    return [_text_or_bytes(piece) for piece in pieces]


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _pieces(row: Any) -> tuple[bytes, ...] | None:
    """Raises TypeError or ValueError."""
    if row is None:
        return None
    return tuple([piece.encode() if type(piece) is str else bytes(_array(piece)) for piece in _array(row)])


def _ended(row: Any) -> End:
    """Raises TypeError."""
    end = End(*row[:8])
    if type(end.stop_string) is not str:
        raise TypeError
    return end


def _array(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:  # bytes(5) would be five zeros
        raise TypeError
    return value
