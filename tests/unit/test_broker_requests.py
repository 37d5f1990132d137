"""The life of a request in the broker: taken in or not, queued, placed, relayed, ended once."""

from __future__ import annotations

from collections import Counter

import pytest

from mesh.messages import Accepted, Bye, Cancel, Failed, Lost, Message, Rejected, RequestHead, Submit, Tokens
from tests.support.broker_harness import Asked, BrokerHarness


@pytest.fixture
def broker() -> BrokerHarness:
    return BrokerHarness()


def codes(broker: BrokerHarness, asked: Asked) -> list[str]:
    return [message.code for message in broker.sent_to_client(asked) if isinstance(message, Rejected | Failed)]


def kinds(broker: BrokerHarness, asked: Asked) -> list[type[Message]]:
    return [type(message) for message in broker.sent_to_client(asked)]


def test_a_batch_goes_to_a_node_in_one_message_and_what_must_wait_is_told_in_one(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=3)  # and one more, to have it ready
    broker.submits("alice", 6)

    assert [len(message.requests) for _, message in node.received if isinstance(message, Submit)] == [4]
    assert [message.request_ids for message in broker.heard_by("alice", Accepted)] == [(5, 6)]


def test_answers_pass_unchanged_and_free_the_place(broker: BrokerHarness) -> None:
    broker.joins("a", slots=1)
    first, second, third = broker.submits("alice", 3)
    broker.hears_tokens("a", first)
    broker.hears_tokens("a", first, done=True)

    assert [body for message, body in broker.clients["alice"] if isinstance(message, Tokens)] == [[b"\0tokens"]] * 2
    assert [broker.where_is(one) for one in (first, second, third)] == [None, "a", "a"]
    assert broker.counters["finished"] == 1


def test_a_node_gets_no_more_than_its_slots_and_a_tiny_prefetch(broker: BrokerHarness) -> None:
    broker.joins("a", slots=16)
    requests = broker.submits("alice", 30)

    assert Counter(broker.where_is(request) for request in requests) == {"a": 18, "queue": 12}


def test_prefetch_can_be_set() -> None:
    broker = BrokerHarness(prefetch=5)
    broker.joins("a", slots=2)

    assert [broker.where_is(request) for request in broker.submits("alice", 9)].count("a") == 7


def test_bigger_nodes_get_more(broker: BrokerHarness) -> None:
    broker.joins("small", slots=8)
    broker.joins("big", slots=32)
    counts = Counter(broker.where_is(request) for request in broker.submits("alice", 20))

    assert counts == {"small": 4, "big": 16}


def test_a_crowd_does_not_starve_a_single_request(broker: BrokerHarness) -> None:
    broker.joins("a", slots=1, max_batch=1024)
    crowd = broker.submits("crowd", 1000)
    single = broker.submits_one("single")
    for request in crowd[:3]:
        broker.hears_tokens("a", request, done=True)

    assert broker.where_is(single) == "a"


def test_without_a_node_a_request_is_told_to_come_back(broker: BrokerHarness) -> None:
    request = broker.submits_one()

    (rejected,) = broker.sent_to_client(request)
    assert isinstance(rejected, Rejected)
    assert (rejected.code, rejected.retry_after_s) == ("not_ready", 1.0)
    assert not broker.was_accepted(request)


def test_an_unknown_model_is_rejected_with_the_list_of_those_there_are(broker: BrokerHarness) -> None:
    broker.joins("a", model="phi3")
    request = broker.submits_one(model="gpt-9")

    (rejected,) = broker.sent_to_client(request)
    assert isinstance(rejected, Rejected)
    assert rejected.code == "no_such_model"
    assert "phi3" in rejected.text


def test_a_model_whose_last_node_has_gone_is_not_ready_rather_than_unknown(broker: BrokerHarness) -> None:
    """With another model still there, a restart of its only node ended every request with an error for the caller."""
    broker.joins("a", model="phi3")
    broker.joins("b", model="tiny")
    request = broker.submits_one(model="tiny")
    broker.dies("b")

    again, new = request.again(), broker.submits_one(model="tiny")
    broker.resubmits(again, model="tiny")

    assert codes(broker, again) == codes(broker, new) == ["not_ready"]


def test_after_a_restart_an_interrupted_request_waits_for_its_model_to_come_back(broker: BrokerHarness) -> None:
    """The new broker met the node of another model first."""
    broker.joins("a", model="phi3")
    request = Asked("alice", 7, attempt=2)
    broker.resubmits(request, model="tiny")

    assert codes(broker, request) == ["not_ready"]


