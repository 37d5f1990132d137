"""The key of the mesh on this host: `keys/mesh.key`, which holds a member token. Made by whoever starts first."""

from __future__ import annotations

import logging
from pathlib import Path

from mesh.errors import ConfigError
from mesh.security.files import keys_folder, read_private, replace, write_once
from mesh.security.keys import Credentials, KeyPair
from mesh.security.tokens import member_token, parse_token

logger = logging.getLogger(__name__)

FILE_NAME = "mesh.key"


def find_member(home: Path | None = None) -> Credentials | None:
    """The key that is there. Raises ConfigError if it is damaged, or others may have read it."""
    path = keys_folder(home) / FILE_NAME
    try:
        text = read_private(path)
    except FileNotFoundError:
        return None
    found = parse_token(text, str(path))
    if not found.is_member:
        raise ConfigError(f"{path}: holds the token of a client; only a member's belongs there")
    return found


def find_or_make_member(home: Path | None = None) -> Credentials:
    """The key that is there, or a new one. Any number of processes may do this at once: all get the same.

    Raises ConfigError.
    """
    found = find_member(home)
    if found is not None:
        return found
    made = Credentials.of_member(KeyPair.new())
    path = keys_folder(home) / FILE_NAME
    if write_once(path, member_token(made.pair) + "\n"):
        logger.info("mesh_key_made path=%s fingerprint=%s", path, made.fingerprint)
        return made
    found = find_member(home)
    if found is None:
        raise ConfigError(f"{path}: was made and removed while this process started; start it again")
    return found


def join(token: str, home: Path | None = None, source: str = "--join") -> Credentials:
    """Make the mesh of a member token the mesh of this host, for good. The key of another mesh is kept beside it.

    Raises ConfigError.
    """
    joined = parse_token(token, source)
    if not joined.is_member:
        raise ConfigError(
            f"{source}: this is the token of client {joined.name!r}; a host joins with the line that "
            "`phi3-broker token --member` prints"
        )
    path = keys_folder(home) / FILE_NAME
    before = find_member(home)
    if before == joined:
        return joined
    if before is not None:
        kept = path.with_name(f"mesh-{before.fingerprint}.key")
        replace(kept, member_token(before.pair) + "\n")
        logger.warning(
            "mesh_changed from=%s to=%s kept=%s: what still runs here with the old key must be started again",
            *(before.fingerprint, joined.fingerprint, kept),
        )
    replace(path, member_token(joined.pair) + "\n")
    return joined
