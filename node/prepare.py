"""From the body of a request to token ids, or to an error that says exactly what was wrong. Pure: safe in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mesh import bodies
from mesh.errors import BadMessage, InvalidRequest, PromptTooLong
from mesh.request import ChatMessage, WireRequest, validated
from node.engine.base import EngineInfo
from node.text.chat import ChatTemplateError
from node.text.stream import TextStream
from node.text.tokenizer import TextCodec

IN_THREAD_FROM_BYTES = 16 << 10  # tokenising a longer body takes milliseconds: not on the event loop


@dataclass(frozen=True, slots=True)
class Limits:
    """What fits: one request in the context, and in the cache."""

    max_model_len: int
    cache_tokens: int

    @classmethod
    def of(cls, infos: Sequence[EngineInfo]) -> Limits:
        """The tightest of all workers, since a request may land on any of them."""
        return cls(min(info.max_model_len for info in infos), min(info.cache_tokens for info in infos))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can run."""

    request: WireRequest
    prompt_ids: list[int]
    stop_token_ids: tuple[int, ...]
    text: TextStream


def prepare(body: bytes, codec: TextCodec, limits: Limits, max_body_bytes: int) -> Prepared:
    """Validate, tokenise and check that it fits.

    Raises: InvalidRequest naming the parameter; PromptTooLong with the numbers.
    """
    request = parse(body, max_body_bytes)
    prompt_ids = _tokenise(request, codec)
    check_fits(len(prompt_ids), request.max_tokens, limits)
    vocabulary = codec.vocab_size
    for name, ids in (("resume", request.resume), ("stop_token_ids", request.stop_token_ids)):
        if any(token_id >= vocabulary for token_id in ids):
            raise InvalidRequest(f"{name}: has token ids past the vocabulary of {vocabulary}")
    stop_token_ids = request.stop_token_ids + (() if request.ignore_eos else codec.eos_token_ids)
    text = TextStream(codec, prompt_ids, request.stop)
    return Prepared(request, prompt_ids, stop_token_ids, text)


def parse(body: bytes, max_body_bytes: int) -> WireRequest:
    """Raises InvalidRequest."""
    try:
        values: Any = bodies.unpack(body, max_bytes=max_body_bytes)
    except BadMessage as error:
        raise InvalidRequest(str(error)) from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InvalidRequest("body: must be a map from parameter names")
    request: WireRequest = validated(WireRequest, values)
    if request.temperature > 0 and request.seed is None:
        raise InvalidRequest("seed: required when temperature > 0, so that a failover can repeat it")
    return request


def _tokenise(request: WireRequest, codec: TextCodec) -> list[int]:
    try:
        if request.messages is not None:
            prompt_ids = codec.encode_chat([_plain(message) for message in request.messages])
        else:
            prompt_ids = codec.encode(request.prompt or "")
    except ChatTemplateError as error:
        raise InvalidRequest(f"messages: {error}") from None
    if not prompt_ids:
        raise InvalidRequest("prompt: is empty; give at least one token")
    return prompt_ids


def _plain(message: ChatMessage) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def check_fits(num_prompt: int, max_tokens: int, limits: Limits) -> None:
    """Raises PromptTooLong."""
    need = num_prompt + max_tokens
    for room, what in ((limits.max_model_len, "the model's context"), (limits.cache_tokens, "the node's cache")):
        if need > room:
            raise PromptTooLong(
                f"prompt ({num_prompt} tokens) + max_tokens ({max_tokens}) = {need}, {what} holds {room}: "
                "shorten the prompt or lower max_tokens"
            )
