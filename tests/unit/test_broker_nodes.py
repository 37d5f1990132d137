"""Nodes come, live, fall silent and go: what the broker makes of it."""

from __future__ import annotations

import pytest

from broker.actions import Redial
from mesh.codec import decode, encode
from mesh.messages import Admin, Cancel, Hello, Lost, ModelLoad, NodeFacts, Ping, Refused, Submit
from tests.support.broker_harness import BROKER_ID, BrokerHarness


@pytest.fixture
def broker() -> BrokerHarness:
    return BrokerHarness()


def test_a_new_connection_is_greeted_and_gets_no_work_before_it_answers(broker: BrokerHarness) -> None:
    broker.joins("a", slots=1)
    broker.connects("b")
    requests = broker.submits(count=4)

    assert [broker.where_is(request) for request in requests] == ["a", "a", "queue", "queue"]
    assert broker.node_report("tcp://b:5560").state == "joining"


def test_a_node_whose_model_is_loading_is_joining_until_it_says_so(broker: BrokerHarness) -> None:
    node = broker.joins("a", models={"phi3": 4}, node_id="x")
    node.state = "joining"
    node.facts = NodeFacts(note="loading weights")
    broker.time_passes(0.6)
    assert (broker.node_report("a").state, broker.node_report("a").note) == ("joining", "loading weights")

    node.state = "ready"
    broker.time_passes(0.6)
    assert broker.node_report("a").state == "ready"


def test_a_node_is_pinged_every_heartbeat_or_as_often_as_it_wants(broker: BrokerHarness) -> None:
    usual, quick = broker.joins("usual"), broker.joins("quick", heartbeat_s=0.2)
    broker.time_passes(4.0)

    pings = [sum(1 for _, message in node.received if isinstance(message, Ping)) for node in (usual, quick)]
    assert 7 <= pings[0] <= 9
    assert 17 <= pings[1] <= 21


def test_a_broken_connection_loses_its_requests_at_once_in_one_message_per_client(broker: BrokerHarness) -> None:
    broker.joins("a", slots=8)
    mine, yours = broker.submits("alice", 3), broker.submits("bob", 2)

    broker.dies("a")

    lost = broker.heard_by("alice", Lost)
    assert [message.requests for message in lost] == [tuple(request.key for request in mine)]
    assert lost[0].node == "a"
    assert [message.requests for message in broker.heard_by("bob", Lost)] == [tuple(r.key for r in yours)]
    assert broker.node_report("a").state == "lost"


def test_a_silent_node_is_first_suspect_and_then_lost(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=2)
    request = broker.submits_one()
    node.is_silent = True

    broker.time_passes(0.9)
    assert broker.node_report("a").state == "suspect"
    assert broker.where_is(broker.submits_one()) == "queue"
    assert broker.sent_to_client(request) == []

    broker.time_passes(broker.config.lease_s)
    assert [type(message) for message in broker.sent_to_client(request)] == [Lost]
    assert broker.hung_up[node.peer][1] is Redial.SOON


def test_a_suspect_node_that_speaks_again_is_ready_again(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=2)
    first = broker.submits_one()
    node.is_silent = True
    broker.time_passes(0.9)
    waiting = broker.submits_one()

    node.is_silent = False
    broker.hears_tokens("a", first)

    assert broker.where_is(waiting) == "a"


def test_tokens_are_life_even_without_pongs(broker: BrokerHarness) -> None:
    node = broker.joins("a")
    request = broker.submits_one()
    node.is_silent = True
    for _ in range(20):
        broker.time_passes(0.3)
        broker.hears_tokens("a", request)

    assert broker.where_is(request) == "a"


def test_a_stalled_node_loses_its_work_but_not_its_connection(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=2)
    other = broker.joins("b", slots=2)
    requests = broker.submits(count=4)
    stuck = [request for request in requests if broker.where_is(request) == "a"]

    node.step_age_s = broker.config.stall_s + 1
    broker.time_passes(0.6)

    assert all(broker.sent_to_client(request) for request in stuck)
    assert any(isinstance(message, Cancel) for _, message in node.received)
    assert node.peer not in broker.hung_up
    assert broker.node_report("a").state == "stalled"
    assert other.name == "b"

    node.step_age_s = 0.0
    broker.time_passes(0.6)
    assert broker.node_report("a").state == "ready"


def test_two_processes_with_one_id_are_two_nodes(broker: BrokerHarness) -> None:
    """Cloned machines and containers on two hosts share a hardware address, and so an id. Each Welcome threw the other
    node out with all its work, and so on in turns."""
    broker.joins("a", slots=1, epoch=1, node_id="x")
    first = broker.submits_one()

    broker.joins("b", slots=1, epoch=2, node_id="x")
    second = broker.submits_one()

    assert (broker.where_is(first), broker.where_is(second)) == ("a", "b")
    assert broker.hung_up == {}
    told = broker.drains("x")
    assert not told.ok
    assert "tcp://a:5560, tcp://b:5560" in told.text
    assert broker.drains("tcp://b:5560").ok
    assert broker.node_report("tcp://b:5560").state == "draining"


