"""CPU seconds of whole fresh processes: the children's own accounting, so a busy machine does not blur it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from scripts.benchmarks.table import Row, median

NUM_RUNS = 7
LIMIT_S = 0.3
BIN = Path(sys.executable).parent
COMMANDS = {
    "python, nothing imported": [sys.executable, "-c", "pass"],
    "import mesh": [sys.executable, "-c", "import mesh; mesh.Client"],
    "phi3-broker status --help": [str(BIN / "phi3-broker"), "status", "--help"],
    "phi3-mesh --help": [str(BIN / "phi3-mesh"), "--help"],
}


def run(options: argparse.Namespace) -> list[Row]:
    return [
        {
            "command": name,
            "CPU s (median)": median([_cpu_s(command) for _ in range(NUM_RUNS)]),
            "must be below": LIMIT_S,
        }
        for name, command in COMMANDS.items()
    ]


def _cpu_s(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
