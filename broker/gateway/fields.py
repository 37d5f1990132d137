"""The fields of a body: known ones checked, unknown ones named, and those that cannot be honoured refused by name.

A parameter that is silently ignored is worse than an error: its caller believes it works.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker.gateway.problems import Problem, invalid

StopText = Annotated[str, Field(min_length=1, max_length=1024)]
StopTexts = Annotated[list[StopText], Field(max_length=16)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MaxTokens = Annotated[int, Field(ge=1, le=1_000_000)]
TimeoutS = Annotated[float, Field(ge=0.001, le=1e9)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=64)]

Harmless = Mapping[str, Collection[Any] | None]  # field → values without effect; None: any value is


class Body(BaseModel):
    """What a caller sends. JSON's types are taken at their word: "5" is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


B = TypeVar("B", bound=Body)


def parsed(cls: type[B], values: Mapping[str, Any], unsupported: Harmless) -> B:
    """A null means the same as no field at all, as in each of these APIs. Raises Problem 400."""
    kept = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in unsupported:
            _refuse_unless_harmless(name, value, unsupported[name])
        else:
            kept[name] = value
    try:
        return cls.model_validate(kept)
    except ValidationError as error:
        raise _problem(error) from None


def request_body(cls: type[Body], example: Mapping[str, Any]) -> dict[str, Any]:
    """For `openapi_extra`: the bodies are read by hand, so FastAPI does not know them."""
    content = {"application/json": {"schema": cls.model_json_schema(), "example": dict(example)}}
    return {"requestBody": {"required": True, "content": content}}


def _refuse_unless_harmless(name: str, value: Any, harmless: Collection[Any] | None) -> None:
    if harmless is None or any(type(value) is type(one) and value == one for one in harmless):
        return
    instead = " or ".join(repr(one) for one in harmless)
    raise Problem(
        400,
        f"{name}: is not supported here; leave it out{f' or send {instead}' if instead else ''}",
        param=name,
        code="unsupported_parameter",
    )


def _problem(error: ValidationError) -> Problem:
    told = error.errors(include_url=False, include_input=False)
    sentences = [f"{_where(one['loc'])}: {_what(one)}" for one in told]
    problem = invalid(_where(told[0]["loc"]), "")
    problem.message = "; ".join(dict.fromkeys(sentences))
    if told[0]["type"] == "extra_forbidden":
        problem.code = "unknown_parameter"
    return problem


def _what(error: Any) -> str:
    return "unknown parameter" if error["type"] == "extra_forbidden" else str(error["msg"])


def _where(place: tuple[int | str, ...]) -> str:
    """`stop[2]`; what pydantic adds to tell the members of a union apart is left out."""
    name, *rest = place
    return str(name) + "".join(f"[{part}]" for part in rest if isinstance(part, int))
