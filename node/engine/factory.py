"""Chooses the engine. Each one is imported only when it is asked for: torch is heavy, and not everyone has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.engine.base import Engine, EngineOptions

Report = Callable[[str], None]
"""Takes one line of loading progress for the operator."""

ENGINES = ("transformers", "vllm", "synthetic")


def create_engine(
    options: EngineOptions, home: Path, report: Report = lambda line: None, scratch: Path | None = None
) -> Engine:
    """An engine that is not started yet. `scratch` is a folder for files that live as long as the process; None: one of
    the system's. Raises ValueError for a name that is not in `ENGINES`."""
    if options.engine == "synthetic":
        from node.engine.synthetic import SyntheticEngine

        return SyntheticEngine(options)
    if options.engine == "transformers":
        from node.engine.transformers_engine import TransformersEngine

        return TransformersEngine(options, home, report, scratch)
    if options.engine == "vllm":
        from node.engine.vllm_engine import VllmEngine

        return VllmEngine(options, home, report)
    raise ValueError(f"unknown engine {options.engine!r}: choose one of {', '.join(ENGINES)}")
