"""Where the project keeps its files: models, keys, names. PHI3_MESH_HOME, or the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def home_folder() -> Path:
    """The folder; it need not exist yet."""
    if chosen := os.environ.get("PHI3_MESH_HOME"):
        return Path(chosen).expanduser().absolute()
    import platformdirs  # only where it is needed: imports count at start-up

    return Path(platformdirs.user_cache_dir("phi3-mesh"))
