"""Parameters of infer and generate → the mesh's. They are the mesh's own, with the names that Triton's backends use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from broker.gateway.fields import (
    Body,
    Harmless,
    MaxTokens,
    Priority,
    Seed,
    StopText,
    StopTexts,
    TimeoutS,
    TokenIds,
    parsed,
)
from broker.gateway.problems import invalid
from mesh.request import MAX_SEED

_UNSUPPORTED: Harmless = {
    "exclude_input_in_output": (True,),
    "return_finish_reason": (False,),
    "sequence_id": (0, ""),
    "sequence_start": None,  # part of every request of some clients, and about sequences only
    "sequence_end": None,
    "binary_data_output": None,  # read by whoever writes the answer
}


class GenerateParameters(Body):
    """Greedy unless told otherwise, as the mesh itself is."""

    max_tokens: MaxTokens | None = None
    temperature: float = Field(default=0.0, ge=0, le=10)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    stop: StopText | StopTexts = Field(default=[])
    stop_token_ids: TokenIds = Field(default=[])
    seed: Seed | None = None
    ignore_eos: bool = False
    stream: bool = False
    user: str = ""
    priority: Priority = 0
    timeout: int | None = Field(default=None, gt=0, lt=2**63)  # microseconds: Triton's
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
        elif self.timeout is not None:
            values["timeout_s"] = min(self.timeout / 1e6, 1e9)
        return values


def parameters_of(given: Mapping[str, Any]) -> GenerateParameters:
    """`sampling_parameters` is a JSON object in a text, as Triton's vLLM backend takes it. Raises Problem 400."""
    values = dict(given)
    text = values.pop("sampling_parameters", None)
    if text is not None:
        try:
            sampling = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            sampling = None
        if not isinstance(sampling, dict):
            raise invalid("sampling_parameters", "must be a JSON object, as text")
        values |= sampling
    return parsed(GenerateParameters, values, _UNSUPPORTED)
