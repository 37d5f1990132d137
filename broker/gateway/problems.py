"""What goes wrong, as HTTP has it: a status, a sentence, and which parameter is to blame.

Each API writes it down in its own way (broker.gateway.dialects).
"""

from __future__ import annotations

import re

from mesh.errors import (
    BadMessage,
    Cancelled,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    MeshError,
    NoSuchModel,
    NotReady,
    Overloaded,
    PromptTooLong,
    RequestError,
    TransportError,
)

CALLER_LEFT = 499  # nobody reads it; nginx's number for it, so that logs and metrics can say it
_RETRY_SOON_S = 1.0
_PARAMETER = re.compile(r"([a-z_][\w.\[\]]*): ")


class Problem(Exception):
    """Ends one HTTP request. `param` names the field to blame, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


def invalid(param: str, message: str) -> Problem:
    """A 400 that names the field."""
    return Problem(400, f"{param}: {message}", param=param, code="invalid_value")


_BY_ERROR: tuple[tuple[type[MeshError], int, str], ...] = (  # the first that matches
    (PromptTooLong, 400, "context_length_exceeded"),
    (InvalidRequest, 400, "invalid_value"),
    (NoSuchModel, 404, "model_not_found"),
    (Forbidden, 403, "forbidden"),
    (Overloaded, 429, "overloaded"),
    (NotReady, 503, "not_ready"),
    (DeadlineExceeded, 504, "deadline_exceeded"),
    (Cancelled, 503, "cancelled"),  # not by its caller, who is gone then: this gateway or its key is leaving
    (BadMessage, 400, "invalid_value"),  # it could not even be packed: too large
    (TransportError, 503, "mesh_unreachable"),
    (RequestError, 502, "failed"),
)


def problem_of(error: MeshError, *, is_own_deadline: bool = False) -> Problem:
    """The HTTP answer to an error of the mesh. A deadline that the caller set is no failure of the server: 408."""
    status, code = next(
        ((status, code) for kind, status, code in _BY_ERROR if isinstance(error, kind)), (500, "internal_error")
    )
    if is_own_deadline and isinstance(error, DeadlineExceeded):
        status = 408
    retry_after_s = getattr(error, "retry_after_s", 0.0)
    if status in (429, 503) and not retry_after_s:
        retry_after_s = _RETRY_SOON_S
    param = None
    if isinstance(error, NoSuchModel):
        param = "model"
    elif isinstance(error, InvalidRequest) and (named := _PARAMETER.match(str(error))):
        param = named[1]
    return Problem(status, str(error), param=param, code=code, retry_after_s=retry_after_s)
