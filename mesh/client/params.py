"""A caller's parameters: checked before anything is sent, and turned into the requests they stand for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from pydantic import Field

from mesh.errors import InvalidRequest
from mesh.request import MAX_SEED, ChatMessage, GenerationRequest, Text, validated

Message = ChatMessage | Mapping[str, str]
Item = str | Sequence[Message] | Mapping[str, object]  # one entry of a batch

_Key = Annotated[Text, Field(max_length=256)]  # travels in the header, which is kept small


class Parameters(TypedDict, total=False):
    """What may follow the prompt in every call. Sampling is described at mesh.request.GenerationRequest."""

    max_tokens: int  # 256
    temperature: float  # 0.0 = greedy
    top_p: float
    top_k: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    seed: int | None  # minted when temperature > 0, and told in the result
    logprobs: bool
    ignore_eos: bool
    n: int  # answers to each prompt, with seeds seed, seed + 1, …
    timeout_s: float | None  # DeadlineExceeded after it; None waits as long as it takes
    priority: int  # higher goes first among this client's requests
    affinity: str  # requests with one key go to one node where the broker's policy heeds it
    model: str  # "" = the one that is served


class CallParameters(GenerationRequest):
    """Everything a caller may say about one prompt: the request itself and how the client should handle it."""

    n: int = Field(default=1, ge=1, le=128)
    timeout_s: float | None = Field(default=None, gt=0.0, le=1e9)
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    affinity: _Key = ""
    model: _Key = ""


_CHARS_PER_TOKEN = 4
_NOT_IN_BODY = set(CallParameters.model_fields) - set(GenerationRequest.model_fields)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be: an answer to a prompt."""

    body: Mapping[str, Any]  # as on the wire, without `resume`
    max_tokens: int
    prompt_tokens: int  # estimate
    logprobs: bool
    seed: int | None
    timeout_s: float | None
    priority: int
    affinity: str
    model: str
    choice: int


def asks_of(values: Mapping[str, object], mint: Callable[[int], int] = secrets.randbits) -> list[Ask]:
    """The `n` requests that one prompt with its parameters stands for.

    Raises: InvalidRequest naming every field that is wrong, and the known ones beside an unknown one.
    """
    call: CallParameters = validated(CallParameters, values)
    seed = call.seed
    if seed is None and call.temperature > 0:
        seed = mint(63)
    body = call.model_dump(exclude_defaults=True, exclude=_NOT_IN_BODY)
    return [_ask(call, body, seed, choice) for choice in range(call.n)]


def values_of(item: Item, shared: Mapping[str, object]) -> Mapping[str, object]:
    """The parameters of one batch entry: a prompt, a chat, or a mapping whose keys win over the shared ones."""
    if isinstance(item, str):
        return {**shared, "prompt": item}
    if isinstance(item, Mapping):
        return {**shared, **item}
    if isinstance(item, Sequence):
        return {**shared, "messages": tuple(item)}
    raise InvalidRequest(
        f"prompts: each must be text, a list of messages or a dict of parameters, not {type(item).__name__}"
    )


def _ask(call: CallParameters, body: dict[str, Any], seed: int | None, choice: int) -> Ask:
    if seed is not None:
        seed = (seed + choice) & MAX_SEED  # modulo 2**63
        body = {**body, "seed": seed}
    return Ask(
        body=body,
        max_tokens=call.max_tokens,
        prompt_tokens=_estimated_tokens(call),
        logprobs=call.logprobs,
        seed=seed,
        timeout_s=call.timeout_s,
        priority=call.priority,
        affinity=call.affinity,
        model=call.model,
        choice=choice,
    )


def _estimated_tokens(call: CallParameters) -> int:
    """Good enough to weigh requests against each other; the node counts."""
    num_chars = len(call.prompt or "") + sum(len(message.content) for message in call.messages or ())
    return num_chars // _CHARS_PER_TOKEN + 1
