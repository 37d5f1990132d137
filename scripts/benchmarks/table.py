"""How a benchmark is shown: rows of named figures, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

Row = dict[str, str | float]
_WIDE = 180  # columns, where nobody looks at a terminal: no figure is cut


def machine() -> str:
    """Processor and cores, as a reader would name this machine."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{os.cpu_count()} cores, {name}, Python {platform.python_version()}"


def print_table(title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, caption=machine(), title_justify="left", caption_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:.4g}" for value in row.values()))
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
