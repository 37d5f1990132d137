"""The parameters that callers of several APIs may give, under the same names: how to sample, when to stop, how long."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from broker.gateway.fields import Body, MaxTokens, Priority, Seed, StopText, StopTexts, TimeoutS, TokenIds
from mesh.request import MAX_SEED


class Sampling(Body):
    """Greedy unless told otherwise, as the mesh itself is."""

    max_tokens: MaxTokens | None = None
    temperature: float = Field(default=0.0, ge=0, le=10)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)  # 0 and -1 mean all, as other servers have it
    stop: StopText | StopTexts = Field(default=[])
    stop_token_ids: TokenIds = Field(default=[])
    seed: Seed | None = None
    ignore_eos: bool = False
    stream: bool = False
    user: str = ""
    priority: Priority = 0
    timeout_s: TimeoutS | None = None

    def values(self) -> dict[str, Any]:
        """For the client library, without model and prompt."""
        values: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(self.top_k, 0),
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "priority": self.priority,
            "affinity": self.user,
        }
        if self.max_tokens is not None:
            values["max_tokens"] = self.max_tokens
        if self.seed is not None:
            values["seed"] = self.seed & MAX_SEED
        if self.timeout_s is not None:
            values["timeout_s"] = self.timeout_s
        return values
