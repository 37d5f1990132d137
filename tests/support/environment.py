"""The environment of a process under test: nothing of ours but where its keys are, and whether it needs any."""

from __future__ import annotations

import os

_KEPT = ("PHI3_MESH_HOME", "PHI3_MESH_INSECURE")


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PHI3_") or name in _KEPT}
