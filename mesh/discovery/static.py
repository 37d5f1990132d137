"""Members that the operator lists."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.discovery.addresses import parse_endpoint
from mesh.discovery.source import OnFound, OnGone


class StaticSource:
    """Always there, never gone."""

    def __init__(self, addresses: Iterable[str]) -> None:
        """Raises BadAddress."""
        self._addresses = tuple(dict.fromkeys(str(parse_endpoint(address)) for address in addresses))

    async def start(self, on_found: OnFound, on_gone: OnGone) -> None:
        for address in self._addresses:
            on_found(address, None)

    async def close(self) -> None:
        pass

    def describe(self) -> str:
        return f"static list: {', '.join(self._addresses) or 'empty'}"
