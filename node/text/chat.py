"""Chat templates: a model's own Jinja source, rendered in a sandbox with the globals that model authors rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(ValueError):
    """These messages cannot be rendered with this model's template; the text is meant for the caller."""


class ChatTemplate:
    """Renders messages to the prompt a model was trained on.

    `special_tokens` are the names templates use for them: `bos_token`, `eos_token`, …
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        # Templates come with model weights from strangers: sandboxed, and values are immutable for them.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the model's chat template is not valid Jinja: {error}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt up to and including the opening of the assistant's answer."""
        try:
            return self._template.render(
                self._special_tokens,
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        # A template may fail on strange messages in any way that Python can: none of them is ours to crash on.
        except Exception as error:
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it only shows them."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as an instance attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which is wrong in a prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
