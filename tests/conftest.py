"""What all tests share: marks that say what a machine lacks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import pytest

# Keys and models of the tests are their own, also in the processes that they start. scripts/test keeps the folder from
# one run to the next, because the demo model takes half a minute to make.
os.environ.setdefault("PHI3_MESH_HOME", tempfile.mkdtemp(prefix="phi3-test-"))


def _missing(mark: str) -> str | None:
    """Why tests with this mark cannot run here."""
    if mark == "model" and importlib.util.find_spec("torch") is None:
        return "needs the node extra (torch)"
    if mark == "gpu":
        torch = pytest.importorskip("torch") if importlib.util.find_spec("torch") else None
        return None if torch is not None and torch.cuda.is_available() else "needs a GPU"
    if mark == "netns" and (os.geteuid() != 0 or shutil.which("ip") is None):
        return "needs root and iproute2"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {mark: _missing(mark) for mark in ("model", "gpu", "netns")}
    for item in items:
        for mark, reason in reasons.items():
            if reason is not None and item.get_closest_marker(mark) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def model_home() -> Path:
    """Where the demo model is, or will be."""
    return Path(os.environ["PHI3_MESH_HOME"])


@pytest.fixture
def plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose servers or clients are scripted on raw sockets: the client library leaves encryption out."""
    monkeypatch.setenv("PHI3_MESH_INSECURE", "1")
