"""Chooses the engine. Each one is imported only when it is asked for: torch is heavy, and not everyone has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.engine.base import Engine, EngineOptions

Report = Callable[[str], None]
"""Takes one line of loading progress for the operator."""

ENGINES = ("transformers", "synthetic")


def create_engine(options: EngineOptions, home: Path, report: Report = lambda line: None) -> Engine:
    """An engine that is not started yet. Raises ValueError for a name that is not in `ENGINES`."""
    if options.engine == "synthetic":
        from node.engine.synthetic import SyntheticEngine

        return SyntheticEngine(options)
    if options.engine == "transformers":
        from node.engine.transformers_engine import TransformersEngine

        return TransformersEngine(options, home, report)
    raise ValueError(f"unknown engine {options.engine!r}: choose one of {', '.join(ENGINES)}")
