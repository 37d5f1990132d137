"""Following who is on the network. What is found is a hint; what is not found proves nothing."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine

from zeroconf import DNSQuestionType, ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo

from mesh.discovery.multicast import Inquiry
from mesh.discovery.records import SERVICE_TYPES, Advert, BadRecord, Kind, advert_from_txt
from mesh.discovery.session import MdnsSession

log = logging.getLogger(__name__)

_REFRESH_S = 10.0
_REQUEST_S = 1.5
_MAX_INSTANCES = 1024  # a flood of invented names must not fill the memory


class Browser:
    """Follows the members of one kind and mesh.

    `on_found` is called for a new member and again when its record changed, `on_removed` when it said goodbye or its
    record ran out. Records that are not for us are counted by reason in `ignored`.
    """

    def __init__(
        self,
        session: MdnsSession,
        kind: Kind,
        mesh: str,
        on_found: Callable[[Advert], None],
        on_removed: Callable[[Advert], None],
        *,
        refresh_s: float = _REFRESH_S,
    ) -> None:
        self._session = session
        self._kind: Kind = kind
        self._mesh = mesh
        self._on_found = on_found
        self._on_removed = on_removed
        self._refresh_s = refresh_s
        self._known: dict[str, Advert | None] = {}  # by service name; None: its record cannot be had or is not for us
        self._tasks: set[asyncio.Task[None]] = set()
        self._browser: AsyncServiceBrowser | None = None
        self._inquiry: Inquiry | None = None
        self.ignored: Counter[str] = Counter()

    async def start(self) -> None:
        opened = self._session.zeroconf
        if opened is None:
            return
        self._browser = AsyncServiceBrowser(
            opened.zeroconf,
            SERVICE_TYPES[self._kind],
            handlers=[self._on_change],
            question_type=DNSQuestionType.QM,  # an answer sent to this host alone may reach another program's socket
        )
        # The browser's first question waits for up to 0.12 s, and may be answered a second later: ask as well. The
        # answers go where its own go, so that a later goodbye is understood.
        take_in = opened.zeroconf.record_manager.async_updates_from_response
        self._inquiry = Inquiry(self._session.interfaces, [self._kind], take_in)
        await self._inquiry.start()
        self._spawn(self._refresh())

    async def close(self) -> None:
        if self._inquiry is not None:
            await self._inquiry.close()
        if self._browser is not None:
            await self._browser.async_cancel()
            self._browser = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def adverts(self) -> list[Advert]:
        return [advert for advert in self._known.values() if advert is not None]

    def _on_change(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Removed:
            self._forget(name)
            self._known.pop(name, None)
        elif name in self._known or len(self._known) < _MAX_INSTANCES:
            self._known.setdefault(name, None)
            info = AsyncServiceInfo(service_type, name)
            if _has_text(info, zeroconf):  # the usual case: the answer brought everything along
                self._take_in(info)
            else:
                self._spawn(self._look_up(info))
        else:
            self.ignored["too_many"] += 1

    async def _look_up(self, info: AsyncServiceInfo) -> None:
        """From the cache, or if that has run out, from the network; gone if there is no answer."""
        opened = self._session.zeroconf
        if opened is None or info.name not in self._known:
            return
        if not _has_text(info, opened.zeroconf):
            await info.async_request(opened.zeroconf, timeout=_REQUEST_S * 1000)
        if info.text:
            self._take_in(info)
        else:
            self._forget(info.name)

    async def _refresh(self) -> None:
        """zeroconf keeps a name for 19 minutes at least, however short its TTL. So look whether there is still
        a valid record behind each, which also finds those again that came back."""
        while True:
            await asyncio.sleep(self._refresh_s)
            names = list(self._known)
            await asyncio.gather(*(self._look_up(AsyncServiceInfo(SERVICE_TYPES[self._kind], name)) for name in names))

    def _take_in(self, info: ServiceInfo) -> None:
        name = info.name
        if name not in self._known:
            return
        try:
            advert = advert_from_txt(self._kind, info.properties)
            if advert.mesh != self._mesh:
                raise BadRecord("other_mesh", advert.mesh)
            if advert.service_name.lower() != name.lower():
                raise BadRecord("wrong_name", name)
        except BadRecord as error:
            self.ignored[error.reason] += 1
            log.debug("mdns_ignored name=%s %s", name, error)
            self._forget(name)
            return
        if advert != self._known[name]:
            self._known[name] = advert
            self._on_found(advert)

    def _forget(self, name: str) -> None:
        advert = self._known.get(name)
        if advert is not None:
            self._known[name] = None
            self._on_removed(advert)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _has_text(info: AsyncServiceInfo, zeroconf: Zeroconf) -> bool:
    """Whether a record that has not run out is in the cache. All we need is in its text: zeroconf asks for an address
    record too, which a member that is advertised by name does not have."""
    return info.load_from_cache(zeroconf) or bool(info.text)
