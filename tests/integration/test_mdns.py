"""Real multicast DNS on loopback: found, changed, gone, and what is ignored."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from zeroconf import ServiceInfo

from mesh.discovery.find import find_broker
from mesh.discovery.mdns import Advertiser, Browser, MdnsSession, MdnsSource
from mesh.discovery.multicast import multicast_problem
from mesh.discovery.records import SERVICE_TYPES, Advert

LOOPBACK = ["127.0.0.1"]
MESH = f"test-{os.getpid()}"  # loopback is shared with whatever else runs here
OTHER_MESH = f"{MESH}-other"
EPOCH = f"{os.getpid():x}"
NODE = Advert("node", "gpu-1", EPOCH, ("tcp://127.0.0.1:5560",), MESH, models=("demo",))
BROKER = Advert("broker", "front", EPOCH, ("tcp://127.0.0.1:5555",), MESH)


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an async test in a loop of its own, with a limit."""

    def run() -> None:
        async def limited() -> None:
            async with asyncio.timeout(20):
                await test()

        asyncio.run(limited())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@asynccontextmanager
async def session() -> AsyncIterator[MdnsSession]:
    opened = MdnsSession(LOOPBACK)
    await opened.start()
    assert opened.problems == []
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def advertised(advert: Advert, **options: int) -> AsyncIterator[Advertiser]:
    """As another process would: with a session of its own."""
    async with session() as own:
        advertiser = Advertiser(own, **options)
        await advertiser.start(advert)
        yield advertiser
        await advertiser.close()


