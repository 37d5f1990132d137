"""A broker with real sockets, between raw clients and fake nodes."""

from __future__ import annotations

import time

import pytest

from mesh.messages import (
    Accepted,
    Admin,
    Bye,
    Cancel,
    Done,
    Lost,
    Query,
    Refused,
    Rejected,
    Report,
    Tokens,
)
from mesh.report import StatusReport
from tests.support.broker_client import RawClient, until
from tests.support.broker_world import World, in_world
from tests.support.fake_node import FakeNode

# --- what a client sees is the same before a node, a broker, and a broker behind a broker ---

SERVERS = ("node", "broker", "broker behind a broker")


async def served_by(world: World, server: str, node: FakeNode) -> RawClient:
    address = node.address
    for _ in range(SERVERS.index(server)):
        address = (await world.broker(address, heartbeat_s=0.1)).address
    return await world.client(address, slots=node.slots)


@pytest.mark.parametrize("server", SERVERS)
def test_requests_are_answered_whatever_stands_between(server: str) -> None:
    async def story(world: World) -> None:
        node = world.node("a", slots=4, answers_with=3)
        client = await served_by(world, server, node)
        client.submits(*range(1, 101))

        await until(lambda: len(client.entries) == 100)
        assert sorted(entry.request_id for entry in client.entries) == list(range(1, 101))
        assert all(entry.token_ids == (0, 1, 2) and entry.end is not None for entry in client.entries)
        accepted = [i for message in client.of(Accepted) for i in message.request_ids]
        assert len(accepted) == len(set(accepted)) >= 90  # all that had to wait, and once
        assert set(accepted) <= set(range(1, 101))

    in_world(story)


@pytest.mark.parametrize("server", SERVERS)
def test_tokens_stream_and_cancel_reaches_the_node(server: str) -> None:
    async def story(world: World) -> None:
        node = world.node("a", slots=4)
        client = await served_by(world, server, node)
        client.submits(1, 2)
        await until(lambda: len(node.requests) == 2)
        for _ in range(3):
            node.says(node.requests, 2)
        await until(lambda: len(client.entries) == 6)
        assert [entry.index for entry in client.entries if entry.request_id == 1] == [0, 2, 4]

        client.sends(Cancel((1,)))
        await until(lambda: [held.head.request_id for held in node.requests] == [2])
        node.says(node.requests, 1, ends=True)
        await until(lambda: any(message.finished for message in client.of(Tokens)))

    in_world(story)


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_that_says_goodbye_leaves_nothing_running(server: str) -> None:
    async def story(world: World) -> None:
        node = world.node("a")
        client = await served_by(world, server, node)
        client.submits(1, 2, 3)
        await until(lambda: len(node.requests) == 3)
        client.sends(Bye())
        await until(lambda: not node.requests)

    in_world(story)


@pytest.mark.parametrize("server", SERVERS[1:])
def test_two_clients_do_not_hear_each_other(server: str) -> None:
    async def story(world: World) -> None:
        node = world.node("a", slots=8)
        alice = await served_by(world, server, node)
        bob = await world.client(world.brokers[-1].address, slots=8)
        alice.submits(1)
        bob.submits(1)
        await until(lambda: len(node.requests) == 2)
        node.says(node.requests[:1], 5, ends=True)
        node.says(node.requests, 7, ends=True)
        await until(lambda: alice.entries and bob.entries)
        assert sorted(len(client.entries[0].token_ids) for client in (alice, bob)) == [5, 7]
        assert len(alice.entries) == len(bob.entries) == 1

    in_world(story)


# --- failures ---


def test_a_killed_node_is_noticed_at_once() -> None:
    async def story(world: World) -> None:
        node = world.node("a")
        broker = await world.broker(node.address)
        client = await world.client(broker.address, slots=4)
        client.submits(1, 2)
        await until(lambda: len(node.requests) == 2)
        killed_at = time.monotonic()
        node.close()
        (lost,) = await until(lambda: client.of(Lost))

        assert time.monotonic() - killed_at < 0.1
        assert lost.requests == ((1, 1), (2, 1))
        assert lost.node == "a"

    in_world(story)


@pytest.mark.parametrize("num_brokers", [1, 2])
def test_a_silent_node_is_lost_when_its_lease_ends(num_brokers: int) -> None:
    """Its sockets are open and nothing comes: as under SIGSTOP."""

    async def story(world: World) -> None:
        node = world.node("a")
        address = node.address
        for _ in range(num_brokers):
            address = (await world.broker(address, heartbeat_s=0.1)).address
        client = await world.client(address, slots=4)
        client.submits(1)
        await until(lambda: node.requests)
        node.is_silent = True
        silent_at = time.monotonic()
        await until(lambda: client.of(Lost))
        assert 0.15 < time.monotonic() - silent_at < 1.0

    in_world(story)


def test_a_node_that_comes_back_on_its_address_is_used_again() -> None:
    async def story(world: World) -> None:
        first = world.node("a")
        broker = await world.broker(first.address)
        client = await world.client(broker.address, slots=4)
        first.close()
        world.node("a", slots=6, epoch=2, address=first.address, answers_with=1)
        await world.sees_slots(client, 6)
        client.submits(1)
        await until(lambda: client.entries)

    in_world(story)


