"""For whoever runs it: /metrics and /health."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from broker.gateway.gateway import Gateway
from broker.gateway.wire import json_response

router = APIRouter(tags=["operations"])


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus. Needs a key where keys are set; --metrics-port does not."""
    gateway: Gateway = request.app.state.gateway
    gateway.share_of(request)
    return exposition(gateway.metrics.registry, request)


@router.get("/health")
async def health(request: Request) -> Response:
    """Whether this process lives and whether a node is ready. Always 200: a gateway without nodes need not restart."""
    gateway: Gateway = request.app.state.gateway
    return json_response({"status": "ok", "ready": gateway.watch.is_ready})


def exposition(registry: CollectorRegistry, request: Request) -> Response:
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": content_type})
