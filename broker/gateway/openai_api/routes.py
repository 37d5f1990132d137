"""The paths under /v1 that OpenAI's clients use."""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from broker.gateway.fields import request_body
from broker.gateway.gateway import Gateway
from broker.gateway.generation import Generation
from broker.gateway.openai_api import shapes
from broker.gateway.openai_api.frames import OpenAIFrames
from broker.gateway.openai_api.params import ChatBody, CompletionBody
from broker.gateway.problems import Problem
from broker.gateway.sse import EventStream
from broker.gateway.wire import json_response, read_object

router = APIRouter(prefix="/v1", tags=["OpenAI"])

_CHAT_EXAMPLE = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
_TEXT_EXAMPLE = {"model": "demo", "prompt": "The capital of France is", "max_tokens": 8}


@router.get("/models")
async def models(request: Request) -> Response:
    """What is served."""
    gateway = _gateway(request)
    gateway.share_of(request)
    created = int(time.time())
    report = await gateway.watch.require_report()
    data = [shapes.model_object(model, created) for model in report.models]
    return json_response({"object": "list", "data": data})


@router.get("/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    gateway = _gateway(request)
    gateway.share_of(request)
    await gateway.watch.require_report()
    served = gateway.watch.model(name)
    if served is None:
        raise Problem(404, f"model: {name!r} is not served", param="model", code="model_not_found")
    return json_response(shapes.model_object(served, int(time.time())))


@router.post("/chat/completions", openapi_extra=request_body(ChatBody, _CHAT_EXAMPLE))
async def chat_completions(request: Request) -> Response:
    gateway = _gateway(request)
    share = gateway.share_of(request)
    body = ChatBody.of(await read_object(request, gateway.config.max_request_bytes))
    generation = Generation(gateway, request, share, body.values())
    head = _head("chatcmpl")
    if body.stream:
        name = gateway.model_name(body.model)
        frames = OpenAIFrames(head, name, include_usage=body.include_usage, num_top=body.num_top)
        return EventStream(generation, frames)
    completion = await generation.complete()
    told = shapes.chat_completion(completion, head, body.num_top)
    return json_response(told, headers={"x-mesh-node": completion.node})


@router.post("/completions", openapi_extra=request_body(CompletionBody, _TEXT_EXAMPLE))
async def completions(request: Request) -> Response:
    gateway = _gateway(request)
    share = gateway.share_of(request)
    body = CompletionBody.of(await read_object(request, gateway.config.max_request_bytes))
    prompts = body.prompts()
    head = _head("cmpl")
    if body.stream:
        generation = Generation(gateway, request, share, {**body.values(), "prompt": prompts[0]})
        name = gateway.model_name(body.model)
        frames = OpenAIFrames(head, name, include_usage=body.include_usage, num_top=body.num_top, is_chat=False)
        return EventStream(generation, frames)
    generation = Generation(gateway, request, share, body.values())
    answers = await generation.complete_all([{"prompt": prompt} for prompt in prompts])
    return json_response(shapes.text_completion(answers, head, body.num_top))


@router.post("/embeddings")
async def embeddings(request: Request) -> Response:
    """Said clearly, so that nobody searches for a mistake of theirs."""
    _gateway(request).share_of(request)
    raise Problem(404, "embeddings are not served: the models of this mesh generate text", code="not_served")


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _head(prefix: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{secrets.token_hex(12)}", "created": int(time.time())}
