"""The one right answer to a request, computed here from the synthetic vocabulary alone, and how an answer differs.

Deliberately not the code that nodes run: stop strings are found in the whole text, not while it streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from mesh.client.results import Choice, Chunk
from node.engine.synthetic_vocab import EOS_ID, decode, encode, expected_tokens, piece_bytes


@dataclass(frozen=True, slots=True)
class Expected:
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[float, ...] | None
    prompt_tokens: int
    stop_string: str | None
    pieces: tuple[bytes, ...] | None


def expected(params: Mapping[str, Any], choice: int = 0) -> Expected:
    """What the engine must answer, whatever happens on the way."""
    prompt_ids = _prompt_ids(params)
    seed = params["seed"] + choice if params.get("temperature") else None
    stop_ids = () if params.get("ignore_eos") else (EOS_ID,)
    tokens = expected_tokens(prompt_ids, params["max_tokens"], seed, stop_ids)
    reason = "stop" if tokens[-1] in stop_ids else "length"
    text = decode(tokens)
    cut = _first_stop(tokens, params.get("stop", ()))
    if cut is not None:
        tokens, text, reason = tokens[: cut[0]], cut[1], "stop"
    pieces = tuple(map(piece_bytes, tokens)) if params.get("logprobs") else None
    logprobs = tuple(-(token % 64) / 16 for token in tokens) if params.get("logprobs") else None
    return Expected(tuple(tokens), text, reason, logprobs, len(prompt_ids), cut[2] if cut else None, pieces)


def difference(params: Mapping[str, Any], got: Choice) -> str:
    """What is wrong with a finished answer; empty if nothing is."""
    want = expected(params, got.index)
    for name, is_, should in (
        ("token_ids", got.token_ids, want.token_ids),
        ("text", got.text, want.text),
        ("finish_reason", got.finish_reason, want.finish_reason),
        ("stop_string", got.stop_string, want.stop_string),
        ("logprobs", got.logprobs, want.logprobs),
        ("pieces", got.pieces, want.pieces),
        ("usage.prompt_tokens", got.usage.prompt_tokens, want.prompt_tokens),
        ("usage.completion_tokens", got.usage.completion_tokens, len(want.token_ids)),
    ):
        if is_ != should:
            return f"{name}: {_first_difference(is_, should)}"
    return ""


def torn(chunks: Sequence[Chunk], choices: Sequence[Choice]) -> str:
    """Whether what was streamed, piece by piece, is something else than the result: a token twice, or skipped."""
    for choice in choices:
        mine = [chunk for chunk in chunks if chunk.choice == choice.index]
        tokens = tuple(token for chunk in mine for token in chunk.token_ids)
        if tokens != choice.token_ids:
            return f"streamed token_ids: {_first_difference(tokens, choice.token_ids)}"
        if "".join(chunk.text for chunk in mine) != choice.text:
            return "streamed text is not the text of the result"
    return ""


def torn_prefix(params: Mapping[str, Any], chunks: Sequence[Chunk]) -> str:
    """The same for a stream that was left early: what came must be how the answer begins."""
    want = expected(params)
    tokens = tuple(token for chunk in chunks for token in chunk.token_ids)
    if tokens != want.token_ids[: len(tokens)]:
        return f"streamed token_ids: {_first_difference(tokens, want.token_ids)}"
    return "" if want.text.startswith("".join(chunk.text for chunk in chunks)) else "streamed text is another one"


def _prompt_ids(params: Mapping[str, Any]) -> list[int]:
    if "messages" not in params:
        return encode(params["prompt"])
    lines = [f"{message['role']}: {message['content']}\n" for message in params["messages"]]
    return encode("".join(lines) + "assistant: ")


def _first_stop(tokens: Sequence[int], stop: Sequence[str]) -> tuple[int, str, str] | None:
    """How many tokens it takes until the text has a stop string in it, the text before that, and that string. The one
    that is complete first counts; of several that end together, the longest."""
    raw = b""
    for num_tokens, token in enumerate(tokens, start=1):
        raw += piece_bytes(token)
        text = raw.decode(errors="ignore")  # without the beginning of a character that is not whole yet
        found = [(at + len(string), at, string) for string in stop if (at := text.find(string)) >= 0]
        if found:
            _, at, string = min(found)
            return num_tokens, text[:at], string
    return None


def _first_difference(got: Any, want: Any) -> str:
    if isinstance(got, (str, tuple)) and isinstance(want, (str, tuple)):
        at = next(i for i in count() if i >= len(got) or i >= len(want) or got[i] != want[i])
        return f"from {at} on {got[at : at + 5]!r} instead of {want[at : at + 5]!r} (of {len(got)} and {len(want)})"
    return f"{got!r} instead of {want!r}"
