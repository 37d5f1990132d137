"""Triton's `inference.GRPCInferenceService`: what /v2 says over HTTP, in its messages."""

from __future__ import annotations

from google.protobuf.json_format import ParseDict

from broker.gateway.grpc_api import kserve_v2_pb2 as pb
from broker.gateway.grpc_api.entrance import Context, Entrance, gzipped
from broker.gateway.grpc_api.generation import Generation
from broker.gateway.grpc_api.kserve_messages import asked_of, response_of
from broker.gateway.grpc_api.kserve_stream import InferStream
from broker.gateway.grpc_api.kserve_v2_pb2_grpc import GRPCInferenceServiceServicer
from broker.gateway.kserve_api import describe
from broker.gateway.kserve_api.models import require_model
from broker.gateway.problems import Problem, invalid

_API = "other"


class GRPCInferenceService(GRPCInferenceServiceServicer):
    """Only the two questions about the server itself need no key."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self._gateway = entrance.gateway

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        if not self._gateway.watch.is_ready:
            await self._gateway.watch.refresh()
        return pb.ServerReadyResponse(ready=self._gateway.watch.is_ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """A model that is not there is not ready: no error."""
        async with self._entrance.entered(context, _API):
            try:
                await require_model(self._gateway, request.name, request.version)
            except Problem:
                return pb.ModelReadyResponse(ready=False)
            return pb.ModelReadyResponse(ready=True)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        async with self._entrance.entered(context, _API):
            return ParseDict(describe.server_metadata(), pb.ServerMetadataResponse())

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        async with self._entrance.entered(context, _API):
            model = await require_model(self._gateway, request.name, request.version)
            return ParseDict(describe.model_metadata(model), pb.ModelMetadataResponse())

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        async with self._entrance.entered(context, _API):
            model = await require_model(self._gateway, request.name, request.version)
            return ParseDict({"config": describe.model_config(model)}, pb.ModelConfigResponse())

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Context) -> pb.RepositoryIndexResponse:
        async with self._entrance.entered(context, _API):
            models = [describe.index_entry(model) for model in self._gateway.watch.models]
            return ParseDict({"models": models}, pb.RepositoryIndexResponse())

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        """A text for each text, as one batch."""
        async with self._entrance.entered(context, "kserve_infer") as rpc:
            model = await require_model(self._gateway, request.model_name, request.model_version)
            asked = asked_of(request)
            if asked.parameters.stream:
                raise invalid("stream", "ModelInfer has one answer; use ModelStreamInfer")
            shared = {**asked.parameters.values(), "model": model.name}
            generation = Generation(self._gateway, rpc, [{**shared, "prompt": text} for text in asked.texts])
            completions = await generation.complete_all()
            texts = [completion.text for completion in completions]
            return await gzipped(response_of(asked, model.name, texts), context)

    async def ModelStreamInfer(self, _: object, context: Context) -> None:
        async with self._entrance.entered(context, _API) as rpc:
            await InferStream(self._gateway, rpc.share, context).run()
