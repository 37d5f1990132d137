"""The paths under /v2.

A model's name may have slashes, so paths with a version have to be tried before those whose name would swallow it:
decorators apply from the bottom up.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from broker.gateway.gateway import Gateway
from broker.gateway.generation import Generation
from broker.gateway.kserve_api import describe
from broker.gateway.kserve_api.generate import TritonFrames, generate_answer, generate_request
from broker.gateway.kserve_api.infer import infer_answer, infer_request
from broker.gateway.kserve_api.models import require_model
from broker.gateway.problems import Problem
from broker.gateway.sse import EventStream
from broker.gateway.wire import json_response, read_body, read_object
from mesh.report import ModelReport

router = APIRouter(prefix="/v2", tags=["KServe v2"])

_GENERATE = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["text_input"],
                    "properties": {"text_input": {"type": "string"}, "parameters": {"type": "object"}},
                },
                "example": {"text_input": "The capital of France is", "parameters": {"max_tokens": 8}},
            }
        },
    }
}
_INFER = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {"inputs": {"type": "array"}, "parameters": {"type": "object"}},
                },
                "example": {
                    "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Hello"]}],
                    "parameters": {"max_tokens": 8},
                },
            }
        },
    }
}


@router.get("/health/live")
async def live() -> Response:
    return Response()


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """200 while a node is ready. Needs no key: probes have none."""
    gateway: Gateway = request.app.state.gateway
    await gateway.watch.require_ready()
    return Response()


@router.get("")
async def server(request: Request) -> Response:
    _share(request)
    return json_response(describe.server_metadata())


@router.post("/repository/index")
async def index(request: Request) -> Response:
    """All models; Triton's filter (`ready`) changes nothing, since those that are not ready are not known."""
    _share(request)
    gateway: Gateway = request.app.state.gateway
    return json_response([describe.index_entry(model) for model in gateway.watch.models])


@router.get("/models/{name:path}/ready")
@router.get("/models/{name:path}/versions/{version}/ready")
async def model_ready(request: Request, name: str, version: str = describe.VERSION) -> Response:
    await _model(request, name, version)
    return Response()


@router.get("/models/{name:path}/config")
@router.get("/models/{name:path}/versions/{version}/config")
async def config(request: Request, name: str, version: str = describe.VERSION) -> Response:
    return json_response(describe.model_config(await _model(request, name, version)))


@router.post("/models/{name:path}/infer", openapi_extra=_INFER)
@router.post("/models/{name:path}/versions/{version}/infer", openapi_extra=_INFER)
async def infer(request: Request, name: str, version: str = describe.VERSION) -> Response:
    """A text for each text, as one batch."""
    gateway: Gateway = request.app.state.gateway
    model = await _model(request, name, version)
    body = await read_body(request, gateway.config.max_request_bytes)
    asked = infer_request(body, request.headers.get("inference-header-content-length"))
    if asked.parameters.stream:
        raise Problem(400, "stream: infer has one answer; use generate_stream", param="stream", code="invalid_value")
    values = {**asked.parameters.values(), "model": model.name}
    generation = Generation(gateway, request, _share(request), values)
    completions = await generation.complete_all([{"prompt": text} for text in asked.texts])
    content, json_length = infer_answer(asked, model.name, [completion.text for completion in completions])
    if json_length is None:
        return Response(content, media_type="application/json")
    headers = {"inference-header-content-length": str(json_length)}
    return Response(content, headers=headers, media_type="application/octet-stream")


@router.post("/models/{name:path}/generate", openapi_extra=_GENERATE)
@router.post("/models/{name:path}/versions/{version}/generate", openapi_extra=_GENERATE)
async def generate(request: Request, name: str, version: str = describe.VERSION) -> Response:
    """One answer, whole."""
    generation, _ = await _generation(request, name, version)
    return json_response(generate_answer(await generation.complete()))


@router.post("/models/{name:path}/generate_stream", openapi_extra=_GENERATE)
@router.post("/models/{name:path}/versions/{version}/generate_stream", openapi_extra=_GENERATE)
async def generate_stream(request: Request, name: str, version: str = describe.VERSION) -> Response:
    """The same as it comes."""
    generation, model = await _generation(request, name, version)
    return EventStream(generation, TritonFrames(model.name))


@router.get("/models/{name:path}")
@router.get("/models/{name:path}/versions/{version}")
async def metadata(request: Request, name: str, version: str = describe.VERSION) -> Response:
    return json_response(describe.model_metadata(await _model(request, name, version)))


async def _generation(request: Request, name: str, version: str) -> tuple[Generation, ModelReport]:
    gateway: Gateway = request.app.state.gateway
    model = await _model(request, name, version)
    text, parameters = generate_request(await read_object(request, gateway.config.max_request_bytes))
    values = {**parameters.values(), "model": model.name, "prompt": text}
    return Generation(gateway, request, _share(request), values), model


def _share(request: Request) -> str:
    gateway: Gateway = request.app.state.gateway
    return gateway.share_of(request)


async def _model(request: Request, name: str, version: str) -> ModelReport:
    """Who asks is checked first. Raises Problem 401, 404, or 503 when nothing is ready."""
    _share(request)
    return await require_model(request.app.state.gateway, name, version)
