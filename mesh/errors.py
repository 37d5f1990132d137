"""Every error a caller can meet, each with one sentence on what to do about it.

MeshError
  ConfigError                       before anything started: fix the option it names
  ProtocolError                     a peer broke the contract: BadMessage, VersionMismatch
  TransportError                    the world broke: BrokerUnreachable, Refused
  RequestError                      one request ended without a result (.request_id, .node, .attempts)
    Rejected                        said at the door, nothing ran: InvalidRequest, NoSuchModel, PromptTooLong,
                                    Forbidden, Overloaded*, NotReady*
    DeadlineExceeded  Cancelled
    Failed                          said after dispatch: NodeLost*, EngineFailed*
                                    (* = retryable: the client library has already retried it)

`code` is what travels on the wire; `error_for` turns it back into the class, so `except Overloaded` works across hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class MeshError(Exception):
    """Base of every error raised by phi3-mesh."""


class ConfigError(MeshError):
    """An option is wrong. The message names it and says what it may be."""


class ProtocolError(MeshError):
    """A peer sent something the protocol does not allow. Report it: one of the two sides has a bug."""

    code: ClassVar[str] = "protocol"


class BadMessage(ProtocolError):
    """A frame could not be decoded. `field` names the part that was wrong."""

    code: ClassVar[str] = "bad_message"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class VersionMismatch(ProtocolError):
    """The peer speaks another version of the protocol. Upgrade the older side."""

    code: ClassVar[str] = "version_mismatch"


class TransportError(MeshError):
    """No usable connection."""


class BrokerUnreachable(TransportError):
    """No broker or node answered in time. The message says what was tried; `phi3-mesh doctor` tests each step."""


class Refused(TransportError):
    """The other side answered and refused this connection. The message says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RequestError(MeshError):
    """One request ended without a result. Other requests are not affected."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        request_id: int = 0,
        node: str = "",
        retry_after_s: float = 0.0,
        attempts: tuple[str, ...] = (),
    ) -> None:
        told = "".join(f"\n  {what}" for what in attempts)  # each says which attempt it was
        super().__init__(message + told)
        self.message = message
        self.request_id = request_id
        self.node = node
        self.retry_after_s = retry_after_s
        self.attempts = attempts


class Rejected(RequestError):
    """Said at the door: nothing ran."""

    code = "rejected"


class InvalidRequest(Rejected):
    """A parameter is unknown or out of range. The message names it and says what it may be."""

    code = "invalid_request"


class NoSuchModel(Rejected):
    """No node serves the model that was asked for. The message lists those that are served."""

    code = "no_such_model"


class PromptTooLong(Rejected):
    """Prompt plus `max_tokens` does not fit the model's context or the node's cache. Shorten one of them."""

    code = "prompt_too_long"


class Overloaded(Rejected):
    """The queue is full. Try again after `retry_after_s`."""

    code = "overloaded"
    retryable = True


class NotReady(Rejected):
    """Nothing can run the request just now (no node, still loading, draining). Try again shortly."""

    code = "not_ready"
    retryable = True


class Forbidden(Rejected):
    """This key may not do that. Use a member key."""

    code = "forbidden"


class DeadlineExceeded(RequestError):
    """The request's own `timeout_s` passed. Give it more time, or ask for fewer tokens."""

    code = "deadline_exceeded"


class Cancelled(RequestError):
    """The caller cancelled it."""

    code = "cancelled"


class Failed(RequestError):
    """Said after dispatch."""

    code = "failed"


class NodeLost(Failed):
    """The node died, hung or left while it ran this request."""

    code = "node_lost"
    retryable = True


class EngineFailed(Failed):
    """The engine on the node reported an error while it ran this request."""

    code = "engine_failed"
    retryable = True


def _subclasses(cls: type[RequestError]) -> Iterator[type[RequestError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _subclasses(sub)


ERRORS_BY_CODE: dict[str, type[RequestError]] = {cls.code: cls for cls in _subclasses(RequestError)}


def error_for(code: str, *, default: type[RequestError] = Failed) -> type[RequestError]:
    """The class for a code from the wire; `default` for a code that a newer peer invented."""
    return ERRORS_BY_CODE.get(code, default)
