"""Weights made smaller while loading: what is missing is named, and what is there works."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from node.engine import quantization  # noqa: E402
from node.engine.base import EngineOptions  # noqa: E402
from node.engine.transformers_engine import TransformersEngine  # noqa: E402
from tests.engine.driver import running  # noqa: E402
from tests.engine.tiny_models import mixed_requests, save_phi3  # noqa: E402

pytestmark = pytest.mark.model


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"--quantize torchao-int8 needs .* `pip install torchao`"):
        quantization.config_for("torchao-int8", torch.bfloat16, "cuda")
    with pytest.raises(ValueError, match=r"--quantize gguf needs .* `pip install 'kernels>="):
        quantization.config_for("gguf", torch.bfloat16, "cuda")


def test_what_cannot_be_is_said_by_option() -> None:
    with pytest.raises(ValueError, match=r"--quantize: 'int3' is none of none, bnb-8bit"):
        quantization.config_for("int3", torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"torchao-int4 runs on a GPU only: on a CPU use"):
        quantization.config_for("torchao-int4", torch.float32, "cpu")
    assert quantization.config_for("none", torch.float32, "cpu") is None


def test_names_need_no_torch() -> None:
    """The agent lists them in --help."""
    import subprocess
    import sys

    script = "import sys, node.engine.quantization; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2]).returncode == 0


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("bnb-8bit", "int8 (bitsandbytes)"),
        ("bnb-4bit", "nf4 (bitsandbytes)"),
        ("torchao-int8", "int8 (torchao)"),
        ("torchao-fp8", "float8 (torchao)"),
    ],
)
@pytest.mark.filterwarnings("default")  # of the libraries
def test_a_quantised_model_answers_and_says_what_it_is(method: str, shown: str, tmp_path: Path) -> None:
    package = quantization._METHODS[method].package
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    options = EngineOptions(model=save_phi3(tmp_path / "phi3"), device="cpu", slots=4, quantize=method)
    with running(TransformersEngine(options, tmp_path)) as driver:
        assert driver.info.dtype == shown
        first = driver.run(*mixed_requests(8))
        assert {answer.finish_reason for answer in first} == {"length"}
        if method != "bnb-8bit":  # there the columns that stay in 16 bits are chosen by the whole batch
            again = driver.run(*mixed_requests(8))
            assert [answer.tokens for answer in again] == [answer.tokens for answer in first]
        linear = driver.engine._manager.model.model.layers[0].mlp.down_proj  # type: ignore[attr-defined]
        assert type(linear.weight).__name__ in {"Int8Params", "Params4bit", "Int8Tensor", "Float8Tensor"}
