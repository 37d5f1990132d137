"""A finished answer as JSON, and in one line for a person."""

from __future__ import annotations

import dataclasses
from typing import Any

from mesh import Completion


def full_record(completion: Completion) -> dict[str, Any]:
    """Everything that is known."""
    record = dataclasses.asdict(completion)
    for one in (record, *record["choices"]):
        if one["pieces"] is not None:  # JSON has no bytes: part of a character is shown as U+FFFD
            one["pieces"] = [piece.decode(errors="replace") for piece in one["pieces"]]
    return record


def slim_record(completion: Completion) -> dict[str, Any]:
    """Without the token ids, which are longer than the text, unless log-probabilities were asked for: these need them.
    Several choices only where there are several."""
    record = full_record(completion)
    choices = record.pop("choices")
    if len(choices) > 1:
        record["choices"] = [_without_empty(choice) for choice in choices]
    return _without_empty(record)


def _without_empty(record: dict[str, Any]) -> dict[str, Any]:
    if record["logprobs"] is None:
        del record["logprobs"], record["token_ids"], record["pieces"]
    if record["stop_string"] is None:
        del record["stop_string"]
    return record


def summary(completion: Completion) -> str:
    """Such as `node-a · 28 tokens in 1.20 s · 23.3 tok/s · first after 0.21 s · stop`."""
    num_tokens = completion.usage.completion_tokens
    parts = [
        completion.node,
        f"{num_tokens:,} {'token' if num_tokens == 1 else 'tokens'} in {completion.total_s:.2f} s",
        f"{num_tokens / max(completion.total_s, 1e-6):.1f} tok/s",
        f"first after {completion.ttft_s:.2f} s",
        completion.finish_reason,
    ]
    if completion.attempts > 1:
        parts.append(f"{completion.attempts} attempts")
    return " · ".join(part for part in parts if part)
