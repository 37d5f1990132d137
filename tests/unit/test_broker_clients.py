"""Clients come, ask and go: the handshake, the lease, the limits, and what is said to those who break the rules."""

from __future__ import annotations

import pytest

from broker.client_side import MAX_HOPS
from mesh.codec import encode
from mesh.messages import (
    Admin,
    Bye,
    Cancel,
    Hello,
    Ping,
    Pong,
    Query,
    Refused,
    RequestHead,
    Submit,
    Tokens,
    Welcome,
)
from tests.support.broker_harness import BrokerHarness


@pytest.fixture
def broker() -> BrokerHarness:
    return BrokerHarness()


def refusals(broker: BrokerHarness, client: str = "alice") -> list[str]:
    return [message.code for message in broker.heard_by(client, Refused)]


def test_hello_is_answered_with_the_rules_of_the_house(broker: BrokerHarness) -> None:
    broker.joins("a", slots=4)
    broker.joins("b", slots=8)
    broker.greets("alice")

    (welcome,) = broker.heard_by("alice", Welcome)
    assert (welcome.kind, welcome.name, welcome.mesh) == ("broker", "broker", "default")
    assert (welcome.heartbeat_s, welcome.liveness, welcome.max_batch) == (0.5, 3, 1024)
    assert [(model.name, model.slots_total) for model in welcome.models] == [("phi3", 12)]


def test_another_mesh_is_refused(broker: BrokerHarness) -> None:
    broker.greets("alice", mesh="other")

    assert refusals(broker) == ["wrong_mesh"]
    broker.from_client("alice", Ping(1))
    assert refusals(broker) == ["wrong_mesh", "no_hello"]


def test_another_version_is_refused(broker: BrokerHarness) -> None:
    broker.raw_from_client("alice", b"\x92\x63\x01")

    assert refusals(broker) == ["version_mismatch"]


@pytest.mark.parametrize("message", [Ping(1), Submit(()), Cancel((1,)), Query(1), Admin(1, "drain", "a"), Bye()])
def test_nothing_is_done_before_hello(broker: BrokerHarness, message: Ping) -> None:
    broker.joins("a")
    broker.from_client("stranger", message)

    assert refusals(broker, "stranger") == ["no_hello"]


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"garbage"],
        [b"\x93\x01\x03\xc0"],
        [encode(Welcome("node", "n", "i", 1, "default", 1, 1, 1, 1))],
        [encode(Submit((RequestHead(1, 1),)))],
        [encode(Query(1, "everything"))],
        [encode(Admin(1, "explode", "a"))],
        [encode(Hello("king", "alice", 1, "default"))],
    ],
)
def test_a_malformed_message_is_counted_and_answered_and_the_client_lives_on(
    broker: BrokerHarness, frames: list[bytes]
) -> None:
    broker.joins("a")
    broker.greets("alice")
    broker.raw_from_client("alice", *frames)

    assert refusals(broker) == ["bad_message"]
    assert broker.counters["malformed"] == 1
    assert broker.where_is(broker.submits_one("alice")) == "a"


@pytest.mark.parametrize("frames", [[], [b"alice"], [b"alice", b""], [b"", b"", b""], [b"alice", b"no delimiter"]])
def test_frames_without_an_envelope_kill_nothing(broker: BrokerHarness, frames: list[bytes]) -> None:
    broker.core.from_client(frames, broker.now)
    broker.core.take_actions(broker.now)

    assert broker.counters["malformed"] == 1


def test_a_pong_sums_up_all_nodes_and_counts_what_is_yours(broker: BrokerHarness) -> None:
    broker.joins("a", slots=2)
    broker.joins("b", slots=2)
    broker.submits("alice", 5)
    broker.submits("bob", 3)
    broker.time_passes(0.1)
    broker.from_client("alice", Ping(9))

    pong = broker.heard_by("alice", Pong)[-1]
    assert (pong.sequence, pong.state) == (9, "ready")
    (load,) = pong.models
    assert (load.slots_total, load.num_running, load.num_waiting, load.num_yours) == (4, 8, 2, 5)


def test_without_a_ready_node_the_broker_is_joining(broker: BrokerHarness) -> None:
    broker.greets("alice")
    broker.from_client("alice", Ping(1))

    assert broker.heard_by("alice", Pong)[-1].state == "joining"


def test_a_silent_client_is_forgotten_and_all_its_requests_are_cancelled(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=2)
    requests = broker.submits("alice", 5)
    broker.submits("bob")
    broker.silent_clients.add("alice")
    broker.time_passes(broker.config.lease_s + 0.1)

    assert [broker.where_is(request) for request in requests] == [None] * 5
    (cancel,) = [message for _, message in node.received if isinstance(message, Cancel)]
    assert sorted(cancel.request_ids) == [1, 2, 3]
    assert broker.counters["abandoned"] == 5
    broker.from_client("alice", Ping(1))
    assert refusals(broker) == ["no_hello"]


def test_a_large_submit_of_a_forgotten_client_is_told_to_greet_too(broker: BrokerHarness) -> None:
    broker.joins("a")
    heads = tuple(RequestHead(number, 1, affinity="x" * 100) for number in range(200))
    broker.from_client("stranger", Submit(heads), *[b"body"] * 200)

    assert refusals(broker, "stranger") == ["no_hello"]
    assert not broker.counters.get("malformed")


