"""One client of the mesh for each share. The broker shares fairly between clients, so each API key gets its own.

Where no keys are set, the `user` of a request says whose it is. With keys it does not: who sends many names would get
as many shares.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection

from mesh import AsyncClient

OWN = ""  # the gateway's own questions, and the requests of nobody in particular
_USER_SHARES = 32  # connections to the broker; users beyond that share one with others


def share_of_user(user: str) -> str:
    """Where no keys are set."""
    return f"users-{zlib.crc32(user.encode('utf-8', 'replace')) % _USER_SHARES}" if user else OWN


class Clients:
    """Made at first use, closed when the share's key is gone."""

    def __init__(self, make: Callable[[str], AsyncClient]) -> None:
        self._make = make
        self._by_share: dict[str, AsyncClient] = {}
        self._closing: set[asyncio.Task[None]] = set()  # held: the loop alone would not keep them

    def of(self, share: str) -> AsyncClient:
        client = self._by_share.get(share)
        if client is None:
            client = self._by_share[share] = self._make(share)
        return client

    def retain(self, shares: Collection[str]) -> None:
        """Close all others: what a withdrawn key still has running ends with it."""
        for share in [share for share in self._by_share if share != OWN and share not in shares]:
            task = asyncio.get_running_loop().create_task(self._by_share.pop(share).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        clients, self._by_share = list(self._by_share.values()), {}
        await asyncio.gather(*self._closing, *(client.close() for client in clients))
