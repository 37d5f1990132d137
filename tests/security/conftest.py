"""Hosts of their own for the tests that make keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Mesh, mesh_in


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No keys yet, and no other test's."""
    monkeypatch.setenv("PHI3_MESH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PHI3_MESH_INSECURE", raising=False)
    return tmp_path / "home"


@pytest.fixture
def mesh(home: Path, tmp_path: Path) -> Iterator[Mesh]:
    with mesh_in(tmp_path) as made:
        yield made