def test_a_beating_client_may_be_idle_for_ever(broker: BrokerHarness) -> None:
    broker.joins("a")
    broker.greets("alice")
    broker.time_passes(20)

    assert broker.where_is(broker.submits_one("alice")) == "a"
    assert refusals(broker) == []


@pytest.mark.parametrize("way", ["says bye", "is unreachable", "reads too slowly"])
def test_a_client_that_leaves_takes_its_requests_along(broker: BrokerHarness, way: str) -> None:
    broker.joins("a", slots=1)
    requests = broker.submits("alice", 4)
    if way == "says bye":
        broker.from_client("alice", Bye())
    elif way == "is unreachable":
        broker.unreachable.add("alice")
        broker.hears_tokens("a", requests[0])
    else:
        broker.core.client_slow(b"alice")
        broker.settle()

    assert [broker.where_is(request) for request in requests] == [None] * 4
    assert broker.core.status(broker.now).num_clients == 0
    assert ("clients_shed" in broker.counters) == (way == "reads too slowly")


def test_the_last_words_of_a_node_to_a_client_that_left_are_dropped_and_counted(broker: BrokerHarness) -> None:
    broker.joins("a")
    request = broker.submits_one("alice")
    broker.from_client("alice", Bye())
    broker.hears_tokens("a", request, done=True)

    assert broker.sent_to_client(request) == []
    assert broker.counters["late_frames"] == 1


def test_another_process_on_the_same_connection_starts_from_nothing(broker: BrokerHarness) -> None:
    broker.joins("a")
    request = broker.submits_one("alice")
    broker.greets("alice", epoch=6)

    assert broker.where_is(request) is None


def test_hello_again_changes_nothing(broker: BrokerHarness) -> None:
    broker.joins("a")
    request = broker.submits_one("alice")
    broker.greets("alice")

    assert broker.where_is(request) == "a"
    assert len(broker.heard_by("alice", Welcome)) == 2


# --- a broker in front of this one ---


def test_clients_behind_a_broker_are_told_apart_by_their_route(broker: BrokerHarness) -> None:
    broker.joins("a", slots=8)
    broker.greets("zone", role="broker")
    mine, yours = broker.submits("zone/alice", 2), broker.submits("zone/bob", 2)
    broker.hears_tokens("a", *mine, done=True)

    assert [len(broker.sent_to_client(request)) for request in mine + yours] == [1, 1, 0, 0]
    assert broker.heard_by("zone/alice", Tokens)
    assert broker.where_is(yours[0]) == "a"


def test_a_client_behind_a_broker_is_forgotten_with_its_last_request(broker: BrokerHarness) -> None:
    broker.joins("a")
    broker.greets("zone", role="broker")
    request = broker.submits_one("zone/alice")
    assert len(broker.core._clients.hops[b"zone"].clients) == 2
    broker.hears_tokens("a", request, done=True)

    assert len(broker.core._clients.hops[b"zone"].clients) == 1


def test_the_lease_of_a_broker_covers_all_clients_behind_it(broker: BrokerHarness) -> None:
    broker.joins("a")
    broker.greets("zone", role="broker")
    requests = broker.submits("zone/alice") + broker.submits("zone/bob")
    broker.silent_clients.add("zone")
    broker.time_passes(broker.config.lease_s + 0.1)

    assert [broker.where_is(request) for request in requests] == [None, None]


def test_a_resubmission_behind_a_broker_survives_its_own_replacement(broker: BrokerHarness) -> None:
    broker.joins("a")
    broker.greets("zone", role="broker")
    request = broker.submits_one("zone/alice")
    broker.resubmits(request.again())
    broker.hears_tokens("a", request.again(), done=True)

    assert len(broker.sent_to_client(request.again())) == 1


def test_brokers_in_a_circle_are_told(broker: BrokerHarness) -> None:
    broker.joins("a")
    broker.greets("zone", role="broker")
    deep = "/".join(["zone"] * (MAX_HOPS + 1))
    broker.from_client(deep, Submit((RequestHead(1, 1),)), b"\0")

    assert refusals(broker, deep) == ["bad_message"]


def test_a_broker_that_serves_us_cannot_be_served_by_us(broker: BrokerHarness) -> None:
    broker.joins("zone", kind="broker", epoch=4242)
    broker.greets("zone", role="broker", epoch=4242)

    assert refusals(broker, "zone") == ["forbidden"]


def test_drain_of_the_broker_itself_hands_everything_over(broker: BrokerHarness) -> None:
    broker.joins("a", slots=1)
    requests = broker.submits("alice", 4)
    assert broker.drains("broker").ok

    assert [broker.where_is(request) for request in requests] == [None] * 4
    assert all(len(broker.sent_to_client(request)) == 1 for request in requests)
    late = broker.submits_one("alice")
    assert [message.code for message in broker.sent_to_client(late)] == ["not_ready"]
    broker.from_client("alice", Ping(3))
    assert broker.heard_by("alice", Pong)[-1].state == "draining"

    assert broker.drains("broker", "undrain").ok
    assert broker.where_is(broker.submits_one("alice")) == "a"
