"""The callers in the status report: who is one, what they have, and who is told of them."""

from __future__ import annotations

from typing import Any

from broker.callers import MAX_REPORTED
from mesh.codec import encode
from mesh.messages import Hello, Query, RequestHead, Submit
from mesh.report import ClientReport, StatusReport
from tests.support.broker_harness import BrokerHarness


def callers(broker: BrokerHarness) -> dict[str, ClientReport]:
    return {client.name: client for client in broker.report().clients}


def with_own_key(broker: BrokerHarness, route: str, user: str, message: Any, *bodies: bytes) -> None:
    """What a client says that is no member."""
    broker.clients.setdefault(route, [])
    broker.core.from_client([route.encode(), b"", encode(message), *bodies], broker.now, user)
    broker.settle()


def test_a_caller_is_reported_with_what_waits_runs_and_was_given() -> None:
    broker = BrokerHarness(prefetch=1)
    broker.joins("a", slots=2)
    first, *_ = broker.submits("alice", 5)
    broker.hears_tokens("a", first)
    broker.hears_tokens("a", first, done=True)

    alice = callers(broker)["alice"]
    assert (alice.kind, alice.has_own_key, alice.num_connections) == ("client", False, 1)
    assert (alice.num_in_flight, alice.num_queued) == (3, 1)  # two slots and one of prefetch
    assert alice.num_tokens == 2


def test_connections_of_one_name_and_of_one_key_are_one_caller_each() -> None:
    broker = BrokerHarness()
    broker.joins("a", slots=8)
    for route in ("gw-1", "gw-2"):
        broker.greets(route, name="gateway:support")
        broker.submits(route, 2)
    for route in ("x", "y"):
        with_own_key(broker, route, "client:ci", Hello("client", f"whatever {route}", 5, "default"))
        with_own_key(broker, route, "client:ci", Submit((RequestHead(1, 1),)), b"\0body")

    support, ci = callers(broker)["gateway:support"], callers(broker)["ci"]
    assert (support.num_connections, support.num_in_flight, support.has_own_key) == (2, 4, False)
    assert (ci.num_connections, ci.num_in_flight, ci.has_own_key) == (2, 2, True)


def test_what_comes_through_another_broker_counts_as_that_brokers() -> None:
    broker = BrokerHarness(prefetch=1)
    broker.joins("a", slots=1)
    broker.greets("zone", role="broker")
    broker.submits("zone/anna", 2)
    broker.submits("zone/boris", 2)

    zone = callers(broker)["zone"]
    assert (zone.kind, zone.num_in_flight, zone.num_queued) == ("broker", 2, 2)


def test_those_with_the_most_work_are_reported_however_many_there_are() -> None:
    broker = BrokerHarness()
    broker.joins("a", slots=8)
    for number in range(MAX_REPORTED + 20):
        broker.greets(f"idle-{number}")
    broker.submits("zzz", 3)

    clients = broker.report().clients
    assert len(clients) == MAX_REPORTED
    assert clients[0].name == "zzz"


def test_only_a_member_is_told_who_the_others_are() -> None:
    broker = BrokerHarness()
    with_own_key(broker, "x", "client:ci", Hello("client", "x", 5, "default"))
    with_own_key(broker, "x", "client:ci", Query(1))

    assert StatusReport.from_body(broker.clients["x"][-1][1][0]).clients == ()
    assert set(callers(broker)) == {"ci", "operator"}


def test_a_report_from_before_callers_were_in_it_is_understood() -> None:
    old = StatusReport(kind="broker", name="b", node_id="x").model_dump(exclude={"clients"})

    assert StatusReport.model_validate(old).clients == ()