def test_a_pong_with_a_new_epoch_is_a_restart_too(broker: BrokerHarness) -> None:
    node = broker.joins("a", epoch=1)
    request = broker.submits_one()
    node.epoch = 2
    broker.time_passes(0.6)

    assert broker.hung_up[node.peer][0] == "restarted"
    assert len(broker.sent_to_client(request)) == 1


def test_two_addresses_of_one_process_are_one_node(broker: BrokerHarness) -> None:
    first = broker.joins("a", epoch=1, node_id="x", address="tcp://10.0.0.1:5560")
    second = broker.joins("a-v6", epoch=1, node_id="x", address="tcp://[fe80::1]:5560")

    assert broker.hung_up[second.peer][1] is Redial.DUPLICATE
    assert first.peer not in broker.hung_up
    assert len(broker.report().nodes) == 1


def test_two_nodes_of_one_name_both_work(broker: BrokerHarness) -> None:
    broker.joins("one", slots=1, called="gpu", node_id="x")
    broker.joins("two", slots=1, called="gpu", node_id="y")
    requests = broker.submits(count=2)

    assert {broker.where_is(request) for request in requests} == {"one", "two"}


@pytest.mark.parametrize(
    ("welcome", "redial", "words"),
    [
        ({"mesh": "other"}, Redial.SLOWLY, "mesh 'other'"),
        ({"node_id": BROKER_ID}, Redial.NEVER, "itself"),
    ],
)
def test_who_does_not_belong_here_is_hung_up_on(
    broker: BrokerHarness, welcome: dict[str, str], redial: Redial, words: str
) -> None:
    node = broker.joins("a", **welcome)

    reason, told = broker.hung_up[node.peer]
    assert told is redial
    assert words in reason


def test_a_refusal_is_shown_with_its_reason(broker: BrokerHarness) -> None:
    peer = broker.connects("a")
    broker.core.from_node(peer, _frames(Refused("version_mismatch", "peer speaks protocol 1, this side 2")), broker.now)
    broker.settle()

    assert broker.hung_up[peer][1] is Redial.SLOWLY
    assert "protocol 1" in broker.node_report("tcp://a:5560").note


def test_a_node_that_never_answers_hello_is_given_up(broker: BrokerHarness) -> None:
    peer = broker.connects("a")
    broker.time_passes(5.1)

    assert "Hello" in broker.hung_up[peer][0]


@pytest.mark.parametrize("frames", [[b"", b"garbage"], [b"no delimiter"], [], [b"alice", b"", b"\x93\x63\x13\xc0"]])
def test_a_node_that_breaks_the_protocol_is_hung_up_on_and_its_work_goes_elsewhere(
    broker: BrokerHarness, frames: list[bytes]
) -> None:
    node = broker.joins("a")
    request = broker.submits_one()
    broker.core.from_node(node.peer, frames, broker.now)
    broker.settle()

    assert broker.hung_up[node.peer][1] is Redial.SLOWLY
    assert [type(message) for message in broker.sent_to_client(request)] == [Lost]
    assert broker.counters["malformed"] == 1


def test_a_draining_node_gets_no_new_work_and_keeps_what_runs(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=4)
    broker.joins("b", slots=4)
    node.state = "draining"
    broker.time_passes(0.6)

    assert {broker.where_is(request) for request in broker.submits(count=5)} == {"b"}
    assert broker.node_report("a").state == "draining"


@pytest.mark.parametrize("target", ["a", "id-a"])
def test_an_operator_drains_and_undrains_a_node(broker: BrokerHarness, target: str) -> None:
    node = broker.joins("a")
    broker.joins("b", slots=64)

    assert broker.drains(target).ok
    assert [m.action for _, m in node.received if isinstance(m, Admin)] == ["drain"]
    assert {broker.where_is(request) for request in broker.submits(count=6)} == {"b"}

    assert broker.drains(target, "undrain").ok
    assert "a" in {broker.where_is(request) for request in broker.submits(count=60)}


def test_draining_nobody_or_two_says_what_is_wrong(broker: BrokerHarness) -> None:
    broker.joins("one", called="gpu", node_id="x")
    broker.joins("two", called="gpu", node_id="y")

    assert "known: gpu, gpu" in broker.drains("nobody").text
    assert "tcp://one:5560, tcp://two:5560" in broker.drains("gpu").text


def test_a_stale_pong_does_not_overwrite_what_the_broker_counts_itself(broker: BrokerHarness) -> None:
    """A report that was on its way while requests were sent knows nothing of them."""
    node = broker.joins("a", slots=4)
    stale = node.loads()
    requests = broker.submits(count=5)
    node.loads = lambda: stale  # type: ignore[method-assign]
    broker.reports("a")

    assert [broker.where_is(request) for request in requests] == ["a"] * 5
    assert broker.where_is(broker.submits_one()) == "queue"


