"""How soon a client acts: on silence, on a server that only accepts connections, on room where there was none."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from mesh import Client
from tests.support.eventually import eventually
from tests.support.fake_server import LIVENESS, FakeServer, Request

pytestmark = pytest.mark.usefixtures("plain_text")

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


def test_what_was_turned_away_goes_as_soon_as_an_answer_of_ours_has_made_room() -> None:
    """A batch of ten times what may queue sat out its pauses while the mesh had nothing to do."""

    def take_one_at_a_time(request: Request) -> None:
        if request.body["prompt"] == "first":
            server.held = request
        elif server.is_full:
            request.reject("overloaded", retry_after_s=30)
        else:
            request.finish()

    class Server(FakeServer):
        is_full = True
        held: Request

    with Server(take_one_at_a_time) as server, Client(server.address) as client:
        with client.as_completed(["first", "second"], max_tokens=5) as results:
            eventually(lambda: len(server.requests) == 2)
            server.is_full = False
            server.do(server.held.finish)
            began = time.monotonic()
            assert {index for index, _ in results} == {0, 1}
        assert time.monotonic() - began < 1.0
