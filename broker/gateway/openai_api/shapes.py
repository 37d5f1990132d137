"""The objects of OpenAI's answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mesh import Choice, Completion, ModelReport, Usage


def token_name(token_id: int) -> str:
    """Text and tokens do not come apart one by one here (a character may take several tokens), so a token is named by
    its id, as other servers of this API do on request."""
    return f"token_id:{token_id}"


def chat_logprobs(token_ids: Sequence[int], logprobs: Sequence[float] | None, num_top: int) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    content = []
    for token_id, logprob in zip(token_ids, logprobs, strict=True):
        token = {"token": token_name(token_id), "logprob": logprob, "bytes": None}
        content.append({**token, "top_logprobs": [token] * num_top})
    return {"content": content, "refusal": None}


def text_logprobs(token_ids: Sequence[int], logprobs: Sequence[float] | None, num_top: int) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    names = [token_name(token_id) for token_id in token_ids]
    top = [{name: logprob} for name, logprob in zip(names, logprobs, strict=True)] if num_top else None
    return {"tokens": names, "token_logprobs": list(logprobs), "top_logprobs": top, "text_offset": []}


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
        "logprobs": chat_logprobs(choice.token_ids, choice.logprobs, num_top),
        "finish_reason": choice.finish_reason,
    }


def _text_choice(index: int, choice: Choice, num_top: int) -> dict[str, Any]:
    return {
        "index": index,
        "text": choice.text,
        "logprobs": text_logprobs(choice.token_ids, choice.logprobs, num_top),
        "finish_reason": choice.finish_reason,
    }
