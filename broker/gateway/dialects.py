"""How each API writes an error down. The path says which API is being spoken."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import Response

from broker.gateway.problems import Problem
from broker.gateway.wire import to_json

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(path: str, problem: Problem) -> dict[str, Any]:
    """The body of an error answer, or of an error in the middle of a stream."""
    if path.startswith("/v1/messages"):
        return anthropic_error(problem)
    if path.startswith("/v2"):
        return {"error": problem.message}
    return openai_error(problem)


def openai_error(problem: Problem) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(problem.status) or ("server_error" if problem.status >= 500 else "invalid_request_error")
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}}


def anthropic_error(problem: Problem) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(problem.status) or ("api_error" if problem.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


def error_response(path: str, problem: Problem) -> Response:
    """The whole answer, with Retry-After where waiting helps."""
    headers = {}
    if problem.retry_after_s:
        headers["retry-after"] = str(math.ceil(problem.retry_after_s))
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    body = to_json(error_body(path, problem))
    return Response(body, problem.status, headers, media_type="application/json")
