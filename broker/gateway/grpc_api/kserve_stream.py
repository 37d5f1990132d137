"""ModelStreamInfer: requests on one stream, answered side by side on another, each in its own order."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import grpc.aio

from broker.gateway.gateway import Gateway
from broker.gateway.grpc_api.entrance import Context, Rpc, time_left_s, told
from broker.gateway.grpc_api.generation import Generation
from broker.gateway.grpc_api.kserve_messages import asked_of, final_response, response_of, wants_final
from broker.gateway.grpc_api.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from broker.gateway.kserve_api.models import require_model
from broker.gateway.problems import invalid
from broker.gateway.tally import Tally

_MOST_AT_ONCE = 64  # of one stream; further ones are not read before
_API = "kserve_stream_infer"


class InferStream:
    """One call. An error of a request is told in the stream, which goes on; the call's end cancels what runs."""

    def __init__(self, gateway: Gateway, share: str, context: Context) -> None:
        self._gateway = gateway
        self._share = share
        self._context = context
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)
        self._writing = asyncio.Lock()  # gRPC takes one message at a time

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._places.acquire()
                request = await self._context.read()
                if request is grpc.aio.EOF:
                    return
                group.create_task(self._answer(request))

    async def _answer(self, request: ModelInferRequest) -> None:
        tally = Tally(self._gateway.metrics, _API, time.monotonic())
        rpc = Rpc(self._share, "", time_left_s(self._context), tally)
        try:
            await self._infer(request, rpc)
            tally.status = 200
        except asyncio.CancelledError:
            tally.on_left()
            raise
        except Exception as error:
            response = ModelInferResponse(id=request.id)  # says whose error it is
            await self._write(
                ModelStreamInferResponse(error_message=told(error, tally).message, infer_response=response)
            )
        finally:
            tally.end(time.monotonic())
            self._places.release()

    async def _infer(self, request: ModelInferRequest, rpc: Rpc) -> None:
        model = await require_model(self._gateway, request.model_name, request.model_version)
        asked = asked_of(request)
        if asked.parameters.stream and len(asked.texts) != 1:
            raise invalid("stream", "an answer can be streamed to one text only")
        shared = {**asked.parameters.values(), "model": model.name}
        generation = Generation(self._gateway, rpc, [{**shared, "prompt": text} for text in asked.texts])
        if asked.parameters.stream:
            async with aclosing(generation.texts()) as texts:
                async for text in texts:
                    await self._tell(response_of(asked, model.name, [text]))
        else:
            completions = await generation.complete_all()
            await self._tell(response_of(asked, model.name, [completion.text for completion in completions]))
        if wants_final(request):
            await self._tell(final_response(asked.id, model.name))

    async def _tell(self, response: ModelInferResponse) -> None:
        await self._write(ModelStreamInferResponse(infer_response=response))

    async def _write(self, message: ModelStreamInferResponse) -> None:
        async with self._writing:
            await self._context.write(message)
