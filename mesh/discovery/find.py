"""A client's one question: where is a broker? Answered as fast as the network allows, or with what was tried."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zeroconf import DNSIncoming  # type: ignore[attr-defined] # offered to all, but not listed in its __all__

from mesh.discovery.dns import resolve
from mesh.discovery.interfaces import multicast_interfaces, nearest_first
from mesh.discovery.multicast import Inquiry, adverts_in
from mesh.discovery.records import Advert

GRACE_S = 0.15  # for other brokers to answer once one has
NODE_GRACE_S = 0.4  # for a broker to answer once a node has


@dataclass(frozen=True, slots=True)
class Found:
    """`addresses` to try, best first; none if nothing was found. `tried` says what was done, one line per step."""

    addresses: list[str]
    adverts: list[Advert]
    tried: list[str]


async def find_broker(
    mesh: str = "default",
    address: str | None = None,
    timeout_s: float = 3.0,
    interfaces: Sequence[str] | None = None,
) -> Found:
    """Brokers of the mesh, or, if it has none, nodes: they answer clients as well.

    An `address` is resolved and nothing else is tried. `interfaces` are their addresses; None means loopback and every
    other one. Raises BadAddress; never for the network's sake.
    """
    if address is not None:
        return await _resolve(address, timeout_s)
    search = _Search(mesh)
    inquiry = Inquiry(multicast_interfaces() if interfaces is None else interfaces, ["broker", "node"], search.take_in)
    await inquiry.start()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await search.wait()
    finally:
        await inquiry.close()
    return search.result(inquiry)


async def _resolve(address: str, timeout_s: float) -> Found:
    try:
        async with asyncio.timeout(timeout_s):
            found = await resolve(address)
    except OSError as error:
        reason = "no answer from the name server" if isinstance(error, TimeoutError) else error.strerror or error
        return Found([], [], [f"address {address}: {reason}"])
    return Found(found, [], [f"address {address}: {', '.join(found)}"])


class _Search:
    """Collects the answers of one inquiry."""

    def __init__(self, mesh: str) -> None:
        self._mesh = mesh
        self._adverts: dict[str, Advert] = {}
        self._ignored: Counter[str] = Counter()
        self._has_broker = asyncio.Event()
        self._has_any = asyncio.Event()

    def take_in(self, answer: DNSIncoming) -> None:
        for advert in adverts_in(answer, ["broker", "node"], lambda error: self._ignored.update([error.reason])):
            if advert.mesh != self._mesh:
                self._ignored[f"mesh {advert.mesh!r}"] += 1
                continue
            self._adverts[advert.service_name] = advert
            self._has_any.set()
            if advert.kind == "broker":
                self._has_broker.set()

    async def wait(self) -> None:
        await self._has_any.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NODE_GRACE_S):
                await self._has_broker.wait()
                await asyncio.sleep(GRACE_S)

    def result(self, inquiry: Inquiry) -> Found:
        brokers = [advert for advert in self._adverts.values() if advert.kind == "broker"]
        chosen = brokers or list(self._adverts.values())
        # Each member's best address first, then the second best of each, …: another member is the better second try.
        ranked = [nearest_first(advert.addresses) for advert in chosen]
        longest = max(map(len, ranked), default=0)
        addresses = [choices[rank] for rank in range(longest) for choices in ranked if rank < len(choices)]
        asked = f"multicast DNS on {', '.join(inquiry.interfaces) or 'no interface'}"
        tried = [f"{asked} for mesh {self._mesh!r}: {len(self._adverts)} members answered", *inquiry.problems]
        tried += [f"ignored {count} answers: {reason}" for reason, count in sorted(self._ignored.items())]
        return Found(list(dict.fromkeys(addresses)), chosen, tried)
