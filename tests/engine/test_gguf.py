"""A model in one GGUF file, made here: it loads, answers, and leaves the agent the files that it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

from node.engine.base import EngineOptions, EngineRequest  # noqa: E402
from node.engine.model_files import ModelUnavailable, resolve_model  # noqa: E402
from node.engine.transformers_engine import TransformersEngine  # noqa: E402
from node.text.tokenizer import load_tokenizer  # noqa: E402
from tests.engine.driver import running  # noqa: E402

pytestmark = pytest.mark.model

BYTES = [chr(33 + i) for i in range(94)]  # of GPT-2's alphabet, where a printable character stands for itself
TOKENS = ["<s>", "</s>", *BYTES, "ab", "cd"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of one layer with random weights, half of them in 8-bit blocks."""
    import numpy

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    random = numpy.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    shapes = {
        "token_embd": (len(TOKENS), 64),
        "output_norm": (64,),
        "blk.0.attn_norm": (64,),
        "blk.0.ffn_norm": (64,),
        "blk.0.attn_q": (64, 64),
        "blk.0.attn_k": (32, 64),
        "blk.0.attn_v": (32, 64),
        "blk.0.attn_output": (64, 64),
        "blk.0.ffn_gate": (128, 64),
        "blk.0.ffn_up": (128, 64),
        "blk.0.ffn_down": (64, 128),
    }
    for name, shape in shapes.items():
        weight = random.normal(0, 0.3, shape).astype(numpy.float32)
        if name.startswith("blk.0.ffn") and len(shape) == 2:
            packed = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_answers_and_leaves_a_tokenizer_for_the_agent(file: Path, tmp_path: Path) -> None:
    options = EngineOptions(model=str(file), device="cpu", slots=2)
    lines: list[str] = []
    with running(TransformersEngine(options, tmp_path, lines.append)) as driver:
        assert driver.info.dtype == "float32 (unpacked gguf)"
        assert driver.info.max_model_len == 256
        codec = load_tokenizer(Path(driver.info.folder))
        assert codec.eos_token_ids == (1,)
        prompt = codec.encode_chat([{"role": "user", "content": "Hello"}])
        assert len(driver.ask(EngineRequest(0, prompt, 5)).tokens) == 5

    assert any("tokenizer" in line for line in lines)
    lines.clear()
    with running(TransformersEngine(options, tmp_path, lines.append)) as again:
        assert again.info.folder == driver.info.folder
    assert not any("tokenizer" in line for line in lines)  # it was there


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantize": "bnb-4bit"}, "tiny.gguf is quantised already: leave the option out"),
        ({"tensor_parallel": 2}, "GGUF files cannot be shared out: use --parallel auto"),
    ],
)
def test_what_does_not_go_with_it_is_said(file: Path, tmp_path: Path, options: dict[str, object], words: str) -> None:
    engine = TransformersEngine(EngineOptions(model=str(file), device="cpu", **options), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        engine.start(print, print)


def test_a_folder_with_one_is_taken_for_it_and_with_two_is_asked_about(file: Path, tmp_path: Path) -> None:
    assert resolve_model(str(file.parent), tmp_path) == resolve_model(str(file), tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match=r"several GGUF files: give the path of one of a.gguf, b.gguf"):
        resolve_model(str(tmp_path), tmp_path)


def test_a_file_that_is_none_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    with pytest.raises(ModelUnavailable, match=r"page.gguf is no GGUF file"):
        resolve_model(str(tmp_path / "page.gguf"), tmp_path)
    with pytest.raises(ModelUnavailable, match=r"there is no file .*none.gguf"):
        resolve_model("none.gguf", tmp_path)
