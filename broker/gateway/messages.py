"""Chat messages of OpenAI and Anthropic → those of the mesh: roles and plain text, nothing that would be lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import WithJsonSchema

from broker.gateway.problems import invalid

_ROLES = {"developer": "system"}  # OpenAI's newer word for it
_IGNORED = ("name", "cache_control", "citations")  # change no text: a label, and hints to caches
_JOINED_BY = "\n"

_PARTS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    },
}


def described(roles: Collection[str]) -> WithJsonSchema:
    """For the OpenAPI description, as messages are checked by hand."""
    content = {"anyOf": [{"type": "string"}, _PARTS]}
    properties = {"role": {"enum": list(roles)}, "content": content}
    message = {"type": "object", "required": ["role", "content"], "properties": properties}
    return WithJsonSchema({"type": "array", "minItems": 1, "items": message})


def mesh_messages(messages: Any, roles: Collection[str], where: str = "messages") -> list[dict[str, str]]:
    """Raises Problem 400 naming the message."""
    if not isinstance(messages, list) or not messages:
        raise invalid(where, "must be a list of at least one message")
    return [_message(message, roles, f"{where}[{number}]") for number, message in enumerate(messages)]


def text_of(content: Any, where: str) -> str:
    """A text, or a list of parts that are all text. Raises Problem 400."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, f"must be text or a list of text parts, not {_kind(content)}")
    return _JOINED_BY.join(_part(part, f"{where}[{number}]") for number, part in enumerate(content))


def _message(message: Any, roles: Collection[str], where: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise invalid(where, f"must be an object with role and content, not {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or role not in roles:
        raise invalid(f"{where}.role", f"must be one of {', '.join(roles)}")
    for name, value in message.items():
        if name not in ("role", "content", *_IGNORED) and value not in (None, [], {}):
            raise invalid(f"{where}.{name}", "is not supported here: messages have a role and text")
    if message.get("content") is None:
        raise invalid(f"{where}.content", "is missing")
    return {"role": _ROLES.get(role, role), "content": text_of(message["content"], f"{where}.content")}


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise invalid(where, f"must be an object with type and text, not {_kind(part)}")
    kind = part.get("type")
    if kind != "text":
        raise invalid(where, f"only parts of type 'text' are supported, not {str(kind)[:64]!r}")
    for name, value in part.items():
        if name not in ("type", "text", *_IGNORED) and value is not None:
            raise invalid(f"{where}.{name[:64]}", "is not supported here")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text", "must be text")
    return text


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
