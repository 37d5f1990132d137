"""Which devices this host has, and how the workers share them out. Found without torch: the agent never imports it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from mesh.errors import ConfigError

_GPU_LINE = re.compile(r"GPU (?P<index>\d+): .*\(UUID: (?P<uuid>GPU-[0-9a-f-]+)\)")
_CUDA = re.compile(r"cuda(:(?P<index>\d+))?")


@dataclass(frozen=True, slots=True)
class WorkerDevices:
    """What one engine worker computes on.

    `device` is its name or names, as the operator counts: "auto", "cpu", "cuda:1" or "cuda:2,cuda:3". `visible` is what
    CUDA_VISIBLE_DEVICES has to be for it, "" for anything: GPUs by their serial number where that is known. CUDA counts
    only the GPUs that work, so with numbers a worker whose GPU was lost would come back on its neighbour's.
    """

    device: str
    visible: str = ""


def share_out(
    wanted: str, gpus: Sequence[str], *, tensor_parallel: int = 1, parallel: str = "data"
) -> list[WorkerDevices]:
    """One entry for each worker. Pure: `gpus` is what `find_gpus` says.

    `wanted` is "auto" (every GPU, or the CPU), or devices separated by commas. Each device has a worker; with
    `tensor_parallel` so many share one, with `parallel` "auto" all of them do. Raises ConfigError.
    """
    names = _names(wanted, gpus, is_shared=tensor_parallel > 1 or parallel == "auto")
    if tensor_parallel > 1:
        return _in_groups(names, tensor_parallel, gpus)
    if parallel == "auto" and len(names) > 1:
        return [_group(names, gpus)]
    return [_group([name], gpus) for name in names]


def find_gpus() -> list[str]:
    """The NVIDIA GPUs that a child process would see, each by what CUDA_VISIBLE_DEVICES may call it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [entry.strip() for entry in visible.split(",") if entry.strip() not in ("", "-1")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line for line in listing.splitlines() if line.startswith("GPU ")]  # parts of a GPU are indented
    return [found["uuid"] if (found := _GPU_LINE.match(line)) else str(i) for i, line in enumerate(lines)]


def _names(wanted: str, gpus: Sequence[str], is_shared: bool) -> list[str]:
    every_gpu = [f"cuda:{index}" for index in range(len(gpus))]
    if wanted == "auto" or (wanted == "cuda" and is_shared):
        # One worker for one GPU finds it by itself, or finds that this torch cannot use it and takes the CPU.
        return every_gpu if len(gpus) > 1 or (is_shared and gpus) else [wanted]
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in names:
        form = _CUDA.fullmatch(name)
        if form and gpus and int(form["index"] or 0) >= len(gpus):
            raise ConfigError(f"--device {name}: this host has {len(gpus)} GPU(s): {', '.join(every_gpu)}")
    return names


def _in_groups(names: list[str], size: int, gpus: Sequence[str]) -> list[WorkerDevices]:
    if names in (["auto"], ["cpu"]):  # no GPU: so many processes on the CPU, which is good for trying it
        return [WorkerDevices("cpu")]
    if not all(_CUDA.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"--tensor-parallel {size}: --device must name GPUs, each once, not {', '.join(names)}")
    if size > len(names):
        raise ConfigError(f"--tensor-parallel {size}: there are only {len(names)} GPU(s): {', '.join(names)}")
    if len(names) % size:
        raise ConfigError(
            f"--tensor-parallel {size}: {len(names)} GPUs do not make groups of {size}: name the ones to use, as in "
            f"--device {','.join(names[: len(names) // size * size])}"
        )
    return [_group(names[i : i + size], gpus) for i in range(0, len(names), size)]


def _group(names: list[str], gpus: Sequence[str]) -> WorkerDevices:
    forms = [_CUDA.fullmatch(name) for name in names]
    indices = [int(form["index"]) for form in forms if form and form["index"]]
    if len(indices) < len(names):
        return WorkerDevices(",".join(names))
    return WorkerDevices(",".join(names), ",".join(gpus[i] if gpus else str(i) for i in indices))
