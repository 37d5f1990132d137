"""The API of OpenAI: /v1/models, /v1/chat/completions, /v1/completions."""

from broker.gateway.openai_api.routes import router

__all__ = ["router"]
