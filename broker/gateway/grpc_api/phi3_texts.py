"""The messages of `phi3_inference` → the mesh's parameters, and its answers → messages. Pure."""

from __future__ import annotations

from typing import Any

from broker.gateway.grpc_api.phi3_inference_pb2 import TextRequest, TextResponse
from broker.gateway.problems import invalid
from mesh import Completion

_MOST_TOKENS = 1_000_000
_HOTTEST = 10.0


def values_of(request: TextRequest, model: str, where: str = "") -> dict[str, Any]:
    """A max_length of 0 is left to the gateway: proto3 cannot tell it from none. Raises Problem 400 for a field."""
    if not 0 <= request.max_length <= _MOST_TOKENS:
        raise invalid(f"{where}max_length", f"must be from 0 (the default) to {_MOST_TOKENS}, not {request.max_length}")
    if not 0 <= request.temperature <= _HOTTEST:  # nor is NaN
        raise invalid(f"{where}temperature", f"must be from 0 (greedy) to {_HOTTEST:g}, not {request.temperature:g}")
    values: dict[str, Any] = {"prompt": request.prompt, "temperature": request.temperature, "model": model}
    if request.max_length:
        values["max_tokens"] = request.max_length
    return values


def response_of(completion: Completion) -> TextResponse:
    return TextResponse(generated_text=completion.text, process_time_ms=round(completion.total_s * 1000))
