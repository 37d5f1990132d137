"""The API of KServe v2 with Triton's extensions: health, metadata, infer, generate, generate_stream."""

from broker.gateway.kserve_api.routes import router

__all__ = ["router"]