class Watcher:
    """A browser whose events can be awaited."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[tuple[str, Advert]] = asyncio.Queue()
        self.browser: Browser

    @classmethod
    @asynccontextmanager
    async def watching(cls, kind: Any = "node", mesh: str = MESH, refresh_s: float = 10.0) -> AsyncIterator[Watcher]:
        async with session() as own:
            watcher = cls()
            found, removed = watcher._put("found"), watcher._put("removed")
            watcher.browser = Browser(own, kind, mesh, found, removed, refresh_s=refresh_s)
            await watcher.browser.start()
            yield watcher
            await watcher.browser.close()

    async def next(self, within_s: float = 2.0) -> tuple[str, Advert]:
        async with asyncio.timeout(within_s):
            return await self.events.get()

    def _put(self, what: str) -> Callable[[Advert], None]:
        return lambda advert: self.events.put_nowait((what, advert))


@scenario
async def test_a_node_that_is_there_is_found_and_its_goodbye_is_noticed() -> None:
    async with Watcher.watching() as watcher:
        async with advertised(NODE):
            assert await watcher.next() == ("found", NODE)
        assert await watcher.next() == ("removed", NODE)


@scenario
async def test_a_newcomer_finds_a_node_in_a_tenth_of_a_second_even_when_others_just_asked() -> None:
    async with advertised(NODE):
        for _ in range(3):
            async with Watcher.watching() as watcher:
                assert await watcher.next(within_s=0.1) == ("found", NODE)


@scenario
async def test_a_change_is_told() -> None:
    async with Watcher.watching() as watcher, advertised(NODE) as advertiser:
        await watcher.next()
        changed = replace(NODE, models=("demo", "phi-3"))
        await advertiser.update(changed)
        assert await watcher.next() == ("found", changed)


@scenario
async def test_two_nodes_with_one_name_are_two_nodes() -> None:
    twin = replace(NODE, epoch=f"{EPOCH}-twin", addresses=("tcp://127.0.0.1:5561",))
    async with Watcher.watching() as watcher, advertised(NODE):
        assert await watcher.next() == ("found", NODE)
        async with advertised(twin):
            assert await watcher.next() == ("found", twin)
        assert await watcher.next() == ("removed", twin)
        assert watcher.browser.adverts == [NODE]


@scenario
async def test_another_mesh_another_kind_and_garbage_are_ignored_and_counted() -> None:
    async with Watcher.watching() as watcher, session() as hostile:
        async with advertised(replace(NODE, mesh=OTHER_MESH)), advertised(BROKER):
            assert hostile.zeroconf is not None
            name = f"garbage-{EPOCH}.{SERVICE_TYPES['node']}"
            garbage = ServiceInfo(SERVICE_TYPES["node"], name, port=0, properties={b"v": b"\xff", b"id": None})
            await hostile.zeroconf.async_register_service(garbage, cooperating_responders=True)
            async with advertised(replace(NODE, epoch=f"{EPOCH}-last")):
                assert (await watcher.next())[1].epoch == f"{EPOCH}-last"
        async with asyncio.timeout(3):
            while not {"other_mesh", "bad_text"} <= set(watcher.browser.ignored):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await watcher.next())[1].epoch == f"{EPOCH}-last"


@scenario
async def test_a_host_that_lost_power_is_forgotten_when_its_record_runs_out() -> None:
    async with Watcher.watching(refresh_s=0.1) as watcher, session() as own:
        await Advertiser(own, ttl_s=1).start(NODE)
        assert await watcher.next() == ("found", NODE)
        assert own.zeroconf is not None
        own.zeroconf.zeroconf.registry.async_remove(own.zeroconf.zeroconf.registry.async_get_service_infos())
        assert await watcher.next(within_s=8) == ("removed", NODE)


@scenario
async def test_a_node_that_is_advertised_by_name_is_found() -> None:
    named = replace(NODE, addresses=("tcp://gpu.example.org:5560",))
    async with Watcher.watching() as watcher, advertised(named):
        assert await watcher.next() == ("found", named)


@scenario
async def test_a_source_tells_addresses_and_hides_a_restart_on_the_same_port() -> None:
    events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with session() as own, AsyncExitStack() as first:
        source = MdnsSource(own, "node", MESH)
        await source.start(
            lambda address, advert: events.put_nowait((address, advert.epoch if advert else "")),
            lambda address: events.put_nowait((address, "gone")),
        )
        await first.enter_async_context(advertised(NODE))
        assert await events.get() == (NODE.addresses[0], NODE.epoch)
        async with advertised(replace(NODE, epoch=f"{EPOCH}-second")):
            assert await events.get() == (NODE.addresses[0], f"{EPOCH}-second")
            await first.aclose()
            assert f"1 nodes of mesh '{MESH}'" in source.describe()
        assert await events.get() == (NODE.addresses[0], "gone")
        await source.close()


@scenario
async def test_a_client_finds_every_broker_and_prefers_them_to_nodes() -> None:
    second = replace(BROKER, epoch=f"{EPOCH}-second", addresses=("tcp://127.0.0.1:5556",))
    async with advertised(NODE), advertised(BROKER), advertised(second):
        found = await find_broker(MESH, interfaces=LOOPBACK)
    assert sorted(found.addresses) == ["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"]


@scenario
async def test_a_client_takes_a_lone_node() -> None:
    async with advertised(NODE):
        assert (await find_broker(MESH, interfaces=LOOPBACK)).addresses == list(NODE.addresses)


@scenario
async def test_a_client_that_finds_nothing_is_told_what_was_tried() -> None:
    async with advertised(replace(BROKER, mesh=OTHER_MESH)):
        found = await find_broker(MESH, timeout_s=0.3, interfaces=[*LOOPBACK, "192.0.2.254"])
    assert found.addresses == []
    asked, failed, *ignored = found.tried
    assert asked == f"multicast DNS on 127.0.0.1, 192.0.2.254 for mesh '{MESH}': 0 members answered"
    assert failed == "multicast on 192.0.2.254: Cannot assign requested address"
    assert any(line.endswith(f"answers: mesh '{OTHER_MESH}'") for line in ignored)


@scenario
async def test_a_network_that_does_not_work_is_a_warning_and_not_a_crash() -> None:
    broken = MdnsSession(["192.0.2.254"])
    await broken.start()
    advertiser = Advertiser(broken)
    await advertiser.start(NODE)
    await advertiser.close()
    await broken.close()
    assert "192.0.2.254: Cannot assign requested address" in broken.describe()


@scenario
async def test_a_send_that_fails_later_becomes_one_line() -> None:
    async with session() as own:
        for _ in range(2):
            logging.getLogger("zeroconf").warning("Error with socket 9: %s", "Network is unreachable")
        assert own.problems == ["multicast could not be sent: Error with socket 9: Network is unreachable"]


def test_multicast_on_loopback_works_here() -> None:
    assert multicast_problem("127.0.0.1") is None


@pytest.mark.parametrize("address", ["192.0.2.254", "fe80::dead"])
def test_multicast_on_an_address_that_is_not_ours_is_a_problem(address: str) -> None:
    assert multicast_problem(address)
