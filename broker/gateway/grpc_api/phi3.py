"""`phi3_inference.Phi3Inference`: text in, text out."""

from __future__ import annotations

from contextlib import aclosing

from broker.gateway.grpc_api.entrance import Context, Entrance, gzipped
from broker.gateway.grpc_api.generation import Generation
from broker.gateway.grpc_api.phi3_inference_pb2 import (
    BatchTextRequest,
    BatchTextResponse,
    TextChunk,
    TextRequest,
    TextResponse,
)
from broker.gateway.grpc_api.phi3_inference_pb2_grpc import Phi3InferenceServicer
from broker.gateway.grpc_api.phi3_texts import response_of, values_of


class Phi3Inference(Phi3InferenceServicer):
    """Prompts go to the model as they are, without a chat template.

    Streams are written, not yielded: a generator that waits at its `yield` would not hear that its caller left.
    """

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance

    async def GenerateText(self, request: TextRequest, context: Context) -> TextResponse:
        async with self._entrance.entered(context, "grpc_generate") as rpc:
            generation = Generation(self._entrance.gateway, rpc, [values_of(request, rpc.model)])
            return await gzipped(response_of((await generation.complete_all())[0]), context)

    async def GenerateTextStream(self, request: TextRequest, context: Context) -> None:
        """Texts as they come, then an empty one that says it was the last."""
        async with self._entrance.entered(context, "grpc_generate_stream") as rpc:
            generation = Generation(self._entrance.gateway, rpc, [values_of(request, rpc.model)])
            async with aclosing(generation.texts()) as texts:
                async for text in texts:
                    await context.write(TextChunk(text_chunk=text))
            await context.write(TextChunk(is_finished=True))

    async def BatchGenerateText(self, request: BatchTextRequest, context: Context) -> BatchTextResponse:
        """All at once, so that the nodes batch them too."""
        async with self._entrance.entered(context, "grpc_generate_batch") as rpc:
            asked = [values_of(one, rpc.model, f"requests[{at}].") for at, one in enumerate(request.requests)]
            completions = await Generation(self._entrance.gateway, rpc, asked).complete_all()
            responses = [response_of(completion) for completion in completions]
            return await gzipped(BatchTextResponse(responses=responses), context)
