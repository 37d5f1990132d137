"""phi3-mesh: a team's GPU hosts as one LLM service.

from mesh import Client

with Client() as client:
    print(client.generate("The capital of France is"))
"""

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
from mesh.version import __version__

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
