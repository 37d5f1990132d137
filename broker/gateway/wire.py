"""JSON in and out. What comes in is bounded and never trusted; what goes out is always valid UTF-8."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from broker.gateway.problems import CALLER_LEFT, Problem

BODY_WITHIN_S = 30.0
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_json(value: Any) -> bytes:
    """Half of a surrogate pair, which an error may quote from its caller, goes out as the escape it came in as."""
    return _ENCODER.encode(value).encode("utf-8", "backslashreplace")


def json_text(text: str) -> str:
    """A string as a JSON literal."""
    return _ENCODER.encode(text)


def json_response(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), headers=headers, media_type="application/json")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """All of it. Raises Problem: 413 as soon as it is too long, 408 when it does not come."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise Problem(413, f"the request is over {max_bytes} bytes", code="request_too_large")
                parts.append(part)
    except TimeoutError:
        raise Problem(408, f"the request did not arrive within {BODY_WITHIN_S:g} s", code="request_timeout") from None
    except ClientDisconnect:
        raise Problem(CALLER_LEFT, "the caller left while sending") from None
    return b"".join(parts)


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The body as a JSON object, whatever its content type claims (curl -d says it is a form)."""
    return object_of(await read_body(request, max_bytes))


def object_of(body: bytes) -> dict[str, Any]:
    """Raises Problem 400."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise Problem(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:  # JSON, UTF-8 and endless numbers
        raise Problem(400, f"the body is not valid JSON: {str(error)[:200]}", code="invalid_json") from None
    if b"\\ud" in body or b"\\uD" in body:
        _check_pairs(value)
    if not isinstance(value, dict):
        raise Problem(400, f"the body must be a JSON object, not {type(value).__name__}", code="invalid_json")
    return value


def _check_pairs(value: Any) -> None:
    """Half of a surrogate pair is valid JSON and no text. It would fail at the first place that has to encode it."""
    try:
        _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        raise Problem(400, "the body has half of a surrogate pair: no valid Unicode", code="invalid_json") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
