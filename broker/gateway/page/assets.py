"""The page's files, read once, with the headers that keep a browser to them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Node names, notes and answers come from elsewhere. The page only ever sets text, and with Trusted Types a browser
# holds it to that: https://www.w3.org/TR/trusted-types/
_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, ready to send."""

    body: bytes
    headers: dict[str, str]
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """By file name. A fixed set: no path of a request ever reaches the file system."""
    folder = files("broker.gateway.page") / "static"
    return {file.name: _asset(file.name, file.read_bytes()) for file in folder.iterdir() if _type_of(file.name)}


def _asset(name: str, body: bytes) -> Asset:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**SECURITY_HEADERS, "content-type": _type_of(name), "cache-control": "no-cache", "etag": etag}
    return Asset(body, headers, etag)


def _type_of(name: str) -> str:
    return _TYPES.get(name.rpartition(".")[2], "")
