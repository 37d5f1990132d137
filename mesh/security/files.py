"""Files that only their owner may read. A wrong mode or owner is an error: someone else may have the key by now."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mesh.errors import ConfigError
from mesh.home import home_folder

_HAS_MODES = os.name == "posix"
_MAX_BYTES = 4096


def keys_folder(home: Path | None = None) -> Path:
    """Where keys are; it need not exist yet. `keys` in the given home or in PHI3_MESH_HOME.

    Where neither is set it is the user's data folder, and not the usual home, which is a cache: people and programs
    empty caches, and a mesh whose key is gone falls apart.
    """
    if home is not None or os.environ.get("PHI3_MESH_HOME"):
        return (home or home_folder()) / "keys"
    import platformdirs  # only where it is needed: imports count at start-up

    return Path(platformdirs.user_data_dir("phi3-mesh")) / "keys"


def check_private_folder(path: Path) -> None:
    """Raises: FileNotFoundError; ConfigError where others may reach in."""
    with _as_config_error("read", path):
        _check(path, os.stat(path), "700")


def read_private(path: Path) -> str:
    """The text of a private file in a private folder.

    Raises: FileNotFoundError; ConfigError where others may have read or written it.
    """
    with _as_config_error("read", path), open(path, "rb") as file:
        check_private_folder(path.parent)
        _check(path, os.fstat(file.fileno()), "600")  # of what was opened, not of what the name means by now
        return file.read(_MAX_BYTES).decode("utf-8", "replace")


def write_once(path: Path, text: str) -> bool:
    """Make a private file, whole or not at all. False if there is one already, even one made in this instant."""
    with _as_config_error("write", path), _written_beside(path, text) as draft:
        try:
            os.link(draft, path)  # unlike rename it never replaces
        except FileExistsError:
            return False
        return True


def replace(path: Path, text: str) -> None:
    """Make or replace a private file in one step: who reads it sees the old text or the new one."""
    with _as_config_error("write", path), _written_beside(path, text) as draft:
        os.replace(draft, path)


@contextmanager
def _written_beside(path: Path, text: str) -> Iterator[Path]:
    """The text in a file of its own in the same folder, which is made if need be."""
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    check_private_folder(path.parent)
    draft = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _as_config_error(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(
            f"cannot {verb} {path}: {error.strerror or error}; give it to the user who runs this, "
            "or set PHI3_MESH_HOME to a folder on a local disk that this user may write"
        ) from None


def _check(path: Path, found: os.stat_result, mode: str) -> None:
    """Raises ConfigError."""
    if not _HAS_MODES:
        return
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} belongs to user id {found.st_uid} and not to {os.geteuid()}, who runs this: "
            f"chown {os.geteuid()} {path}, or set PHI3_MESH_HOME"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):o}): chmod {mode} {path}; "
            "and if somebody else may have read it, make new keys"
        )
