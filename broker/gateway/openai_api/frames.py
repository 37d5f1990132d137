"""OpenAI's streams, event by event. What repeats in each is encoded once; a token costs one string."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from broker.gateway.dialects import openai_error
from broker.gateway.openai_api.logprobs import Offsets, Scored, chat_logprobs, text_logprobs
from broker.gateway.openai_api.shapes import mesh_of, usage_of
from broker.gateway.problems import Problem
from broker.gateway.sse import KEEP_ALIVE
from broker.gateway.wire import json_text, to_json
from mesh import Chunk, Completion

_DONE = b"data: [DONE]\n\n"
_BY_CHOICE = attrgetter("choice")

Logprobs = Callable[[Scored | None, int, Offsets], dict[str, Any] | None]


class OpenAIFrames:
    """Of chats by default; `is_chat=False` for plain completions."""

    def __init__(
        self, head: dict[str, Any], model: str, *, include_usage: bool, num_top: int, is_chat: bool = True
    ) -> None:
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        self._head = {**head, "object": kind, "model": model}
        self._is_chat = is_chat
        self._include_usage = include_usage
        self._num_top = num_top
        self._logprobs: Logprobs = chat_logprobs if is_chat else text_logprobs
        start = to_json(self._head)[:-1].decode()
        self._start = f'data: {start},"choices":[{{"index":'
        content = '{"content":' if is_chat else ""
        self._content = f',"{"delta" if is_chat else "text"}":{content}'
        self._content_end = "}" if is_chat else ""
        self._stop = ',"finish_reason":null}]' + (',"usage":null' if include_usage else "") + "}\n\n"
        self._opened: set[int] = set()
        self._offsets: dict[int, Offsets] = defaultdict(Offsets)  # by choice

    def tokens(self, chunks: Sequence[Chunk]) -> bytes:
        if len(chunks) == 1:  # as good as always
            return self._event(chunks[0].choice, chunks).encode("utf-8", "backslashreplace")
        events = [self._event(choice, list(group)) for choice, group in groupby(chunks, _BY_CHOICE)]
        return "".join(events).encode("utf-8", "backslashreplace")

    def idle(self) -> bytes:
        return KEEP_ALIVE

    def end(self, completion: Completion) -> bytes:
        events = [self._end_event(choice.index, choice.finish_reason) for choice in completion.choices]
        if self._include_usage:
            usage = usage_of([completion.usage])
            events.append(_event({**self._head, "choices": [], "usage": usage, "mesh": mesh_of(completion)}))
        return b"".join([*events, _DONE])

    def error(self, problem: Problem) -> bytes:
        return _event(openai_error(problem)) + _DONE

    def _event(self, choice: int, chunks: Sequence[Chunk]) -> str:
        opening = "" if choice in self._opened else self._role(choice)
        text = chunks[0].text if len(chunks) == 1 else "".join([chunk.text for chunk in chunks])
        logprobs = "null"
        if chunks[0].logprobs is not None:
            scored = Scored.in_chunks(chunks)
            logprobs = to_json(self._logprobs(scored, self._num_top, self._offsets[choice])).decode()
        elif not text:  # a character that takes several tokens: nothing to show yet
            return opening
        start, content = self._start, self._content
        return (
            f'{opening}{start}{choice}{content}{json_text(text)}{self._content_end},"logprobs":{logprobs}{self._stop}'
        )

    def _role(self, choice: int) -> str:
        self._opened.add(choice)
        if not self._is_chat:
            return ""
        return f'{self._start}{choice},"delta":{{"role":"assistant","content":""}},"logprobs":null{self._stop}'

    def _end_event(self, index: int, finish_reason: str) -> bytes:
        told: dict[str, Any] = {"index": index}
        if self._is_chat:
            told["delta"] = {} if index in self._opened else {"role": "assistant", "content": ""}
        else:
            told["text"] = ""
        choices = [{**told, "logprobs": None, "finish_reason": finish_reason}]
        usage = {"usage": None} if self._include_usage else {}
        return _event({**self._head, "choices": choices, **usage})


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"
