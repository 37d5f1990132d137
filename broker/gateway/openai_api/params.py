"""OpenAI's parameters → the mesh's. What a mesh cannot do is refused by name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from broker.gateway.fields import Harmless, MaxTokens, parsed
from broker.gateway.messages import described, mesh_messages
from broker.gateway.problems import invalid
from broker.gateway.sampling import Sampling

ROLES = ("system", "developer", "user", "assistant", "tool")

_UNSUPPORTED: Harmless = {
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "include_stop_str_in_output": (False,),
    "metadata": None,
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "service_tier": None,
    "skip_special_tokens": (True,),
    "store": (False,),
}
_UNSUPPORTED_CHAT: Harmless = {
    **_UNSUPPORTED,
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": None,  # means nothing without tools
    "prediction": (),
    "prompt_cache_key": None,  # a hint, and so are the next two
    "prompt_cache_options": None,
    "prompt_cache_retention": None,
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "safety_identifier": None,
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
_UNSUPPORTED_COMPLETION: Harmless = {**_UNSUPPORTED, "best_of": (1,), "echo": (False,), "suffix": ("",)}


class _Common(Sampling):
    model: str = ""
    temperature: float = Field(default=1.0, ge=0, le=2)
    n: int = Field(default=1, ge=1, le=128)
    stream_options: dict[str, bool] = Field(default={})

    @property
    def include_usage(self) -> bool:
        return self.stream_options.get("include_usage", False)

    def values(self) -> dict[str, Any]:
        """For the client library, without the prompt. Raises Problem 400."""
        if unknown := set(self.stream_options) - {"include_usage", "include_obfuscation"}:
            raise invalid(f"stream_options.{min(unknown)[:64]}", "unknown parameter")
        if self.stream_options and not self.stream:
            raise invalid("stream_options", "only with stream=true")
        return {**super().values(), "model": self.model, "n": self.n}

    def check_top(self, name: str, num_top: int) -> None:
        """Only the log probability of the token that was chosen is known: it is the top one if decoding is greedy."""
        if num_top > 1:
            raise invalid(name, "more than 1 is not supported here")
        if num_top == 1 and self.temperature > 0:
            raise invalid(name, "1 is only supported with temperature 0, where the chosen token is the top one")


class ChatBody(_Common):
    """/v1/chat/completions."""

    messages: Annotated[list[Any], Field(min_length=1), described(ROLES)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0

    @classmethod
    def of(cls, values: dict[str, Any]) -> ChatBody:
        return parsed(cls, values, _UNSUPPORTED_CHAT)

    @property
    def num_top(self) -> int:
        return self.top_logprobs

    def values(self) -> dict[str, Any]:
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "only with logprobs=true")
        self.check_top("top_logprobs", self.top_logprobs)
        values = super().values()
        values["messages"] = mesh_messages(self.messages, ROLES)
        values["logprobs"] = self.logprobs
        if self.max_completion_tokens is not None:
            values["max_tokens"] = self.max_completion_tokens
        return values


class CompletionBody(_Common):
    """/v1/completions."""

    prompt: str | Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"type": "string"}})]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @classmethod
    def of(cls, values: dict[str, Any]) -> CompletionBody:
        return parsed(cls, values, _UNSUPPORTED_COMPLETION)

    @property
    def num_top(self) -> int:
        return self.logprobs or 0

    def prompts(self) -> list[str]:
        """Raises Problem 400."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
            raise invalid("prompt", "must be text or a list of texts; token ids are not supported here")
        if self.stream and len(prompts) > 1:
            raise invalid("prompt", "only one can be streamed; send several requests")
        return prompts

    def values(self) -> dict[str, Any]:
        self.check_top("logprobs", self.num_top)
        return {**super().values(), "logprobs": self.logprobs is not None}
