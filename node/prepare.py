"""From the body of a request to token ids, or to an error that says exactly what was wrong. Pure: safe in a thread."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mesh import bodies
from mesh.errors import BadMessage, InvalidRequest, PromptTooLong, RequestError
from mesh.request import ChatMessage, WireRequest, validated
from node.engine.base import EngineInfo
from node.text.chat import ChatTemplateError
from node.text.stream import TextStream
from node.text.tokenizer import TextCodec

logger = logging.getLogger(__name__)

IN_THREAD_FROM_BYTES = 4 << 10  # a longer body, decompressed, may take milliseconds: not on the event loop
INLINE_BYTES = 16 << 10  # of short bodies that came in one message; what is more goes to the thread as well
_MAX_CHARACTERS_PER_TOKEN = 256  # longer than any token of a real vocabulary
_PROMPT_TOKEN_BYTES = 4  # what a token id takes in an array
_RESUMED_TOKEN_BYTES = 40  # and in a tuple


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
    """A request that can run. Its prompt is tokens now, and the words are not kept."""

    request: WireRequest
    prompt_ids: array[int]  # not a list: of 128K tokens that takes 5 MB, and milliseconds whenever it is sent or copied
    stop_token_ids: tuple[int, ...]
    text: TextStream  # has taken in what earlier attempts generated

    @property
    def num_bytes(self) -> int:
        """The memory that it takes while it waits."""
        return _PROMPT_TOKEN_BYTES * len(self.prompt_ids) + _RESUMED_TOKEN_BYTES * len(self.request.resume)


def prepare_or_refuse(body: bytes, codec: TextCodec, limits: Limits, max_body_bytes: int) -> Prepared | RequestError:
    """What came of it. Never raises: whatever a library makes of a strange text, it concerns this request alone."""
    try:
        return prepare(body, codec, limits, max_body_bytes)
    except RequestError as error:
        # Its traceback and what it came of hold on to the body and all that was made of it, for as long as it lives.
        error.__traceback__ = error.__context__ = None
        return error
    except BaseException as error:
        # A panic of a Rust library is no Exception. The text may hold words of the prompt: the log gets the kind alone.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        logger.error("prepare_failed error=%s", type(error).__name__)
        return InvalidRequest(f"it cannot be prepared ({type(error).__name__})")


def prepare(body: bytes, codec: TextCodec, limits: Limits, max_body_bytes: int) -> Prepared:
    """Validate, tokenise and check that it fits.

    Raises: InvalidRequest naming the parameter; PromptTooLong with the numbers.
    """
    request = parse(body, max_body_bytes)
    _check_length(request, limits)
    prompt_ids = _tokenise(request, codec)
    check_fits(len(prompt_ids), request.max_tokens, limits)
    vocabulary = codec.vocab_size
    for name, ids in (("resume", request.resume), ("stop_token_ids", request.stop_token_ids)):
        if any(token_id >= vocabulary for token_id in ids):
            raise InvalidRequest(f"{name}: has token ids past the vocabulary of {vocabulary}")
    stop_token_ids = request.stop_token_ids + (() if request.ignore_eos else codec.eos_token_ids)
    text = TextStream(codec, prompt_ids, request.stop)
    text.replay(request.resume)
    # A chat template may leave out most of what was said, and the rest would stay until the request ends.
    kept = request.model_copy(update={"prompt": None, "messages": None})
    return Prepared(kept, array("I", prompt_ids), stop_token_ids, text)


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


def _check_length(request: WireRequest, limits: Limits) -> None:
    """What cannot fit, however well its words are in the vocabulary, is not worth tokenising. Raises PromptTooLong."""
    texts = [request.prompt or ""] if request.messages is None else [message.content for message in request.messages]
    num_characters = sum(map(len, texts))
    most = min(limits.max_model_len, limits.cache_tokens) * _MAX_CHARACTERS_PER_TOKEN
    if num_characters > most:
        raise PromptTooLong(f"prompt: {num_characters} characters, and no prompt of more than {most} fits this model")


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
