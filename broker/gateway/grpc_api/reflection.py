"""Server reflection, under both names it has: `grpc.reflection.v1` and the older `v1alpha`.

The messages of the two are the same on the wire. grpcio-reflection has the older one only, and newer tools ask for the
newer one, some of them without falling back.
"""

from __future__ import annotations

from collections.abc import Collection

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

V1 = "grpc.reflection.v1.ServerReflection"


def add_reflection(services: Collection[str], server: grpc.aio.Server) -> None:
    """`services` are the full names of what can be looked at."""
    names = (*services, reflection.SERVICE_NAME)  # not V1, whose own description nobody here has
    reflection.enable_server_reflection(names, server)
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=ServerReflectionRequest.FromString,
        response_serializer=ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": handler}),))