def test_no_model_named_is_fine_when_there_is_one_and_an_error_when_there_are_two(broker: BrokerHarness) -> None:
    broker.joins("a", model="phi3")
    assert broker.where_is(broker.submits_one(model="")) == "a"

    broker.joins("b", model="tiny")
    request = broker.submits_one(model="")
    assert codes(broker, request) == ["no_such_model"]


def test_a_full_queue_says_when_to_come_back() -> None:
    broker = BrokerHarness(max_queued=10)
    broker.joins("a", slots=1)
    requests = broker.submits("alice", 20)

    # alone, a client may fill four fifths of the queue
    assert Counter(broker.where_is(request) for request in requests) == {"a": 2, "queue": 8, None: 10}
    rejected = [message for request in requests for message in broker.sent_to_client(request)]
    assert {(type(message), message.code) for message in rejected} == {(Rejected, "overloaded")}
    assert all(message.retry_after_s > 0 for message in rejected)
    assert not any(broker.was_accepted(request) for request in requests if broker.sent_to_client(request))


def test_a_small_queue_does_not_keep_idle_nodes_from_work() -> None:
    broker = BrokerHarness(max_queued=5)
    broker.joins("a", slots=100)

    assert Counter(broker.where_is(request) for request in broker.submits("alice", 80)) == {"a": 80}


def test_one_client_cannot_lock_the_door_for_others() -> None:
    broker = BrokerHarness(max_queued=100)
    broker.joins("a", slots=1)
    broker.submits("crowd", 500)

    assert broker.core.status(broker.now).num_queued < 100
    assert broker.where_is(broker.submits_one("single")) == "queue"


def test_the_queue_is_bounded_in_bytes_too() -> None:
    broker = BrokerHarness(max_queued_bytes=1000)
    broker.joins("a", slots=1)
    broker.submits("alice", 2)
    fits, too_much = broker.submits("alice", 2, body=b"\0" * 600)

    assert broker.where_is(fits) == "queue"
    assert codes(broker, too_much) == ["overloaded"]


def test_retry_after_follows_the_pace() -> None:
    broker = BrokerHarness(max_queued=10)
    broker.joins("a", slots=1)
    requests = broker.submits("alice", 10)
    for index in range(100):
        broker.time_passes(0.1)
        broker.hears_tokens("a", requests[index], done=True)
        requests += broker.submits("alice")
    rejected = broker.submits("alice", 10)[-1]

    (message,) = broker.sent_to_client(rejected)
    assert isinstance(message, Rejected)
    assert 0.2 <= message.retry_after_s < 0.5  # a quarter of some eight at ten per second


def test_a_time_without_work_is_not_taken_for_slowness() -> None:
    """After a pause everybody was told to come back in half a minute, and the nodes idled meanwhile."""
    broker = BrokerHarness(max_queued=10)
    broker.joins("a", slots=1)
    requests = broker.submits("alice", 10)
    for index in range(100):
        broker.time_passes(0.1)
        broker.hears_tokens("a", requests[index], done=True)
        requests += broker.submits("alice")
    for request in requests[100:]:
        broker.hears_tokens("a", request, done=True)
    broker.time_passes(60)

    (message,) = broker.sent_to_client(broker.submits("alice", 20)[-1])
    assert isinstance(message, Rejected)
    assert 0.2 <= message.retry_after_s < 0.5


def test_a_body_that_is_too_big_and_a_batch_that_is_too_long_are_rejected_one_by_one() -> None:
    broker = BrokerHarness(max_body_bytes=10, max_batch=3)
    broker.joins("a")
    assert codes(broker, broker.submits("alice", body=b"\0" * 11)[0]) == ["invalid_request"]

    assert [codes(broker, request) for request in broker.submits("alice", 4)] == [["invalid_request"]] * 4


def test_a_deadline_that_passes_in_the_queue(broker: BrokerHarness) -> None:
    broker.joins("a", slots=1)
    broker.submits("alice", 2)
    late = broker.submits_one("alice", deadline_s=1.0)
    broker.time_passes(0.9)
    assert broker.where_is(late) == "queue"
    broker.time_passes(0.2)

    assert codes(broker, late) == ["deadline_exceeded"]
    assert kinds(broker, late) == [Rejected]
    assert broker.where_is(late) is None


def test_a_deadline_that_passes_on_a_node_is_cancelled_there(broker: BrokerHarness) -> None:
    node = broker.joins("a")
    request = broker.submits_one("alice", deadline_s=1.0)
    broker.time_passes(1.1)

    assert kinds(broker, request) == [Failed]
    assert codes(broker, request) == ["deadline_exceeded"]
    assert [message.request_ids for _, message in node.received if isinstance(message, Cancel)] == [(1,)]


