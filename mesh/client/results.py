"""What a caller gets back. Plain frozen values: nothing here talks to anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer; of several choices the prompt is counted once and the rest summed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt, found in the node's prefix cache

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the `n` answers to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str  # "stop" or "length"
    usage: Usage
    seed: int | None  # asking again with this seed gives the same text, anywhere; None when decoding was greedy
    logprobs: tuple[float, ...] | None  # natural log, one for each token, if they were asked for
    model: str
    node: str  # that finished it
    ttft_s: float  # submit sent -> first token received here
    total_s: float  # submit sent -> finished
    attempts: int  # 1 unless a node died, drained or was full on the way
    stop_string: str | None = None  # the one that ended the text, if it was one
    pieces: tuple[bytes, ...] | None = None  # what each token stands for, beside logprobs; may be part of a character


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer. `str(completion)` is its text.

    With n > 1 the plain fields are those of the first choice, except usage (all choices together), ttft_s (of the
    earliest), total_s (of the latest) and attempts (the most any choice took).
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: Usage
    model: str
    node: str
    seed: int | None
    logprobs: tuple[float, ...] | None
    ttft_s: float
    total_s: float
    attempts: int
    choices: tuple[Choice, ...]
    stop_string: str | None = None
    pieces: tuple[bytes, ...] | None = None

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, choices: tuple[Choice, ...]) -> Completion:
        """From one choice or more, in the order of their indices."""
        first = choices[0]
        usage, ttft_s, total_s, attempts = first.usage, first.ttft_s, first.total_s, first.attempts
        if len(choices) > 1:
            usage = Usage(
                usage.prompt_tokens,
                sum(choice.usage.completion_tokens for choice in choices),
                sum(choice.usage.cached_tokens for choice in choices),
            )
            ttft_s = min(choice.ttft_s for choice in choices)
            total_s = max(choice.total_s for choice in choices)
            attempts = max(choice.attempts for choice in choices)
        return cls(
            text=first.text,
            token_ids=first.token_ids,
            finish_reason=first.finish_reason,
            usage=usage,
            model=first.model,
            node=first.node,
            seed=first.seed,
            logprobs=first.logprobs,
            ttft_s=ttft_s,
            total_s=total_s,
            attempts=attempts,
            choices=choices,
            stop_string=first.stop_string,
            pieces=first.pieces,
        )


class Chunk(NamedTuple):
    """New tokens of a streamed answer. The texts of all chunks of a choice join to its whole text.

    A NamedTuple, since there is one for nearly every token, and it is made in half of a dataclass' time.
    """

    text: str  # may be empty: characters and stop strings are never split, so text can lag behind tokens
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    choice: int = 0
    pieces: tuple[bytes, ...] | None = None  # beside logprobs

    def __str__(self) -> str:
        return self.text
