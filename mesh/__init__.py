"""phi3-mesh: a team's GPU hosts as one LLM service.

from mesh import Client

with Client() as client:
    print(client.generate("The capital of France is"))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mesh.version import __version__

if TYPE_CHECKING:
    from mesh.client.aio import AsyncClient
    from mesh.client.blocking import BlockingStream, Client
    from mesh.client.iterators import Results, Stream
    from mesh.client.results import Choice, Chunk, Completion, Usage
    from mesh.errors import (
        BadMessage,
        BrokerUnreachable,
        Cancelled,
        ConfigError,
        DeadlineExceeded,
        EngineFailed,
        Failed,
        Forbidden,
        InvalidRequest,
        MeshError,
        NodeLost,
        NoSuchModel,
        NotReady,
        Overloaded,
        PromptTooLong,
        ProtocolError,
        Refused,
        Rejected,
        RequestError,
        TransportError,
        VersionMismatch,
    )
    from mesh.report import ModelReport, NodeReport, StatusReport
    from mesh.request import ChatMessage

# Each name is imported when it is first used: a command's --help, or a process that wants one module of this package,
# does not pay for the client (0.2 s, most of it pydantic).
_NAMES = {
    "mesh.client.aio": ("AsyncClient",),
    "mesh.client.blocking": (
        "BlockingStream",
        "Client",
    ),
    "mesh.client.iterators": (
        "Results",
        "Stream",
    ),
    "mesh.client.results": (
        "Choice",
        "Chunk",
        "Completion",
        "Usage",
    ),
    "mesh.errors": (
        "BadMessage",
        "BrokerUnreachable",
        "Cancelled",
        "ConfigError",
        "DeadlineExceeded",
        "EngineFailed",
        "Failed",
        "Forbidden",
        "InvalidRequest",
        "MeshError",
        "NodeLost",
        "NoSuchModel",
        "NotReady",
        "Overloaded",
        "PromptTooLong",
        "ProtocolError",
        "Refused",
        "Rejected",
        "RequestError",
        "TransportError",
        "VersionMismatch",
    ),
    "mesh.report": (
        "ModelReport",
        "NodeReport",
        "StatusReport",
    ),
    "mesh.request": ("ChatMessage",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AsyncClient",
    "BadMessage",
    "BlockingStream",
    "BrokerUnreachable",
    "Cancelled",
    "ChatMessage",
    "Choice",
    "Chunk",
    "Client",
    "Completion",
    "ConfigError",
    "DeadlineExceeded",
    "EngineFailed",
    "Failed",
    "Forbidden",
    "InvalidRequest",
    "MeshError",
    "ModelReport",
    "NoSuchModel",
    "NodeLost",
    "NodeReport",
    "NotReady",
    "Overloaded",
    "PromptTooLong",
    "ProtocolError",
    "Refused",
    "Rejected",
    "RequestError",
    "Results",
    "StatusReport",
    "Stream",
    "TransportError",
    "Usage",
    "VersionMismatch",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
