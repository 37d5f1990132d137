"""Join tokens: one line to paste that carries what another host needs.

    phi3-member-1-…  the secret key of the mesh
    phi3-client-1-…  the public key of the mesh, the secret key of one client, its name

What follows is base64url of the parts and a checksum over the whole line, so that a slip of the mouse is an error here
and not a handshake that fails for no visible reason. No error shows any part of a token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from mesh.errors import ConfigError
from mesh.security.keys import KEY_BYTES, Credentials, KeyPair, bytes_of, text_of

VERSION = 1
_FORM = re.compile(r"phi3-(?P<role>member|client)-(?P<version>[0-9]{1,4})-(?P<payload>[A-Za-z0-9_-]*)", re.ASCII)
_CHECK_BYTES = 4
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)


def checked_name(name: str) -> str:
    """The name of a client, which also names its file: only lower case, because some file systems fold it.

    Raises ConfigError.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"client name: {name!r} must be 1 to 63 lower-case letters, digits, dots, dashes or underscores, "
            "beginning with a letter or digit"
        )
    return name


def member_token(pair: KeyPair) -> str:
    """The line for another GPU host. Whoever has it is a member."""
    return _written("member", bytes_of(pair.secret.reveal()))


def client_token(mesh_public: str, pair: KeyPair, name: str) -> str:
    """The line for one client."""
    return _written("client", bytes_of(mesh_public) + bytes_of(pair.secret.reveal()) + checked_name(name).encode())


def parse_token(text: str, source: str = "token") -> Credentials:
    """What a token says. White space in it is ignored: terminals and mail programs break long lines.

    Raises ConfigError that begins with `source` and says what is wrong.
    """
    line = "".join(text.split())
    form = _FORM.fullmatch(line)
    if form is None:
        raise ConfigError(
            f"{source}: this is no token of phi3-mesh: one begins with phi3-member- or phi3-client-, and has only "
            "letters, digits, dashes and underscores"
        )
    if int(form["version"]) != VERSION:
        raise ConfigError(
            f"{source}: a token of version {form['version']}, and this program reads version {VERSION}: "
            "use the same version of phi3-mesh on both hosts"
        )
    parts = _parts(form["role"], form["payload"])
    if parts is None or _written(form["role"], parts) != line:  # the second also finds bits that base64 ignores
        raise ConfigError(f"{source}: the token is damaged or incomplete: copy the whole line again")
    if form["role"] == "member":
        return Credentials.of_member(KeyPair.from_secret(parts))
    mesh_public, secret, name = parts[:KEY_BYTES], parts[KEY_BYTES : 2 * KEY_BYTES], parts[2 * KEY_BYTES :]
    return Credentials(text_of(mesh_public), KeyPair.from_secret(secret), name.decode())


def _written(role: str, parts: bytes) -> str:
    head = f"phi3-{role}-{VERSION}-"
    check = hashlib.blake2b(head.encode() + parts, digest_size=_CHECK_BYTES).digest()
    return head + base64.urlsafe_b64encode(parts + check).decode().rstrip("=")


def _parts(role: str, payload: str) -> bytes | None:
    """The payload without its checksum; None where the lengths cannot be right."""
    try:
        raw = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    except binascii.Error:
        return None
    parts = raw[:-_CHECK_BYTES]
    if role == "member":
        return parts if len(parts) == KEY_BYTES else None
    name = parts[2 * KEY_BYTES :].decode("ascii", "replace")
    return parts if _NAME.fullmatch(name) is not None else None
