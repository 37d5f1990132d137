"""What a member says about itself in DNS: to TXT properties and back, trusting nothing that comes from the network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mesh.discovery.addresses import BadAddress, parse_endpoint

Kind = Literal["node", "broker"]
SERVICE_TYPES: dict[Kind, str] = {"node": "_phi3-node._tcp.local.", "broker": "_phi3-broker._tcp.local."}

MAX_ADDRESSES = 8
MAX_MODELS = 16
_MAX_VALUE_BYTES = 200  # DNS allows 255 for key, "=" and value
_MAX_MODELS_BYTES = 700  # so that a whole answer fits one Ethernet frame


class BadRecord(ValueError):
    """A record that no member of a mesh would send. `reason` is one of a few words, fit for a counter."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Advert:
    """A member as others should know it. `addresses` are like `tcp://192.168.1.7:5560`, best first.

    `models` may be cut short: only the handshake tells all of them.
    """

    kind: Kind
    instance_id: str
    epoch: str
    addresses: tuple[str, ...]
    mesh: str = "default"
    version: int = 1
    models: tuple[str, ...] = ()

    @property
    def instance_name(self) -> str:
        """Unique on the network even if two hosts got the same id: the epoch differs. At most 63 bytes."""
        plain_id, plain_epoch = (re.sub(r"[^A-Za-z0-9_-]+", "-", text) for text in (self.instance_id, self.epoch))
        return f"{plain_id[:40]}-{plain_epoch[-20:]}"

    @property
    def service_name(self) -> str:
        return f"{self.instance_name}.{SERVICE_TYPES[self.kind]}"

    def to_txt(self) -> dict[str, str]:
        """TXT properties. One key per list item, because DNS limits each string and not their number."""
        txt = {"v": str(self.version), "mesh": self.mesh, "id": self.instance_id, "epoch": self.epoch}
        txt |= {f"a{index}": address for index, address in enumerate(self.addresses[:MAX_ADDRESSES])}
        room = _MAX_MODELS_BYTES
        for index, model in enumerate(self.models[:MAX_MODELS]):
            room -= len(model.encode()) + 5
            if room < 0:
                break
            txt[f"m{index}"] = model
        for key, value in txt.items():
            _checked_text(key, value)
        return txt


def advert_from_txt(kind: Kind, txt: Mapping[bytes, bytes | None]) -> Advert:
    """Raises BadRecord."""
    version = _text(txt, "v")
    if not (version.isdecimal() and version.isascii() and len(version) <= 5):
        raise BadRecord("bad_version", repr(version))
    addresses = tuple(_items(txt, "a", MAX_ADDRESSES))
    if not addresses:
        raise BadRecord("no_address", "the record has no address")
    try:
        addresses = tuple(str(parse_endpoint(address)) for address in addresses)
    except BadAddress as error:
        raise BadRecord("bad_address", str(error)) from error
    return Advert(
        kind=kind,
        instance_id=_text(txt, "id"),
        epoch=_text(txt, "epoch"),
        addresses=addresses,
        mesh=_text(txt, "mesh"),
        version=int(version),
        models=tuple(_items(txt, "m", MAX_MODELS)),
    )


def _items(txt: Mapping[bytes, bytes | None], prefix: str, limit: int) -> Iterator[str]:
    for index in range(limit):
        if f"{prefix}{index}".encode() not in txt:
            return
        yield _text(txt, f"{prefix}{index}")


def _text(txt: Mapping[bytes, bytes | None], key: str) -> str:
    value = txt.get(key.encode())
    if value is None:
        raise BadRecord("missing_key", key)
    try:
        return _checked_text(key, value.decode())
    except UnicodeDecodeError as error:
        raise BadRecord("bad_text", f"{key} is not UTF-8") from error


def _checked_text(key: str, value: str) -> str:
    if len(value.encode()) > _MAX_VALUE_BYTES:
        raise BadRecord("too_long", f"{key} has more than {_MAX_VALUE_BYTES} bytes")
    if not value or not value.isprintable():
        raise BadRecord("bad_text", f"{key} is empty or not printable")
    return value
