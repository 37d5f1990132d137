"""The GPUs of one worker: shown to it alone, and called by the host's names when it speaks of them."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from node.engine.base import EngineOptions


class Devices:
    """The devices that a worker was given."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._names = options.device.split(",") if options.visible_devices else []

    def claim(self) -> EngineOptions:
        """Hides all other GPUs from this process and its children; returns the options with its own counted from 0, as
        the engine will see them. Before CUDA is touched."""
        if not self._names:
            return self._options
        os.environ["CUDA_VISIBLE_DEVICES"] = self._options.visible_devices
        return replace(self._options, device=",".join(f"cuda:{i}" for i in range(len(self._names))))

    def as_on_host(self, text: str) -> str:
        """What the engine says, with the names that the operator knows."""

        def name(found: re.Match[str]) -> str:
            index = int(found[1])
            return self._names[index] if index < len(self._names) else found[0]

        return re.sub(r"cuda:(\d+)", name, text)