def test_work_goes_on_at_another_node() -> None:
    async def story(world: World) -> None:
        first, second = world.node("a", slots=8), world.node("b", slots=1, answers_with=2)
        broker = await world.broker(first.address, second.address)
        client = await world.client(broker.address, slots=9)
        client.submits(1)
        await until(lambda: first.requests)
        first.close()
        await until(lambda: client.of(Lost))
        client.submits(1, attempt=2)
        await until(lambda: client.entries)
        assert (client.entries[0].attempt, client.entries[0].end and client.entries[0].end.node) == (2, "b")

    in_world(story)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_client_that_vanishes_leaves_nothing_running(is_killed: bool) -> None:
    async def story(world: World) -> None:
        node = world.node("a")
        broker = await world.broker(node.address, heartbeat_s=0.1)
        client = await world.client(broker.address, slots=4, beat_s=0.0)
        client.submits(1)
        await until(lambda: node.requests)
        if is_killed:
            client.close()
        await until(lambda: not node.requests)
        assert broker.core.status(time.monotonic()).num_clients == 0

    in_world(story)


def test_a_client_that_does_not_read_is_shed_and_others_are_served() -> None:
    async def story(world: World) -> None:
        node = world.node("a", slots=64)
        broker = await world.broker(node.address, heartbeat_s=5.0, stall_s=60.0)
        slow = await world.client(broker.address, slots=64, beat_s=0.0)
        slow.submits(1)
        await until(lambda: node.requests)
        slow.stops_reading()
        (held,) = node.requests

        def is_shed() -> bool:
            for _ in range(500):
                node._send(held.route, Tokens((), 1), b"\0" + bytes(2_000))
            return not node.requests

        await until(is_shed, within_s=30)
        status = broker.core.status(time.monotonic())
        assert status.counters["clients_shed"] == 1
        quick = await world.client(broker.address, slots=64)
        quick.submits(1)
        await until(lambda: node.requests)

    in_world(story)


def test_garbage_kills_nobody() -> None:
    async def story(world: World) -> None:
        node = world.node("a", answers_with=1)
        broker = await world.broker(node.address)
        client = await world.client(broker.address, slots=4)
        for frames in ((b"\xc1",), (b"",), (b"\x93\x01\x03\x90", b"one too many"), (b"\xdd\xff\xff\xff\xff",)):
            client.sends_raw(*frames)
        await until(lambda: len(client.of(Refused)) == 4)
        assert {message.code for message in client.of(Refused)} == {"bad_message"}
        client.submits(1)
        await until(lambda: client.entries)

    in_world(story)


# --- operators ---


async def status(client: RawClient) -> StatusReport:
    client.heard.clear()
    client.sends(Query(1))
    await until(lambda: client.of(Report))
    return next(StatusReport.from_body(body[0]) for message, body in client.heard if isinstance(message, Report))


def test_the_status_report_shows_nodes_and_those_that_are_missing() -> None:
    async def story(world: World) -> None:
        node, stranger = world.node("a"), FakeNode("b", mesh="another")
        broker = await world.broker(node.address, stranger.address, "127.0.0.1:9")
        client = await world.client(broker.address, slots=4)
        client.submits(1)
        await until(lambda: node.requests)

        async def complete() -> StatusReport | None:
            report = await status(client)
            return report if all(one.state == "ready" or one.note for one in report.nodes) else None

        while (report := await complete()) is None:
            pass
        by_address = {one.address: one for one in report.nodes}
        assert by_address[node.address].state == "ready"
        assert (by_address[node.address].name, by_address[node.address].num_running) == ("a", 1)
        assert "another" in by_address[stranger.address].note
        assert "refused" in by_address["tcp://127.0.0.1:9"].note
        assert (report.kind, report.address, report.num_in_flight) == ("broker", broker.address, 1)
        assert report.counters["accepted"] == 1
        stranger.close()

    in_world(story)


def test_two_addresses_of_a_node_are_one_node() -> None:
    async def story(world: World) -> None:
        node = world.node("a")
        other = node.also_at("tcp://127.0.0.2:*")
        broker = await world.broker(node.address, other)
        client = await world.client(broker.address, slots=4)
        assert [one.state for one in (await status(client)).nodes] == ["ready"]

    in_world(story)


def test_draining_hands_the_work_over() -> None:
    async def story(world: World) -> None:
        node = world.node("a", slots=8)
        other = world.node("b", slots=1)
        broker = await world.broker(node.address, other.address)
        client = await world.client(broker.address, slots=9)
        client.submits(1)
        await until(lambda: node.requests)
        client.sends(Admin(5, "drain", "a"))
        await until(lambda: client.of(Done))
        await until(lambda: client.of(Lost))
        client.submits(1, attempt=2)
        await until(lambda: other.requests)
        assert client.of(Done)[0].ok
        states = {one.name: one.state for one in (await status(client)).nodes}
        assert (states["a"], states["b"]) == ("draining", "busy")

    in_world(story)


def test_a_broker_that_stops_sends_its_clients_elsewhere() -> None:
    async def story(world: World) -> None:
        node = world.node("a", slots=1)
        broker = await world.broker(node.address)
        client = await world.client(broker.address)
        client.submits(1, 2, 3, 4)
        await until(lambda: len(node.requests) == 2)
        await world.brokers.pop().stop()
        await until(lambda: client.of(Lost))
        assert sorted(client.of(Lost)[0].requests) == [(1, 1), (2, 1), (3, 1), (4, 1)]
        await until(lambda: not node.requests)

    in_world(story)


def test_without_a_node_clients_are_told_to_come_back() -> None:
    async def story(world: World) -> None:
        broker = await world.broker()
        client = await world.client(broker.address, slots=0)
        client.submits(1)
        await until(lambda: client.of(Rejected))
        assert (client.of(Rejected)[0].code, client.of(Rejected)[0].retry_after_s) == ("not_ready", 1.0)

    in_world(story)