def test_what_other_brokers_have_at_a_node_takes_its_room(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=4)
    node.others["phi3"] = 3
    broker.reports("a")
    requests = broker.submits(count=4)
    assert [broker.where_is(request) for request in requests] == ["a", "a", "queue", "queue"]

    node.others["phi3"] = 0
    broker.reports("a")
    assert [broker.where_is(request) for request in requests] == ["a"] * 4


def test_a_broker_that_stood_still_does_not_blame_the_nodes(broker: BrokerHarness) -> None:
    node = broker.joins("a")
    request = broker.submits_one()
    broker.stands_still(20.0)
    broker.time_passes(1.0)

    assert node.peer not in broker.hung_up
    assert broker.where_is(request) == "a"


def test_work_that_a_node_denies_having_is_lost_and_not_waited_for(broker: BrokerHarness) -> None:
    node = broker.joins("a")
    request = broker.submits_one()
    node.denies_all = True
    broker.time_passes(0.7)
    assert broker.sent_to_client(request) == []

    broker.time_passes(1.5)
    assert [type(message) for message in broker.sent_to_client(request)] == [Lost]


def test_a_model_that_a_node_no_longer_serves_takes_its_requests_along(broker: BrokerHarness) -> None:
    node = broker.joins("a", models={"phi3": 2, "other": 2})
    request = broker.submits_one(model="other")
    del node.models["other"]
    node.model_of.clear()
    broker.time_passes(0.6)

    assert [type(message) for message in broker.sent_to_client(request)] == [Lost]
    assert [model.name for model in broker.report().models] == ["phi3"]


def test_a_batch_is_cut_to_what_the_node_takes(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=64, max_batch=10)
    broker.submits(count=25)

    assert [len(m.requests) for _, m in node.received if isinstance(m, Submit)] == [10, 10, 5]


def test_a_node_with_several_models_is_told_which_one_is_meant(broker: BrokerHarness) -> None:
    node = broker.joins("a", models={"phi3": 1, "tiny": 8})
    broker.submits(count=4, model="tiny")
    phi = broker.submits(count=3, model="phi3")

    assert [broker.where_is(request) for request in phi] == ["a", "a", "queue"]
    assert {head.model for _, m in node.received if isinstance(m, Submit) for head in m.requests} == {"phi3", "tiny"}


def test_hello_to_a_node_says_who_we_are(broker: BrokerHarness) -> None:
    peer = broker._peer + 1
    broker.core.node_connected(peer, "tcp://a:1", "static", broker.now)
    (action,) = broker.core.take_actions(broker.now)

    hello = decode(action.frames[1])  # type: ignore[union-attr]
    assert isinstance(hello, Hello)
    assert (hello.role, hello.name, hello.mesh) == ("broker", "broker", "default")


def test_a_node_that_cannot_be_reached_is_in_the_report_until_nobody_names_it(broker: BrokerHarness) -> None:
    broker.core.node_absent("tcp://gone:1", "static", "connection refused")
    report = broker.node_report("tcp://gone:1")
    assert (report.state, report.note, report.found_by) == ("joining", "connection refused", "static")

    broker.core.address_forgotten("tcp://gone:1")
    assert broker.report().nodes == ()


def test_a_lost_node_keeps_its_name_in_the_report_until_it_is_back_elsewhere(broker: BrokerHarness) -> None:
    broker.joins("a", node_id="x", address="tcp://10.0.0.1:5560")
    broker.dies("a")
    broker.core.node_absent("tcp://10.0.0.1:5560", "mdns", "connection refused")
    (report,) = broker.report().nodes
    assert (report.name, report.state) == ("a", "lost")
    assert report.note == "connection lost; since then: connection refused"  # why it went is not forgotten over it

    broker.joins("a", node_id="x", epoch=2, address="tcp://10.0.0.1:5561")
    assert [(node.name, node.state) for node in broker.report().nodes] == [("a", "ready")]


def test_nodes_of_a_broker_upstream_count_as_its_slots(broker: BrokerHarness) -> None:
    node = broker.joins("zone", kind="broker", slots=40)
    requests = broker.submits(count=45)

    assert node.loads()[0] == ModelLoad("phi3", 4096, 40, 45, 0, 45)
    assert all(broker.where_is(request) == "zone" for request in requests)
    assert broker.node_report("zone").kind == "broker"


def _frames(message: Refused) -> list[bytes]:
    return [b"", encode(message)]


def test_a_drain_that_was_taken_back_through_another_broker_is_over_here_too(broker: BrokerHarness) -> None:
    """The broker that had been told to drain left the node out for ever."""
    node = broker.joins("a")
    assert broker.drains("a").ok
    node.state = "draining"
    broker.time_passes(0.6)

    node.state = "ready"
    broker.time_passes(0.6)

    assert broker.where_is(broker.submits_one()) == "a"