def test_the_node_gets_the_time_that_is_left(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=1)
    first, second = broker.submits("alice", 2)
    request = broker.submits_one("alice", deadline_s=10.0)
    broker.time_passes(4.0)
    for done in (first, second):
        broker.hears_tokens("a", done, done=True)

    assert broker.where_is(request) == "a"
    head = next(m.requests[0] for _, m in reversed(node.received) if isinstance(m, Submit))
    assert 5.9 < head.deadline_s < 6.1


def test_a_resubmitted_id_replaces_the_old_attempt(broker: BrokerHarness) -> None:
    node = broker.joins("a")
    request = broker.submits_one()
    broker.resubmits(request.again())

    kinds_received = [type(message) for _, message in node.received if isinstance(message, Submit | Cancel)]
    assert kinds_received == [Submit, Cancel, Submit]
    assert broker.where_is(request.again()) == "a"
    broker.hears_tokens("a", request, done=True)
    assert broker.core.status(broker.now).num_in_flight == 1


def test_the_end_of_an_old_attempt_is_not_the_end_of_the_new_one(broker: BrokerHarness) -> None:
    broker.joins("a")
    request = broker.submits_one()
    broker.resubmits(request.again())
    broker.from_node("a", Failed(*request.key, "engine_failed", "old"), to="alice")
    broker.from_node("a", Lost((request.key,), "a", "old"), to="alice")
    broker.from_node("a", Rejected(*request.key, "prompt_too_long", "old"), to="alice")

    assert broker.sent_to_client(request) == []
    assert broker.counters["late_frames"] == 3
    assert broker.core.status(broker.now).num_in_flight == 1


def test_an_ending_from_a_node_that_does_not_have_the_request_frees_nothing(broker: BrokerHarness) -> None:
    broker.joins("a", slots=8)
    broker.joins("b", slots=1)
    request = broker.submits_one()
    assert broker.where_is(request) == "a"
    broker.from_node("b", Tokens((request.key,), 1), to="alice", body=b"\0")

    assert broker.core.status(broker.now).num_in_flight == 1


def test_cancel_reaches_the_queue_and_the_node_and_nobody_answers(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=1)
    requests = broker.submits("alice", 4)
    broker.cancels(*requests)

    assert [broker.where_is(request) for request in requests] == [None] * 4
    assert [message.request_ids for _, message in node.received if isinstance(message, Cancel)] == [(1, 2)]
    assert all(broker.sent_to_client(request) == [] for request in requests)
    assert broker.where_is(broker.submits_one()) == "a"


def test_cancelling_what_is_not_there_is_no_error(broker: BrokerHarness) -> None:
    broker.joins("a")
    broker.greets("alice")
    broker.cancels(Asked("alice", 99))

    assert "refused_bad_message" not in broker.counters


def test_a_node_that_has_no_room_after_all_is_not_the_clients_affair(broker: BrokerHarness) -> None:
    broker.joins("a", slots=4)
    broker.joins("b", slots=1)
    request = broker.submits_one()
    broker.hears_rejected("a", request, "overloaded", retry_after_s=0.3)

    assert broker.sent_to_client(request) == []
    assert broker.where_is(request) == "b"
    assert broker.counters["bounced"] == 1


def test_a_node_that_turned_work_away_gets_none_until_it_may(broker: BrokerHarness) -> None:
    broker.joins("a", slots=4)
    request = broker.submits_one()
    broker.hears_rejected("a", request, "overloaded", retry_after_s=0.3)
    assert broker.where_is(request) == "queue"
    broker.time_passes(0.2)
    assert broker.where_is(request) == "queue"
    broker.time_passes(0.2)

    assert broker.where_is(request) == "a"


def test_a_request_that_is_turned_away_again_and_again_is_told_so(broker: BrokerHarness) -> None:
    broker.joins("a", slots=4)
    request = broker.submits_one()
    for _ in range(20):
        if broker.where_is(request) == "a":
            broker.hears_rejected("a", request, "overloaded", retry_after_s=0.1)
        broker.time_passes(0.2)

    assert codes(broker, request) == ["overloaded"]


@pytest.mark.parametrize("code", ["invalid_request", "prompt_too_long", "invented_by_a_newer_node"])
def test_other_rejections_go_to_the_client(broker: BrokerHarness, code: str) -> None:
    broker.joins("a", slots=1)
    request, *others = broker.submits("alice", 3)
    broker.hears_rejected("a", request, code)

    assert codes(broker, request) == [code]
    assert broker.where_is(others[1]) == "a"
    assert not any("invented" in name for name in broker.counters)


