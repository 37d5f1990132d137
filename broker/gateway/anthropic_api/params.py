"""Anthropic's parameters → the mesh's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from broker.gateway.fields import Body, Harmless, MaxTokens, StopTexts, parsed
from broker.gateway.messages import described, mesh_messages, text_of
from broker.gateway.problems import invalid

_ROLES = ("user", "assistant")

_UNSUPPORTED: Harmless = {
    "cache_control": None,  # a hint
    "container": (),
    "context_management": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "output_config": (),
    "output_format": (),
    "service_tier": None,
    "thinking": ({"type": "disabled"},),
    "tool_choice": ({"type": "none"}, {"type": "auto"}),
    "tools": ([],),
}


class MessagesBody(Body):
    """/v1/messages."""

    model: str
    messages: Annotated[list[Any], Field(min_length=1), described(_ROLES)]
    max_tokens: MaxTokens
    system: str | list[Any] = ""
    temperature: float = Field(default=1.0, ge=0, le=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    stop_sequences: StopTexts = Field(default=[])
    stream: bool = False
    metadata: dict[str, Any] = Field(default={})

    @classmethod
    def of(cls, values: dict[str, Any]) -> MessagesBody:
        return parsed(cls, values, _UNSUPPORTED)

    def values(self) -> dict[str, Any]:
        """For the client library. Raises Problem 400."""
        messages = mesh_messages(self.messages, _ROLES)
        system = text_of(self.system, "system")
        if system:
            messages.insert(0, {"role": "system", "content": system})
        user = self.metadata.get("user_id") or ""
        if not isinstance(user, str):
            raise invalid("metadata.user_id", "must be text")
        return {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            "affinity": user,
        }
