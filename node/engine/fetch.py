"""Fetches a model ahead of time: `python -m node.engine.fetch MODEL` prints the folder it is in.

Progress goes to stderr, so that a script can capture the path.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mesh.home import home_folder
from node.engine.model_files import ModelUnavailable, resolve_model


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 if the model is there, 1 if it cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m node.engine.fetch", description="Fetch a model ahead of time.")
    parser.add_argument("model", help='"demo", a folder, or a hub name')
    parser.add_argument("--home", type=Path, help="folder for models; default: PHI3_MESH_HOME or the user's cache")
    options = parser.parse_args(argv)
    try:
        files = resolve_model(options.model, options.home or home_folder(), _report)
    except ModelUnavailable as error:
        _report(f"error: {error}")
        return 1
    sys.stdout.write(f"{files.path}\n")
    return 0


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
