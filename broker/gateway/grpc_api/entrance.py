"""What every call passes first: who makes it, how long it may take, the books; and how its errors are told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from starlette.requests import Request

from broker.gateway.gateway import Gateway
from broker.gateway.grpc_api.codes import code_of, details_of, trailers_of
from broker.gateway.problems import Problem
from broker.gateway.tally import Tally
from mesh.errors import MeshError

logger = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)
_WORTH_GZIP_BYTES = 1024
_DEADLINE_PASSED = 408
_SHORTEST_S = 0.001
_LONGEST_S = 1e9  # what the mesh takes; a deadline beyond it is none


@dataclass(frozen=True, slots=True)
class Rpc:
    """One call by a known caller."""

    share: str
    model: str  # by metadata; empty: the one that is served
    timeout_s: float | None
    tally: Tally


class Entrance:
    """Lets calls in, one context each. Whatever is raised within becomes a gRPC status."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    @asynccontextmanager
    async def entered(self, context: Context, api: str) -> AsyncIterator[Rpc]:
        """`api` is the label in the metrics."""
        tally = Tally(self.gateway.metrics, api, time.monotonic())
        problem = None
        try:
            yield self._rpc(context, tally)
            tally.status = tally.status or 200
        except asyncio.CancelledError:
            remaining = context.time_remaining()
            if remaining is not None and remaining <= 0:
                tally.status = _DEADLINE_PASSED
            else:
                tally.on_left()
            raise
        except Exception as error:
            problem = told(error, tally)
        finally:
            tally.end(time.monotonic())
        if problem is not None:
            await context.abort(code_of(problem), details_of(problem), trailers_of(problem))

    def _rpc(self, context: Context, tally: Tally) -> Rpc:
        """Raises Problem 401."""
        metadata = [(name, value) for name, value in context.invocation_metadata() or () if isinstance(value, str)]
        headers = [(name.encode(), value.encode("utf-8", "replace")) for name, value in metadata]
        share = self.gateway.share_of(Request({"type": "http", "headers": headers}))
        return Rpc(share, dict(metadata).get("model", ""), time_left_s(context), tally)


def time_left_s(context: Context) -> float | None:
    """Until the caller's deadline, if there is one."""
    remaining = context.time_remaining()
    return None if remaining is None or remaining > _LONGEST_S else max(remaining, _SHORTEST_S)


async def gzipped(message: M, context: Context) -> M:
    """The one answer of a call, for callers that take gzip. Tokens of a stream are too small to gain by it."""
    if message.ByteSize() > _WORTH_GZIP_BYTES:
        context.set_compression(grpc.Compression.Gzip)
        await context.send_initial_metadata(())  # what grpc.aio sends by itself with the answer forgets to say it
    return message


def told(error: Exception, tally: Tally) -> Problem:
    """What to tell of an error; of a bug, only that it is one."""
    if isinstance(error, MeshError):
        return tally.on_error(error)
    if not isinstance(error, Problem):
        logger.error("grpc_call_failed api=%s", tally.api, exc_info=error)
        error = Problem(500, "the gateway has a bug; its log says more", code="internal")
    tally.status = error.status
    return error
