"""Turns the name of a model into a folder of files: the demo model, a folder, a GGUF file, or a name on the Hugging
Face hub.

Imports neither torch nor transformers, so that the agent may use it too; only the demo model's conversion, once, does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Report = Callable[[str], None]

# Weights only as safetensors: the older formats are pickles, which run code when they are opened.
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt")
_REMOTE_CODE = ("*.py",)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder that holds config, safetensors and tokenizer, and which version of the model it is ("" = unknown).
    With `gguf`, the name of a file in the folder, that file holds everything."""

    path: Path
    revision: str
    gguf: str = ""


class ModelUnavailable(Exception):
    """The model cannot be had. The message says what was tried and what the operator can do."""


def resolve_model(
    name: str, home: Path, report: Report = lambda line: None, trust_remote_code: bool = False
) -> ModelFiles:
    """The files of `name`: "demo", a folder, a .gguf file, or a hub name with an optional "@revision". Fetches what is
    missing, which can take minutes; `report` gets a line for each long step. Raises `ModelUnavailable`."""
    if name == "demo":
        from node.engine.demo_model import demo_files

        return demo_files(home, report)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _local_files(folder, report)
    if folder.suffix == ".gguf" and folder.is_file():
        return _gguf_file(folder, report)
    if folder.suffix == ".gguf" or name.startswith((".", "/", "~")):
        what = "file" if folder.suffix == ".gguf" else "folder"
        raise ModelUnavailable(f"there is no {what} {folder}: check the path, or give a hub name such as owner/model")
    return _hub_files(name, report, trust_remote_code)


def _local_files(folder: Path, report: Report) -> ModelFiles:
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs and not any(folder.glob("*.safetensors")):
        if len(ggufs) > 1:
            names = ", ".join(path.name for path in ggufs)
            raise ModelUnavailable(f"{folder} holds several GGUF files: give the path of one of {names}")
        return _gguf_file(ggufs[0], report)
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"{folder} holds no config.json: it is not the folder of a model")
    if not any(folder.glob("*.safetensors")):
        raise ModelUnavailable(
            f"{folder} holds no *.safetensors file. Other weight formats are not loaded, because opening them can run "
            f"code: convert the model with save_pretrained(), or download its safetensors version"
        )
    report(f"model folder {folder}")
    return ModelFiles(folder.resolve(), "")


def _gguf_file(file: Path, report: Report) -> ModelFiles:
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ModelUnavailable(f"{file} is no GGUF file, whatever its name says: download it again")
    report(f"model file {file}")
    file = file.resolve()
    return ModelFiles(file.parent, "", file.name)


def _hub_files(name: str, report: Report, trust_remote_code: bool) -> ModelFiles:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    repo, _, revision = name.partition("@")
    report(f"looking for {name} in the local hub cache, then on the hub")
    try:
        path = Path(
            snapshot_download(
                repo,
                revision=revision or None,
                allow_patterns=[*_HUB_FILES, *(_REMOTE_CODE if trust_remote_code else ())],
            )
        )
    except ValueError as error:  # huggingface_hub's way to say that the name itself is malformed
        raise ModelUnavailable(f"{name!r} is neither a folder nor a hub name (owner/model): {error}") from error
    except GatedRepoError as error:
        raise ModelUnavailable(f"{repo} needs its licence accepted on the hub, then `hf auth login` here") from error
    except RepositoryNotFoundError as error:
        raise ModelUnavailable(
            f"the hub knows no model {repo!r}, or it is private: check the spelling, or run `hf auth login`"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelUnavailable(_offline_advice(repo, error)) from error
    return ModelFiles(_checked(path, repo), path.name)


def _checked(path: Path, repo: str) -> Path:
    if not any(path.glob("*.safetensors")):
        raise ModelUnavailable(f"{repo} has no *.safetensors weights on the hub: choose a version that has them")
    return path


def _offline_advice(repo: str, error: Exception) -> str:
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    cause = (
        "HF_HUB_OFFLINE is set and the model is not in the local hub cache: unset it"
        if offline
        else f"the hub cannot be reached and the model is not in the local hub cache ({type(error).__name__})"
    )
    return (
        f"{repo} cannot be loaded. {cause[0].upper()}{cause[1:]}. Without a network, run `hf download {repo} "
        f"--local-dir FOLDER` on another machine, copy FOLDER here and give its path as the model; "
        f"or use --model demo, which comes from PyPI"
    )
