"""Where a process finds its keys: the token it was given, the environment, this host's own key."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from mesh.errors import ConfigError
from mesh.security.files import keys_folder
from mesh.security.keys import Credentials
from mesh.security.member_key import find_member, find_or_make_member
from mesh.security.tokens import parse_token

ENV_TOKEN = "PHI3_MESH_TOKEN"
ENV_TOKEN_FILE = "PHI3_MESH_TOKEN_FILE"
_MAX_FILE_BYTES = 4096


def member_credentials(
    token: str | None = None, *, home: Path | None = None, env: Mapping[str, str] = os.environ
) -> Credentials:
    """For a node or a broker. The first one on a host makes the key of a new mesh.

    Raises ConfigError, also for a client's token.
    """
    given = _given(token, env)
    if given is None:
        return find_or_make_member(home)
    source, found = given
    if not found.is_member:
        raise ConfigError(
            f"{source}: this is the token of client {found.name!r}; nodes and brokers need the line that "
            "`phi3-broker token --member` prints"
        )
    return found


def client_credentials(
    token: str | None = None, *, home: Path | None = None, env: Mapping[str, str] = os.environ
) -> Credentials:
    """For whoever calls a mesh: any token, or the key of the mesh that runs on this host.

    Never makes a key: it would fit no lock. Raises ConfigError.
    """
    given = _given(token, env)
    if given is not None:
        return given[1]
    found = find_member(home)
    if found is None:
        raise ConfigError(
            f"no key: none in {keys_folder(home)}, and neither a token nor {ENV_TOKEN} nor {ENV_TOKEN_FILE} is given. "
            "On this host, start phi3-node or phi3-broker first, which makes one. For a mesh elsewhere, run "
            f"`phi3-broker token --client NAME` there and give the line as token=… or {ENV_TOKEN}"
        )
    return found


def token_argument(text: str, option: str = "--join") -> str:
    """The token that an option means: itself, `-` for a line of standard input, `@FILE` for what is in a file.

    What stands on a command line can be read by every user of the host for as long as the process runs. Raises
    ConfigError.
    """
    if text == "-":
        return sys.stdin.readline()
    if text.startswith("@"):
        return _read(Path(text[1:]).expanduser(), f"{option} {text}")
    return text


def _given(token: str | None, env: Mapping[str, str]) -> tuple[str, Credentials] | None:
    """An explicit token, and where it came from."""
    if token is not None:
        return "token", parse_token(token, "token")
    if text := env.get(ENV_TOKEN):
        return ENV_TOKEN, parse_token(text, ENV_TOKEN)
    if name := env.get(ENV_TOKEN_FILE):
        source = f"{ENV_TOKEN_FILE} ({name})"
        return source, parse_token(_read(Path(name).expanduser(), source), source)
    return None


def _read(path: Path, source: str) -> str:
    """Any mode will do: container systems mount secrets as links to files of root, and somebody chose this path."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror or error}") from None
