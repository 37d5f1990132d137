"""Multicast DNS, whole: import its parts from here."""

from __future__ import annotations

from mesh.discovery.advertiser import Advertiser
from mesh.discovery.browser import Browser
from mesh.discovery.interfaces import nearest_first
from mesh.discovery.records import Advert, Kind
from mesh.discovery.session import MdnsSession
from mesh.discovery.source import OnFound, OnGone

__all__ = ["Advertiser", "Browser", "MdnsSession", "MdnsSource"]


class MdnsSource:
    """The members that a browser finds, each by the address of its that is nearest to this host."""

    def __init__(self, session: MdnsSession, kind: Kind, mesh: str) -> None:
        """The session is the caller's: it starts it before, and closes it after this source."""
        self._session = session
        self._kind: Kind = kind
        self._mesh = mesh
        self._browser: Browser | None = None
        self._address_of: dict[str, str] = {}

    async def start(self, on_found: OnFound, on_gone: OnGone) -> None:
        def found(advert: Advert) -> None:
            address = nearest_first(advert.addresses)[0]
            before = self._address_of.get(advert.instance_name)
            self._address_of[advert.instance_name] = address
            if before not in (None, address):
                removed_from(before)
            on_found(address, advert)

        def removed(advert: Advert) -> None:
            removed_from(self._address_of.pop(advert.instance_name))

        def removed_from(address: str | None) -> None:
            # A node that restarts on its port is there under its new name before the old one is gone.
            if address is not None and address not in self._address_of.values():
                on_gone(address)

        self._browser = Browser(self._session, self._kind, self._mesh, found, removed)
        await self._browser.start()

    async def close(self) -> None:
        if self._browser is not None:
            await self._browser.close()

    def describe(self) -> str:
        ignored = self._browser.ignored if self._browser is not None else {}
        told = "".join(f"; ignored {count} records: {reason}" for reason, count in sorted(ignored.items()))
        return f"{self._session.describe()}: {len(self._address_of)} {self._kind}s of mesh {self._mesh!r}{told}"
