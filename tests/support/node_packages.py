"""The npm packages of the examples for Node: installed by the first test that wants them."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "scripts" / "examples" / "node"
_INSTALLED = EXAMPLES / "node_modules" / ".package-lock.json"  # written by npm at the very end
# No package runs a script of its own: what is native comes built. One look at the registry, no retries.
_NPM_CI = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=0")


def require_node_packages() -> Path:
    """The folder of the examples. Skips the test where there is no Node, or the packages cannot be had."""
    reason = _why_not()
    if reason:
        pytest.skip(reason)
    return EXAMPLES


@functools.cache
def _why_not() -> str:
    if shutil.which("node") is None:
        return "needs Node"
    if _INSTALLED.is_file() and _INSTALLED.stat().st_mtime >= (EXAMPLES / "package-lock.json").stat().st_mtime:
        return ""
    if shutil.which("npm") is None:
        return f"needs npm, or the packages in {EXAMPLES.name}/node_modules"
    try:
        ended = subprocess.run(_NPM_CI, cwd=EXAMPLES, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "npm ci did not end within 60 s"
    return "" if ended.returncode == 0 else f"npm ci failed: {' '.join(ended.stderr.split())[-200:]}"
