"""The API of Anthropic: /v1/messages."""

from broker.gateway.anthropic_api.routes import router

__all__ = ["router"]
