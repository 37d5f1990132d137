"""What `--engine vllm` says to an operator who asks for what it cannot do, or where there is no vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from node.engine.base import EngineOptions
from node.engine.model_files import ModelFiles
from node.engine.vllm_engine import VllmEngine
from node.engine.vllm_loading import UnsupportedOption, VllmLoader
from tests.engine.needs import HAS_VLLM

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("options", "gguf", "named"),
    [
        ({"quantize": "bnb-4bit"}, "", "--quantize bnb-4bit"),
        ({"parallel": "auto"}, "", "--parallel auto"),
        ({}, "tiny.gguf", "tiny.gguf"),
    ],
)
def test_what_vllm_cannot_do_is_named(options: dict[str, Any], gguf: str, named: str) -> None:
    with pytest.raises(UnsupportedOption, match=named):
        VllmLoader(EngineOptions("vllm", device="cpu", **options), ModelFiles(Path(), "", gguf), print)


@pytest.mark.skipif(HAS_VLLM, reason="tests what is said where vLLM is missing")
def test_without_vllm_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOption, match=r"pip install 'phi3-mesh\[vllm\]'"):
        VllmEngine(EngineOptions("vllm", model="demo"), tmp_path).start(lambda outputs: None, lambda reason: None)
