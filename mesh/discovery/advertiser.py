"""A member's own record on the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable

from zeroconf import ServiceInfo

from mesh.discovery.addresses import parse_endpoint
from mesh.discovery.records import SERVICE_TYPES, Advert
from mesh.discovery.session import MdnsSession

log = logging.getLogger(__name__)

TTL_S = 75  # how long others may believe a record: a host that lost power is forgotten after that


class Advertiser:
    """Keeps one member's record on the network, and takes it back on `close`."""

    def __init__(self, session: MdnsSession, *, ttl_s: int = TTL_S) -> None:
        self._session = session
        self._ttl_s = ttl_s
        self._info: ServiceInfo | None = None
        self._announcing: Awaitable[object] | None = None

    async def start(self, advert: Advert) -> None:
        """Returns when the first announcement is on its way; more follow within a second."""
        opened = self._session.zeroconf
        if opened is None:
            return
        self._info = self._service_info(advert)
        # Probing for a conflict takes most of a second; the epoch in the name makes one impossible.
        self._announcing = await opened.async_register_service(self._info, cooperating_responders=True)
        log.info("mdns_advertised name=%s addresses=%s", advert.instance_name, ",".join(advert.addresses))

    async def update(self, advert: Advert) -> None:
        """Tell others what changed. Id and epoch must be the same as before."""
        opened = self._session.zeroconf
        if opened is None or self._info is None:
            return
        await self._let_announcements_end()
        self._info = self._service_info(advert)
        self._announcing = await opened.async_update_service(self._info)

    async def close(self) -> None:
        opened, info = self._session.zeroconf, self._info
        await self._let_announcements_end()
        if opened is None or info is None:
            return
        self._info = None
        await (await opened.async_unregister_service(info))

    async def _let_announcements_end(self) -> None:
        """Stop repeating an announcement: after a goodbye it would bring the record back."""
        announcing, self._announcing = self._announcing, None
        if isinstance(announcing, asyncio.Future):
            announcing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await announcing

    def _service_info(self, advert: Advert) -> ServiceInfo:
        endpoints = [parse_endpoint(address) for address in advert.addresses]
        return ServiceInfo(
            SERVICE_TYPES[advert.kind],
            advert.service_name,
            port=endpoints[0].port,
            properties=advert.to_txt(),
            server=f"{advert.instance_name}.local.",
            host_ttl=self._ttl_s,
            other_ttl=self._ttl_s,
            parsed_addresses=[endpoint.host for endpoint in endpoints if endpoint.ip is not None],
        )
