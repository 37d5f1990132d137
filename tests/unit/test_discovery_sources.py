"""Static lists and DNS names as sources of members. The resolver is the loop's own, answering from a table."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from mesh.discovery.addresses import BadAddress
from mesh.discovery.dns import DnsSource, resolve
from mesh.discovery.find import find_broker
from mesh.discovery.records import Advert
from mesh.discovery.static import StaticSource


class Heard:
    """What a source told."""

    def __init__(self) -> None:
        self.there: list[str] = []

    def found(self, address: str, advert: Advert | None) -> None:
        self.there.append(address)

    def gone(self, address: str) -> None:
        self.there.remove(address)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def answer_with(monkeypatch: pytest.MonkeyPatch, table: list[list[str]]) -> None:
    """Each question takes the next answer; the last one stays. An empty answer is a failure."""

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        answer = table.pop(0) if len(table) > 1 else table[0]
        if not answer:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(0, 0, 0, "", (address, port)) for address in answer]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


def test_a_static_list_is_told_once_and_cleaned_up() -> None:
    async def scenario() -> None:
        heard = Heard()
        source = StaticSource(["a:1", "tcp://a:1", "[::1]:2"])
        await source.start(heard.found, heard.gone)
        await source.close()
        assert heard.there == ["tcp://a:1", "tcp://[::1]:2"]
        assert source.describe() == "static list: tcp://a:1, tcp://[::1]:2"

    asyncio.run(scenario())


def test_a_wrong_address_in_a_list_is_an_error_at_once() -> None:
    with pytest.raises(BadAddress, match="has no port"):
        StaticSource(["a"])


def test_a_name_gives_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        answer_with(monkeypatch, [["10.0.0.1", "2001:db8::1", "10.0.0.1"]])
        assert await resolve("nodes:5560") == ["tcp://10.0.0.1:5560", "tcp://[2001:db8::1]:5560"]

    asyncio.run(scenario())


def test_a_name_is_followed_and_a_failing_name_server_takes_nobody_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        table = [["10.0.0.1"], ["10.0.0.1", "10.0.0.2"], []]
        answer_with(monkeypatch, table)
        heard = Heard()
        source = DnsSource("nodes:5560", interval_s=0.001)
        await source.start(heard.found, heard.gone)
        await until(lambda: "failure" in source.describe())
        assert heard.there == ["tcp://10.0.0.1:5560", "tcp://10.0.0.2:5560"]

        table.append(["10.0.0.2"])
        await until(lambda: heard.there == ["tcp://10.0.0.2:5560"])
        await source.close()
        assert source.describe() == "DNS name tcp://nodes:5560: tcp://10.0.0.2:5560"

    asyncio.run(scenario())


def test_a_client_with_an_address_asks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        answer_with(monkeypatch, [["10.0.0.1"], []])
        assert (await find_broker(address="broker:5555")).addresses == ["tcp://10.0.0.1:5555"]
        found = await find_broker(address="broker:5555")
        assert found.addresses == []
        assert found.tried == ["address broker:5555: Temporary failure in name resolution"]

    asyncio.run(scenario())
