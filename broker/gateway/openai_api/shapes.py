"""The objects of OpenAI's answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from broker.gateway.openai_api.logprobs import Offsets, Scored, chat_logprobs, text_logprobs
from mesh import Choice, Completion, ModelReport, Usage


def usage_of(usages: Iterable[Usage]) -> dict[str, Any]:
    usages = list(usages)
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
    }


def mesh_of(completion: Completion) -> dict[str, Any]:
    """Beside the usage of a streamed answer: what OpenAI has no field for. Its clients hand unknown fields on."""
    return {
        "node": completion.node,
        "attempts": completion.attempts,  # over 1: nodes were lost, drained or full on the way
        "ttft_s": round(completion.ttft_s, 4),
        "total_s": round(completion.total_s, 4),
    }


def chat_completion(completion: Completion, head: dict[str, Any], num_top: int) -> dict[str, Any]:
    return {
        **head,
        "object": "chat.completion",
        "model": completion.model,
        "choices": [_chat_choice(choice, num_top) for choice in completion.choices],
        "usage": usage_of([completion.usage]),
    }


def text_completion(completions: Sequence[Completion], head: dict[str, Any], num_top: int) -> dict[str, Any]:
    choices = [choice for completion in completions for choice in completion.choices]
    return {
        **head,
        "object": "text_completion",
        "model": completions[0].model,
        "choices": [_text_choice(index, choice, num_top) for index, choice in enumerate(choices)],
        "usage": usage_of(completion.usage for completion in completions),
    }


def model_object(model: ModelReport, created: int) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "phi3-mesh",
        "max_model_len": model.max_model_len,
    }


def _chat_choice(choice: Choice, num_top: int) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": chat_logprobs(Scored.in_choice(choice), num_top, Offsets()),
        "finish_reason": choice.finish_reason,
    }


def _text_choice(index: int, choice: Choice, num_top: int) -> dict[str, Any]:
    return {
        "index": index,
        "text": choice.text,
        "logprobs": text_logprobs(Scored.in_choice(choice), num_top, Offsets()),
        "finish_reason": choice.finish_reason,
    }
