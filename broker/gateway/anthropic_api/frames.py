"""Anthropic's messages, whole and as a stream of events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.gateway.dialects import anthropic_error
from broker.gateway.problems import Problem
from broker.gateway.wire import json_text, to_json
from mesh import Chunk, Completion, Usage

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_DELTA = (
    "event: content_block_delta\n"
    'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%s}}\n\n'
)


def message_object(completion: Completion, message_id: str) -> dict[str, Any]:
    return {
        **_message(message_id, completion.model),
        "content": [{"type": "text", "text": completion.text}],
        **_ending(completion),
        "usage": _usage(completion.usage),
    }


class AnthropicFrames:
    """How many tokens the prompt has is known at the end only, so `message_delta` says it, not `message_start`."""

    def __init__(self, message_id: str, model: str) -> None:
        self._message_id = message_id
        self._model = model
        self._is_open = False

    def tokens(self, chunks: Sequence[Chunk]) -> bytes:
        text = "".join([chunk.text for chunk in chunks])
        delta = (_DELTA % json_text(text)).encode("utf-8", "backslashreplace") if text else b""
        return self._opening() + delta

    def idle(self) -> bytes:
        return self._opening() or _PING

    def end(self, completion: Completion) -> bytes:
        return b"".join(
            (
                self._opening(),
                _event({"type": "content_block_stop", "index": 0}),
                _event({"type": "message_delta", "delta": _ending(completion), "usage": _usage(completion.usage)}),
                _event({"type": "message_stop"}),
            )
        )

    def error(self, problem: Problem) -> bytes:
        return _event(anthropic_error(problem))

    def _opening(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        message = {
            **_message(self._message_id, self._model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage(0, 0, 0)),
        }
        block = {"type": "text", "text": ""}
        return b"".join(
            (
                _event({"type": "message_start", "message": message}),
                _event({"type": "content_block_start", "index": 0, "content_block": block}),
                _PING,
            )
        )


def _message(message_id: str, model: str) -> dict[str, Any]:
    return {"id": message_id, "type": "message", "role": "assistant", "model": model}


def _ending(completion: Completion) -> dict[str, Any]:
    if completion.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop_string}
    return {"stop_reason": _STOP_REASONS.get(completion.finish_reason, "end_turn"), "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def _event(value: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (value["type"].encode(), to_json(value))
