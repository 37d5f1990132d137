"""The paths that Anthropic's clients use."""

from __future__ import annotations

import secrets

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from broker.gateway.anthropic_api.frames import AnthropicFrames, message_object
from broker.gateway.anthropic_api.params import MessagesBody
from broker.gateway.fields import request_body
from broker.gateway.gateway import Gateway
from broker.gateway.generation import Generation
from broker.gateway.problems import Problem
from broker.gateway.sse import EventStream
from broker.gateway.wire import json_response, read_object

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"])

_EXAMPLE = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}


@router.post("", openapi_extra=request_body(MessagesBody, _EXAMPLE))
async def messages(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    share = gateway.share_of(request)
    body = MessagesBody.of(await read_object(request, gateway.config.max_request_bytes))
    generation = Generation(gateway, request, share, body.values())
    message_id = f"msg_{secrets.token_hex(12)}"
    if body.stream:
        return EventStream(generation, AnthropicFrames(message_id, gateway.model_name(body.model)))
    completion = await generation.complete()
    return json_response(message_object(completion, message_id), headers={"x-mesh-node": completion.node})


@router.post("/count_tokens")
async def count_tokens(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    gateway.share_of(request)
    raise Problem(404, "count_tokens is not served: tokens are counted on the nodes, while they generate")
