"""A Problem → the status that gRPC has for it."""

from __future__ import annotations

from grpc import StatusCode

from broker.gateway.problems import Problem

_BY_STATUS = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    408: StatusCode.DEADLINE_EXCEEDED,
    413: StatusCode.RESOURCE_EXHAUSTED,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
_MAX_DETAILS = 500  # characters; a client takes 8 KiB of trailers, where one character may take twelve bytes
_PUSHBACK = "grpc-retry-pushback-ms"  # gRPC's own word for Retry-After, which clients with a retry policy heed


def code_of(problem: Problem) -> StatusCode:
    return _BY_STATUS.get(problem.status, StatusCode.INTERNAL)


def details_of(problem: Problem) -> str:
    """The sentence for the caller."""
    return problem.message[:_MAX_DETAILS]


def trailers_of(problem: Problem) -> tuple[tuple[str, str], ...]:
    """When to try again, where waiting helps."""
    return ((_PUSHBACK, str(round(problem.retry_after_s * 1000))),) if problem.retry_after_s else ()
