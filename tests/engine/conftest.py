"""Fixtures of the engine tests: where the demo model lives, and its tokenizer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

# As in the worker, and before torch is loaded: its threads must not spin while other tests want the processor.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def demo_folder(model_home: Path) -> Path:
    from node.engine.model_files import resolve_model

    return resolve_model("demo", model_home).path


class Chat:
    """Prompts for the demo model, made the way the agent makes them: tokenizer and template, no torch."""

    def __init__(self, folder: Path) -> None:
        from jinja2 import Environment
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._template = Environment().from_string((folder / "chat_template.jinja").read_text())
        config = json.loads((folder / "tokenizer_config.json").read_text())
        self.eos_id: int = self.tokenizer.token_to_id(config["eos_token"])

    def prompt(self, text: str) -> list[int]:
        rendered = self._template.render(messages=[{"role": "user", "content": text}], add_generation_prompt=True)
        return self.tokenizer.encode(rendered, add_special_tokens=False).ids

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)


@pytest.fixture(scope="session")
def chat(demo_folder: Path) -> Chat:
    return Chat(demo_folder)
