"""What a caller may ask for. One pydantic model, validated by the client before sending and by the node on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from mesh.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 256
MAX_SEED = 2**63 - 1
_MAX_TOLD = 16  # mistakes of one request; a stranger can make thousands
_MAX_NAME = 100  # characters of an unknown parameter that an error repeats


def _encodable(text: str) -> str:
    # Python strings can hold half of a surrogate pair (from argv that is not UTF-8, say), which no wire format can.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is not valid Unicode text at character {error.start}") from None
    return text


def _some(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    # Not min_length: beside fail_fast it counts what was left of a list that is wrong for another reason.
    if not messages:
        raise ValueError("give at least one message")
    return messages


Text = Annotated[str, AfterValidator(_encodable)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class ChatMessage(BaseModel):
    """One turn of a chat, as the model's own chat template takes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: Text


class GenerationRequest(BaseModel):
    """A completion (`prompt`) or a chat (`messages`), and how to sample it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prompt: Text | None = None
    messages: Annotated[tuple[ChatMessage, ...], Field(fail_fast=True), AfterValidator(_some)] | None = None
    max_tokens: int = Field(default=DEFAULT_MAX_TOKENS, ge=1, le=1_000_000)
    temperature: float = Field(default=0.0, ge=0.0, le=10.0)  # 0 = greedy
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, lt=2**31)  # 0 = off
    stop: Annotated[tuple[Annotated[Text, Field(min_length=1, max_length=1024)], ...], Field(fail_fast=True)] = Field(
        default=(), max_length=16
    )
    stop_token_ids: Annotated[tuple[TokenId, ...], Field(fail_fast=True)] = Field(default=(), max_length=64)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)  # None: the client mints one
    logprobs: bool = False  # of each generated token, natural log
    ignore_eos: bool = False

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of prompt and messages")
        return self


class WireRequest(GenerationRequest):
    """The body of a request on the wire: what the caller asked, and what earlier attempts already produced."""

    resume: Annotated[tuple[TokenId, ...], Field(fail_fast=True)] = ()

    @model_validator(mode="after")
    def _resume_fits(self) -> Self:
        if len(self.resume) >= self.max_tokens:
            raise ValueError("resume must be shorter than max_tokens")
        return self

    def to_body(self) -> dict[str, Any]:
        """The map that goes into the body frame: only what differs from the defaults."""
        return self.model_dump(exclude_defaults=True)


def validated(cls: type[GenerationRequest], values: Mapping[str, Any]) -> Any:
    """An instance of `cls`. Raises InvalidRequest with one line that names every field that is wrong."""
    try:
        # Strict mode takes no list for a tuple, and callers write lists: convert the sequence fields, nothing else.
        return cls.model_validate({k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except ValidationError as error:
        raise InvalidRequest(
            "; ".join(_explain(cls, e) for e in error.errors(include_url=False, include_input=False)[:_MAX_TOLD])
        ) from None


def _explain(cls: type[BaseModel], error: Any) -> str:
    where = ".".join(_short(str(part)) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown parameter; known are {', '.join(cls.model_fields)}"
    text = error["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "…"
