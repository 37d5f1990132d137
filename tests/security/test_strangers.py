"""Who never finishes a handshake, or comes only to leave, keeps nobody else from working."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mesh import Client
from scripts.chaostool.member import memory_of
from tests.support.eventually import eventually
from tests.support.processes import Member, Mesh, wait_for_nodes

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01CURVE".ljust(54, b"\0")
MAX_GROWTH_BYTES = 32 << 20


@pytest.fixture
def broker(mesh: Mesh) -> Iterator[Member]:
    broker = mesh.broker("b", mesh.node("n"))
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
    yield broker
    assert broker.process.poll() is None


def call(broker: Member) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(broker.address.rpartition(":")[2])), timeout=10)


def open_files(member: Member) -> int:
    return len(os.listdir(f"/proc/{member.pid}/fd"))


def test_those_who_send_a_byte_at_a_time_are_cut_off_in_seconds(broker: Member) -> None:
    """A slow loris: each byte is progress, and the handshake as a whole has a time limit."""
    before = open_files(broker)
    with ExitStack() as stack, Client(broker.address) as client:
        callers = deque(stack.enter_context(call(broker)) for _ in range(200))
        for at in range(len(GREETING)):
            for caller in list(callers):
                try:
                    caller.sendall(GREETING[at : at + 1])
                except OSError:
                    callers.remove(caller)
            assert client.generate("meanwhile", max_tokens=4).text
        eventually(lambda: open_files(broker) < before + 100, within_s=10)


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_connections_opened_and_dropped_leave_nothing_behind(broker: Member, count: int) -> None:
    with Client(broker.address) as client:
        client.generate("warm", max_tokens=4)
        files, memory = open_files(broker), memory_of(broker.pid)
        for number in range(count):
            call(broker).close()
            if number % 200 == 0:
                began = time.monotonic()
                assert client.generate(f"meanwhile {number}", max_tokens=4).text
                assert time.monotonic() - began < 5
        eventually(lambda: open_files(broker) <= files + 5, within_s=10)
        assert memory_of(broker.pid) - memory < MAX_GROWTH_BYTES
        assert client.generate("after", max_tokens=4).text
    assert broker.log_text().count("\n") < 300
