"""Peers from PyPI, each in a virtual environment of its own, which is made once and kept in the cache folder."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from scripts.benchmarks.processes import ROOT

PEERS = ROOT / ".cache" / "peers"


class NotToBeHad(Exception):
    """This peer is left out; the text says why."""


def installed(package: str, program: str) -> Path:
    """The program of a package. Raises NotToBeHad."""
    folder = PEERS / package
    path = folder / "bin" / program
    if not path.exists():
        print(f"installing {package} into {folder} …", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", package]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or not path.exists():
            lines = done.stderr.strip().splitlines() or [f"it has no program {program}"]
            raise NotToBeHad(f"pip cannot install {package}: {lines[-1]}")
    return path


def version(package: str) -> str:
    """What is installed."""
    command = [
        str(PEERS / package / "bin" / "python"),
        "-c",
        f"from importlib.metadata import version; print(version({package!r}))",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
