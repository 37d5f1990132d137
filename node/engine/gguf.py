"""Models in a GGUF file: one file holds the weights, the configuration and the tokenizer.

The engine reads the weights from it; the agent, which loads neither torch nor transformers, needs the rest as the usual
JSON files. They are written once, beside the other models.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from filelock import FileLock

from node.engine.model_files import ModelFiles, Report


def text_folder(files: ModelFiles, home: Path, report: Report) -> Path:
    """The folder with config.json and tokenizer.json of a GGUF model, made now if it is not there."""
    if all((files.path / name).is_file() for name in ("tokenizer.json", "config.json")):
        return files.path
    gguf = files.path / files.gguf
    facts = gguf.stat()
    key = hashlib.sha256(f"{gguf} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()
    folder = home / "models" / f"gguf-{gguf.stem}-{key[:8]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # one worker makes it, the others wait
        if not folder.is_dir():
            report(f"reading the tokenizer of {gguf.name} (once)")
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="gguf-making-") as scratch:
                _write(files, Path(scratch) / "text")
                os.replace(Path(scratch) / "text", folder)
    return folder


def _write(files: ModelFiles, folder: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    AutoConfig.from_pretrained(files.path, gguf_file=files.gguf).save_pretrained(folder)
    AutoTokenizer.from_pretrained(files.path, gguf_file=files.gguf).save_pretrained(folder)
