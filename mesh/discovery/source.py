"""Where members come from: the one shape that every way of finding them has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mesh.discovery.records import Advert

OnFound = Callable[[str, Advert | None], None]
OnGone = Callable[[str], None]


class Source(Protocol):
    """Tells of addresses like `tcp://host:port`. Found again without being gone means that the advert changed.

    An address that is gone from a source may be alive all the same: only the connection knows.
    """

    async def start(self, on_found: OnFound, on_gone: OnGone) -> None: ...

    async def close(self) -> None: ...

    def describe(self) -> str:
        """What was tried, where, and what came of it: one line for the person who finds nothing."""
