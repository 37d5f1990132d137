"""Which devices this host has, found without torch: the agent never imports it."""

from __future__ import annotations

import os
import shutil
import subprocess


def devices_for(wanted: str) -> list[str]:
    """One entry for each engine worker. "auto" is every GPU, or "auto" itself (one worker, which finds the CPU)."""
    if wanted != "auto":
        return [device.strip() for device in wanted.split(",") if device.strip()]
    count = count_gpus()
    return [f"cuda:{index}" for index in range(count)] if count > 1 else ["auto"]


def count_gpus() -> int:
    """NVIDIA GPUs that a child process would see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(1 for line in listing.splitlines() if line.startswith("GPU "))