def test_failures_and_hand_overs_go_to_the_client(broker: BrokerHarness) -> None:
    broker.joins("a", slots=2)
    failed, lost, waiting = broker.submits("alice", 3)
    broker.hears_failed("a", failed)
    broker.hears_lost("a", lost)

    assert (kinds(broker, failed), kinds(broker, lost)) == ([Failed], [Lost])
    assert broker.where_is(waiting) == "a"


def test_after_lost_the_next_attempt_goes_to_another_node(broker: BrokerHarness) -> None:
    broker.joins("a", slots=8)
    broker.joins("b", slots=1)
    request = broker.submits_one()
    broker.dies("a")
    broker.resubmits(request.again())

    assert broker.where_is(request.again()) == "b"


def test_queued_work_waits_a_little_for_a_node_to_come_back(broker: BrokerHarness) -> None:
    broker.joins("a", slots=1)
    waiting = broker.submits("alice", 3)[-1]
    broker.dies("a")
    broker.time_passes(1.0)
    assert broker.where_is(waiting) == "queue"
    broker.joins("a", slots=1, epoch=2)

    assert broker.where_is(waiting) == "a"


def test_queued_work_does_not_wait_for_ever(broker: BrokerHarness) -> None:
    broker.joins("a", slots=1)
    waiting = broker.submits("alice", 3)[-1]
    broker.dies("a")
    broker.time_passes(broker.config.orphan_grace_s + 0.1)

    assert codes(broker, waiting) == ["not_ready"]


def test_the_models_do_not_wait_for_each_other(broker: BrokerHarness) -> None:
    broker.joins("a", slots=1, model="phi3")
    broker.joins("b", slots=1, model="tiny")
    broker.submits("alice", 10, model="phi3")

    assert broker.where_is(broker.submits_one("alice", model="tiny")) == "b"


def test_affinity_keeps_a_key_on_its_node() -> None:
    broker = BrokerHarness(policy="hash")
    for name in "abc":
        broker.joins(name, slots=40)
    places = {
        key: {broker.where_is(broker.submits_one(client, affinity=key)) for client in ("alice", "bob", "carol")}
        for key in "tuvwxyz"
    }

    assert all(len(nodes) == 1 for nodes in places.values())
    assert len({next(iter(nodes)) for nodes in places.values()}) > 1


def test_a_full_node_does_not_make_its_keys_wait() -> None:
    broker = BrokerHarness(policy="hash", prefetch=1)
    for name in "ab":
        broker.joins(name, slots=2)
    places = Counter(broker.where_is(broker.submits_one("alice", affinity="same")) for _ in range(6))

    assert places == {"a": 3, "b": 3}


def test_when_the_broker_stops_clients_are_told_and_nodes_too(broker: BrokerHarness) -> None:
    node = broker.joins("a", slots=1)
    requests = broker.submits("alice", 4)
    broker.core.stop()
    broker.settle()

    assert [kinds(broker, request) for request in requests] == [[Lost]] * 4
    assert len(broker.heard_by("alice", Lost)) == 1
    assert isinstance(node.received[-1][1], Bye)


def test_memory_returns_to_where_it_was() -> None:
    broker = BrokerHarness()
    broker.joins("a", slots=8)
    broker.greets("zone", role="broker")
    base = _sizes(broker)
    for turn in range(20):
        requests = broker.submits(f"zone/client-{turn}", 30, deadline_s=1000.0)
        broker.cancels(*requests[:10])
        for request in requests[10:]:
            broker.hears_tokens("a", request, done=True)

    assert _sizes(broker) == base


def _sizes(broker: BrokerHarness) -> dict[str, int]:
    core = broker.core
    return {
        "models": len(core._registry.models),
        "clients": sum(len(hop.clients) for hop in core._clients.hops.values()),
        "timers": len(core._timers),
        "queued": core._book.admission.num_queued,
        "bytes": core._book.admission.queued_bytes,
        "in flight": core._book.num_in_flight,
        "flows": sum(len(model.queue._flows) for model in core._registry.models.values()),
    }


def test_a_head_keeps_everything_the_broker_does_not_need() -> None:
    broker = BrokerHarness()
    node = broker.joins("a")
    broker.greets("alice")
    head = RequestHead(1, 3, "phi3", 10, 20, "key", -4, 0.0, False)
    broker.from_client("alice", Submit((head,), ("zstd",)), b"\0")

    submit = next(message for _, message in node.received if isinstance(message, Submit))
    assert submit == Submit((head,), ("zstd",))
