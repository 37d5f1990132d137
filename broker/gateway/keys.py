"""API keys from a file, `name key` on each line. Only their digests are kept, and neither is ever logged."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from pathlib import Path

from mesh.errors import ConfigError

logger = logging.getLogger(__name__)

_MAX_NAME = 64


class KeyRing:
    """Who may call. Two keys may have one name, which is how a key is exchanged without a gap."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when the file is not right."""
        self._path = path
        self._stamp = self._stamp_now()
        self._names = _parse(path)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names.values())

    def name_of(self, key: str) -> str | None:
        """Whose key it is. Every digest is compared in full, so the time taken says nothing about any of them."""
        given = _digest(key)
        found = None
        for digest, name in self._names.items():
            if hmac.compare_digest(digest, given):
                found = name
        return found

    def reload(self) -> bool:
        """Read the file again if it has changed. One that is wrong changes nothing: the keys of before stay good."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._names = _parse(self._path)
        except ConfigError as error:
            logger.warning("api_keys_kept reason=%s", error)
            return False
        logger.info("api_keys_loaded names=%d", len(self.names))
        return True

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _parse(path: Path) -> dict[bytes, str]:
    """Raises ConfigError naming the line, never showing a key."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file: cannot read {path}: {error}") from None
    names: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) != 2 or len(words[0]) > _MAX_NAME:
            raise ConfigError(f"{path}: line {number}: must be `name key`, the name at most {_MAX_NAME} characters")
        name, key = words
        if names.setdefault(_digest(key), name) != name:
            raise ConfigError(f"{path}: line {number}: this key stands for another name already")
    if not names:
        raise ConfigError(f"{path}: has no keys: write `name key` on a line for each caller")
    return names
