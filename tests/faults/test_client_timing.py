"""How soon a client notices a silent server, and how long it is held up by one that takes connections and says nothing."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from mesh import Client
from tests.support.fake_server import LIVENESS, FakeServer, Request

HEARTBEAT_S = 0.4
MARGIN_S = 0.25


@pytest.mark.parametrize("part_of_a_beat", [0.2, 0.6, 0.9])
def test_silence_is_noticed_when_the_lease_ends_and_not_at_the_next_heartbeat(part_of_a_beat: float) -> None:
    """A stopped broker cost its streams up to a heartbeat more than the lease."""

    def say_something_later_and_fall_silent(request: Request) -> None:
        def speak() -> None:
            request.tokens(3)
            request.server.is_silent = True

        asyncio.get_running_loop().call_later(part_of_a_beat * HEARTBEAT_S, speak)

    with (
        FakeServer(say_something_later_and_fall_silent, heartbeat_s=HEARTBEAT_S) as first,
        FakeServer() as second,
        Client([first.address, second.address]) as client,
    ):
        stream = client.stream("hello")
        next(stream)
        silent_since = time.monotonic()
        next(stream)
        assert time.monotonic() - silent_since < HEARTBEAT_S * LIVENESS + MARGIN_S


def test_a_stopped_broker_does_not_hold_up_the_dial_to_its_neighbour() -> None:
    """A process under SIGSTOP has a kernel that still accepts connections. Each dial waited for it for half of the time
    there was: 15 s, when streams had to go on."""
    with socket.socket() as stopped, FakeServer() as alive:
        stopped.bind(("127.0.0.1", 0))
        stopped.listen()
        addresses = [f"127.0.0.1:{stopped.getsockname()[1]}", alive.address]
        with Client(addresses, connect_timeout_s=30) as client:
            began = time.monotonic()
            assert client.generate("hello", max_tokens=5).token_ids
            assert time.monotonic() - began < 2.0
