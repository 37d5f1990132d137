"""The clients that may call: one small file each in `keys/clients`, with the public half of the client's key.

The commands write, the servers on this host read; a server sees a change at the next question it asks.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mesh.errors import ConfigError
from mesh.security.files import check_private_folder, keys_folder, read_private, replace, write_once
from mesh.security.keys import Credentials, KeyPair, bytes_of
from mesh.security.tokens import checked_name, client_token

logger = logging.getLogger(__name__)

_SUFFIX = ".json"
_SETTLED_NS = 2_000_000_000

_Stamp = tuple[int, int]  # inode, time of the last change in nanoseconds
_NOTHING: _Stamp = (0, 0)


@dataclass(frozen=True, slots=True)
class ClientKey:
    """One client. Times are ISO 8601, UTC, for people to read."""

    name: str
    public: str
    created: str
    revoked: str = ""  # when; empty while the key is good

    @property
    def is_revoked(self) -> bool:
        return bool(self.revoked)


class ClientRegistry:
    """A name is used once, for one key: so `client:NAME` in a log means the same client for ever, and a connection
    that a revoked key opened can never pass for a newer one."""

    def __init__(self, home: Path | None = None, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.folder = keys_folder(home) / "clients"
        self._now_ns = now_ns  # the wall clock, as in file times
        self._folder_stamp = _NOTHING
        self._is_settled = True
        self._stamps: dict[str, _Stamp] = {}
        self._by_name: dict[str, ClientKey] = {}
        self._by_public: dict[str, ClientKey] = {}

    # --- for the commands ---------------------------------------------------------------------------------------------

    def add(self, name: str, member: Credentials) -> str:
        """Make a client, and the token for it: its secret half is nowhere else. Raises ConfigError."""
        pair = KeyPair.new()
        token = client_token(member.mesh_public, pair, name)
        if not write_once(self._path(name), _to_text(ClientKey(name, pair.public, _now()))):
            raise ConfigError(
                f"client {name!r} exists already, or did and was revoked; its token cannot be shown again: "
                f"choose another name, such as {name[:60]}-2"
            )
        return token

    def revoke(self, name: str) -> ClientKey:
        """End a client. Doing it again changes nothing. Raises ConfigError if there is none of that name."""
        try:
            client = self._read(name)
        except FileNotFoundError:
            known = ", ".join(client.name for client in self.clients() if not client.is_revoked)
            raise ConfigError(f"no client is called {name!r}; there are: {known or 'none'}") from None
        if not client.is_revoked:
            client = ClientKey(client.name, client.public, client.created, revoked=_now())
            replace(self._path(name), _to_text(client))
        return client

    def clients(self) -> tuple[ClientKey, ...]:
        """All by name, those that are revoked too. Raises ConfigError if a file is damaged or open to others."""
        return tuple(self._read(name) for name in sorted(self._names()))

    # --- for the servers ----------------------------------------------------------------------------------------------

    def with_key(self, public: str) -> ClientKey | None:
        """The client that has this public key. A file that cannot be trusted is logged, and its client stays out."""
        self._refresh()
        return self._by_public.get(public)

    def active_names(self) -> set[str]:
        """Of those who may call, now."""
        self._refresh()
        return {client.name for client in self._by_name.values() if not client.is_revoked}

    def _refresh(self) -> None:
        """Read again what has changed; mostly nothing has, and this costs one stat.

        File times move in steps of some milliseconds. A change right after reading may fall in the same step, so a time
        is only relied upon if it was old at the time of reading; until then, the files are looked at one by one.
        """
        stamp = _stamp(self.folder)
        if stamp == self._folder_stamp and self._is_settled:
            return
        self._folder_stamp = stamp
        self._is_settled = self._now_ns() - stamp[1] > _SETTLED_NS
        try:
            check_private_folder(self.folder)
        except FileNotFoundError:
            stamps: dict[str, _Stamp] = {}
        except ConfigError as error:
            logger.error("clients_ignored error=%s", error)
            stamps = {}
        else:
            stamps = {name: _stamp(self.folder / (name + _SUFFIX)) for name in self._names()}
        kept = {name: c for name, c in self._by_name.items() if stamps.get(name) == self._stamps.get(name)}
        self._by_name = kept | {
            name: c for name in stamps.keys() - kept.keys() if (c := self._readable(name, stamps[name]))
        }
        self._by_public = {client.public: client for client in self._by_name.values()}
        self._stamps = stamps
        if len(self._by_name) < len(stamps):
            self._is_settled = False  # what cannot be read now may be readable soon: there may be no free descriptor

    def _readable(self, name: str, stamp: _Stamp) -> ClientKey | None:
        try:
            return self._read(name)
        except (ConfigError, OSError) as error:
            if stamp != self._stamps.get(name):  # told already
                logger.error("client_key_ignored name=%s error=%s", name, error)
            return None

    # --- files --------------------------------------------------------------------------------------------------------

    def _names(self) -> Iterator[str]:
        """Drafts that a crash left behind begin with a dot, and are no names."""
        try:
            entries = os.listdir(self.folder)
        except OSError:
            return
        yield from (entry.removesuffix(_SUFFIX) for entry in entries if entry.endswith(_SUFFIX) and entry[0] != ".")

    def _path(self, name: str) -> Path:
        return self.folder / (checked_name(name) + _SUFFIX)

    def _read(self, name: str) -> ClientKey:
        path = self._path(name)
        text = read_private(path)
        try:
            values = json.loads(text)
            client = ClientKey(name, str(values["public"]), str(values["created"]), str(values["revoked"]))
            bytes_of(client.public)
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{path}: is damaged; `phi3-broker revoke` cannot read it, so delete it") from None
        return client


def _stamp(path: Path) -> _Stamp:
    """Differs when a file was replaced, changed, or got another mode or owner."""
    try:
        found = os.stat(path)
    except OSError:
        return _NOTHING
    return found.st_ino, found.st_ctime_ns


def _to_text(client: ClientKey) -> str:
    return json.dumps({"public": client.public, "created": client.created, "revoked": client.revoked}) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
