"""Which requests an engine around a real model turns away, before they can do harm inside it."""

from __future__ import annotations

from node.engine.base import EngineInfo, EngineRequest

MAX_TEMPERATURE = 100.0


def why_not(request: EngineRequest, info: EngineInfo) -> str:
    """Why a request cannot run, or "". What passes must not be able to raise in the thread that steps the engine: that
    would take every other request with it."""
    num_tokens = len(request.token_ids)
    if num_tokens == 0:
        return "there are no prompt tokens"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}: it must be at least 1"
    if num_tokens + request.max_tokens > info.max_model_len:
        return (
            f"{num_tokens} prompt tokens and max_tokens {request.max_tokens} are more than the "
            f"{info.max_model_len} tokens that this engine holds for a request"
        )
    if min(request.token_ids) < 0 or max(request.token_ids) >= info.vocab_size:
        return f"a token id lies outside the vocabulary, 0 to {info.vocab_size - 1}"
    if not (0 <= request.seed < 2**63 and 0 <= request.temperature <= MAX_TEMPERATURE and 0 <= request.top_p <= 1):
        return (
            f"seed {request.seed}, temperature {request.temperature} or top_p {request.top_p} is out of range: "
            f"0 to 2**63 - 1, 0 to {MAX_TEMPERATURE:g}, 0 to 1"
        )
    return ""
