"""The page's paths: `/`, its files, and its stream."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from broker.gateway.gateway import Gateway
from broker.gateway.page.assets import INDEX, SECURITY_HEADERS, assets
from broker.gateway.page.stream import FeedStream
from broker.gateway.problems import Problem

_FEED_HEADERS = {**SECURITY_HEADERS, "cache-control": "no-store", "x-accel-buffering": "no"}

router = APIRouter(include_in_schema=False)  # for browsers, not for programs


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """Without a key: the page asks for it, and holds nothing itself."""
    return _file(request, INDEX)


@router.get("/page/feed")
async def feed(request: Request) -> Response:
    """Server-sent events: `past` and `events` once, then `mesh` for every report, `events` when there are new ones."""
    gateway: Gateway = request.app.state.gateway
    gateway.share_of(request)
    return FeedStream(gateway.feed, lambda: gateway.share_of(request), _FEED_HEADERS)


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def file(request: Request, name: str) -> Response:
    return _file(request, name)


def _file(request: Request, name: str) -> Response:
    asset = assets().get(name)
    if asset is None:
        raise Problem(404, f"there is no {request.url.path} here")
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers={**SECURITY_HEADERS, "etag": asset.etag})
    return Response(asset.body, headers=asset.headers)
