"""What a node promises its requesters, on a fake clock."""

from __future__ import annotations

import pytest

from mesh import bodies, messages
from mesh.messages import RequestHead
from node.engine.base import EngineStats, StepOutput
from node.engine.synthetic_vocab import decode, expected_text, expected_tokens, piece_bytes
from node.outbox import BATCH_GATHER_S, STREAM_GATHER_S
from tests.support.node_harness import CLIENT, EPOCH, NodeHarness, engine_info

OTHER = (b"other",)


@pytest.fixture
def node() -> NodeHarness:
    harness = NodeHarness()
    harness.hello()
    return harness


def only(items: list) -> object:  # type: ignore[type-arg]
    assert len(items) == 1, items
    return items[0]


# --- saying hello -----------------------------------------------------------------------------------------------------


def test_hello_is_answered_with_who_this_is_and_what_it_offers(node: NodeHarness) -> None:
    welcome = only(node.said(messages.Welcome))
    assert (welcome.name, welcome.node_id, welcome.epoch) == ("n1", "id-1", EPOCH)
    assert welcome.models == (messages.ModelLoad("m", 1000, 4),)


def test_another_mesh_is_refused_by_name() -> None:
    node = NodeHarness()
    node.hello(mesh="theirs")
    assert only(node.said(messages.Refused)).code == "wrong_mesh"
    node.submits()
    assert node.said(messages.Refused)[-1].code == "no_hello"


def test_garbage_is_counted_and_answered_and_harms_nobody(node: NodeHarness) -> None:
    node.agent.receive("member", OTHER, b"\xc1garbage", [], node.now)
    assert only(node.said(messages.Refused, OTHER)).code == "bad_message"
    node.submits()
    assert node.said(messages.Accepted) == [messages.Accepted((1,))]


def test_a_batch_with_a_body_missing_is_refused_whole(node: NodeHarness) -> None:
    node.receives(messages.Submit((RequestHead(1, 1), RequestHead(2, 1))), bodies.pack({"prompt": "x"}))
    assert only(node.said(messages.Refused)).code == "bad_message"
    assert len(node.agent.work.requests) == 0


# --- the life of a request --------------------------------------------------------------------------------------------


def test_a_request_runs_to_its_end_and_leaves_nothing_behind(node: NodeHarness) -> None:
    node.submits(prompt="hello", max_tokens=3)
    work = only(node.workers[0].submitted)
    for after in range(3):
        node.step(work, after=after)
        node.time_passes(STREAM_GATHER_S)

    entries = node.entries()
    assert [i for e in entries for i in e.token_ids] == expected_tokens(list(b"hello"), 3)
    assert "".join(e.text for e in entries) == expected_text(list(b"hello"), 3)
    assert [e.index for e in entries] == [0, 1, 2]
    end = entries[-1].end
    assert end is not None
    assert (end.finish_reason, end.prompt_tokens, end.completion_tokens, end.node) == ("length", 5, 3, "n1")
    assert node.said(messages.Tokens)[-1].finished == ((1, 1),)
    assert len(node.agent.work.requests) == node.agent.work.pool.num_running == 0


def test_a_resumed_request_continues_at_the_same_character(node: NodeHarness) -> None:
    prompt = "resume me"
    whole = expected_tokens(list(prompt.encode()), 40, stop_token_ids=())
    for cut in range(1, 39):
        node.sent.clear()
        node.submits(request_id=cut, prompt=prompt, max_tokens=40, ignore_eos=True, resume=whole[:cut])
        work = node.workers[0].submitted[-1]
        assert work.max_tokens == 40 - cut
        node.step(work, num_tokens=40 - cut)
        entry = only(node.entries())
        assert entry.index == cut
        assert entry.token_ids == tuple(whole[cut:])
        assert entry.text == decode(whole)[len(decode(whole)) - len(entry.text) :]
        assert entry.end.completion_tokens == 40


def test_a_resumed_request_that_had_ended_already_gets_its_ending_without_the_engine(node: NodeHarness) -> None:
    node.submits(1, prompt="over", max_tokens=40, stop_token_ids=[300], resume=[260, 300])
    node.time_passes(0.0)
    entry = only(node.entries())
    assert (entry.index, entry.token_ids, entry.end.finish_reason) == (2, (), "stop")
    assert node.workers[0].submitted == []
    assert len(node.agent.work.requests) == 0


def test_a_stop_string_ends_the_text_before_it_and_frees_the_slot(node: NodeHarness) -> None:
    text = expected_text(list(b"stop here"), 30)
    stop = text[20:26]
    node.submits(prompt="stop here", max_tokens=30, stop=[stop])
    work = only(node.workers[0].submitted)
    node.step(work, num_tokens=29)
    assert "".join(e.text for e in node.entries()) == text[: text.index(stop)]
    assert (node.entries()[-1].end.finish_reason, node.entries()[-1].end.stop_string) == ("stop", stop)
    assert node.workers[0].cancelled == [work.request_id]
    assert node.agent.work.pool.num_running == 0


def test_the_pieces_of_tokens_come_beside_their_logprobs_only(node: NodeHarness) -> None:
    node.submits(1, prompt="whole", max_tokens=60, logprobs=True)
    node.submits(2, prompt="whole", max_tokens=60)
    first, second = node.workers[0].submitted
    node.step(first, second, num_tokens=7)
    node.step(first, second, num_tokens=53, after=7)
    tokens = expected_tokens(list(b"whole"), 60, stop_token_ids=())
    pieces = [piece for entry in node.entries() if entry.request_id == 1 for piece in entry.pieces]
    assert pieces == [piece_bytes(token) for token in tokens]
    assert all(entry.pieces is None for entry in node.entries() if entry.request_id == 2)


def test_cancelling_frees_the_slot_and_touches_no_other(node: NodeHarness) -> None:
    node.submits(1)
    node.submits(2)
    node.receives(messages.Cancel((1,)))
    first, second = node.workers[0].submitted
    assert node.workers[0].cancelled == [first.request_id]
    node.step(first, second)
    assert {e.request_id for e in node.entries()} == {2}


def test_a_client_cannot_cancel_what_another_client_asked(node: NodeHarness) -> None:
    node.hello(OTHER)
    node.submits(1)
    node.receives(messages.Cancel((1,)), route=OTHER)
    assert node.workers[0].cancelled == []


def test_the_same_request_again_as_a_later_attempt_replaces_the_earlier_one(node: NodeHarness) -> None:
    node.submits(1, attempt=1)
    node.submits(1, attempt=2)
    first, second = node.workers[0].submitted
    assert node.workers[0].cancelled == [first.request_id]
    node.step(first, second)
    assert [e.attempt for e in node.entries()] == [2]


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"temprature": 1.0}, "invalid_request", "temprature: unknown parameter; known are prompt"),
        ({"top_p": 2.0}, "invalid_request", "top_p"),
        ({"temperature": 0.5}, "invalid_request", "seed: required"),
        ({"prompt": ""}, "invalid_request", "prompt: is empty"),
        ({"resume": [10_000]}, "invalid_request", "resume: has token ids past the vocabulary"),
        ({"prompt": "x" * 900, "max_tokens": 200}, "prompt_too_long", "(900 tokens) + max_tokens (200) = 1100"),
        ({"model": "other"}, "no_such_model", "served: m"),
    ],
)
def test_what_cannot_run_is_rejected_with_what_was_wrong(
    node: NodeHarness, body: dict[str, object], code: str, words: str
) -> None:
    node.submits(1, **body)
    node.submits(2)
    rejected = only(node.said(messages.Rejected))
    assert rejected.code == code
    assert words in rejected.text
    assert node.said(messages.Accepted) == [messages.Accepted((2,))]


def test_a_full_queue_says_overloaded_and_when_to_come_back() -> None:
    node = NodeHarness(slots=(1,), max_waiting=2)
    node.hello()
    for request_id in range(1, 8):
        node.submits(request_id)
    rejected = node.said(messages.Rejected)
    assert {r.code for r in rejected} == {"overloaded"}
    assert all(r.retry_after_s > 0 for r in rejected)
    assert len(node.agent.work.requests) + len(rejected) == 7


def test_before_its_model_is_loaded_a_node_says_not_ready_and_why() -> None:
    node = NodeHarness(ready=False)
    node.workers[0].note = "reading weights"
    node.hello()
    node.submits(1)
    rejected = only(node.said(messages.Rejected))
    assert rejected.code == "not_ready"
    assert "reading weights" in rejected.text


def test_a_long_prompt_is_tokenised_in_a_thread_and_can_be_cancelled_meanwhile() -> None:
    node = NodeHarness()
    node.workers[0].info = engine_info(max_model_len=100_000, cache_tokens=100_000)
    node.agent.work.worker_ready(node.agent.work.codec, node.now)
    node.hello()
    for request_id in (1, 2):
        node.submits(request_id, prompt="x" * 20_000)
    assert node.workers[0].submitted == []
    node.receives(messages.Cancel((1,)))
    for work, then in node.in_thread:
        then(work())
    assert only(node.workers[0].submitted).num_prompt == 20_000


# --- slots and workers ------------------------------------------------------------------------------------------------


def test_requests_beyond_the_slots_wait_here_and_start_in_order() -> None:
    node = NodeHarness(slots=(2,))
    node.hello()
    for request_id in range(1, 6):
        node.submits(request_id, max_tokens=1)
    worker = node.workers[0]
    submitted = ["".join(map(chr, request.token_ids)) for request in worker.submitted]
    assert submitted == [f"prompt {i}" for i in (1, 2, 3)]  # 2 + prefetch
    node.step(worker.submitted[0])
    assert len(worker.submitted) == 4


def test_work_is_spread_over_the_workers_by_their_size() -> None:
    node = NodeHarness(slots=(2, 6))
    node.hello()
    for request_id in range(1, 9):
        node.submits(request_id)
    assert [len(worker.submitted) for worker in node.workers] == [2, 6]


def test_a_worker_that_dies_gives_its_requests_back_with_all_they_have() -> None:
    node = NodeHarness(slots=(1, 1))
    node.hello()
    node.submits(1)
    node.submits(2)
    dead, alive = node.workers
    node.step(dead.submitted[0], num_tokens=5)
    node.step(dead.submitted[0], num_tokens=2, after=5)  # not flushed yet

    node.agent.work.worker_lost(dead, "killed by signal 9", node.now)

    lost = only(node.said(messages.Lost))
    lost_id = lost.requests[0][0]
    assert "killed by signal 9" in lost.reason
    assert sum(len(e.token_ids) for e in node.entries() if e.request_id == lost_id) == 7
    node.step(alive.submitted[0])
    assert {e.request_id for e in node.entries()} == {1, 2}


def test_an_engine_error_fails_that_request_alone(node: NodeHarness) -> None:
    node.submits(1)
    node.submits(2)
    first, second = node.workers[0].submitted
    node.agent.work.take_outputs([StepOutput(first.request_id, (), (), "error", "out of memory")], node.now)
    failed = only(node.said(messages.Failed))
    assert (failed.request_id, failed.code, failed.text) == (1, "engine_failed", "out of memory")
    node.step(second)
    assert only(node.entries()).request_id == 2


def test_with_a_batch_delay_an_idle_engine_waits_for_company_but_not_longer() -> None:
    node = NodeHarness(batch_delay_s=0.05)
    node.hello()
    node.submits(1)
    assert node.workers[0].submitted == []
    node.time_passes(0.049)
    assert node.workers[0].submitted == []
    node.time_passes(0.002)
    assert len(node.workers[0].submitted) == 1


# --- grouping ---------------------------------------------------------------------------------------------------------


def test_one_step_makes_one_message_for_each_client(node: NodeHarness) -> None:
    node.hello(OTHER)
    for request_id in (1, 2):
        node.submits(request_id)
        node.submits(request_id, route=OTHER)
    node.step(*node.workers[0].submitted)
    assert len(node.said(messages.Tokens)) == len(node.said(messages.Tokens, OTHER)) == 1
    assert len(node.entries()) == len(node.entries(OTHER)) == 2


def test_the_first_token_leaves_at_once_and_later_ones_are_gathered(node: NodeHarness) -> None:
    node.submits(1)
    work = only(node.workers[0].submitted)
    node.step(work)
    assert len(node.entries()) == 1
    for after in (1, 2, 3):
        node.now += STREAM_GATHER_S / 10
        node.step(work, after=after)
    assert len(node.entries()) == 1
    node.time_passes(STREAM_GATHER_S)
    assert [len(e.token_ids) for e in node.entries()] == [1, 3]


def test_tokens_of_a_slow_engine_are_never_held_back(node: NodeHarness) -> None:
    node.submits(1)
    work = only(node.workers[0].submitted)
    for after in range(4):
        node.now += STREAM_GATHER_S * 1.01
        node.step(work, after=after)
    assert [len(e.token_ids) for e in node.entries()] == [1, 1, 1, 1]


def test_a_caller_that_does_not_stream_gets_fewer_messages(node: NodeHarness) -> None:
    node.submits(1, stream=False)
    work = only(node.workers[0].submitted)
    for after in range(10):
        node.now += BATCH_GATHER_S / 11
        node.step(work, after=after)
    assert [len(e.token_ids) for e in node.entries()] == [1]
    node.time_passes(BATCH_GATHER_S)
    assert [len(e.token_ids) for e in node.entries()] == [1, 9]


# --- leaving, silence, deadlines --------------------------------------------------------------------------------------


def test_draining_hands_everything_over_and_takes_nothing_new(node: NodeHarness) -> None:
    node.submits(1)
    work = only(node.workers[0].submitted)
    node.step(work, num_tokens=3)
    node.receives(messages.Admin(5, "drain", "n1"))
    assert only(node.said(messages.Lost)).requests == ((1, 1),)
    assert node.workers[0].cancelled == [work.request_id]
    assert only(node.said(messages.Done)).ok
    node.submits(2)
    assert only(node.said(messages.Rejected)).code == "not_ready"
    node.receives(messages.Admin(6, "undrain", "id-1"))
    node.submits(3)
    assert node.said(messages.Accepted)[-1].request_ids == (3,)


def test_a_drain_meant_for_another_node_is_answered_no(node: NodeHarness) -> None:
    node.receives(messages.Admin(5, "drain", "n2"))
    done = only(node.said(messages.Done))
    assert not done.ok
    assert node.agent.work.state == "ready"


def test_a_silent_client_loses_its_lease_and_its_requests(node: NodeHarness) -> None:
    node.submits(1)
    node.time_passes(node.agent.config.lease_s * 0.9)
    node.receives(messages.Ping(1))
    node.time_passes(node.agent.config.lease_s * 0.9)
    assert len(node.agent.work.requests) == 1
    node.time_passes(node.agent.config.lease_s * 0.2)
    assert len(node.agent.work.requests) == 0
    assert node.workers[0].cancelled == [1]


def test_bye_cancels_all_that_came_over_that_connection_whatever_its_route(node: NodeHarness) -> None:
    via_broker = [(b"client", b"a"), (b"client", b"b")]
    for route in via_broker:
        node.submits(1, route=route)
    node.receives(messages.Bye())
    assert len(node.agent.work.requests) == 0


def test_a_client_that_cannot_be_reached_is_dropped(node: NodeHarness) -> None:
    node.submits(1)
    node.unreachable.add(CLIENT)
    node.step(only(node.workers[0].submitted))
    assert len(node.agent.work.requests) == 0


def test_a_request_past_its_deadline_is_dropped_before_it_runs() -> None:
    node = NodeHarness(slots=(1,))
    node.hello()
    for request_id in (1, 2, 3):
        node.submits(request_id, deadline_s=2.0 if request_id == 3 else 0.0)
    node.time_passes(1.0)
    node.receives(messages.Ping(1))
    node.time_passes(1.1)
    rejected = only(node.said(messages.Rejected))
    assert (rejected.request_id, rejected.code) == (3, "deadline_exceeded")
    assert len(node.workers[0].submitted) == 2


def test_a_running_request_past_its_deadline_is_cancelled_and_says_how_far_it_came(node: NodeHarness) -> None:
    node.submits(1, deadline_s=1.0)
    work = only(node.workers[0].submitted)
    node.step(work, num_tokens=7)
    node.time_passes(1.1)
    failed = only(node.said(messages.Failed))
    assert failed.code == "deadline_exceeded"
    assert "after 7 tokens" in failed.text
    assert node.workers[0].cancelled == [work.request_id]


# --- heartbeats -------------------------------------------------------------------------------------------------------


def test_pong_tells_load_and_progress_as_facts(node: NodeHarness) -> None:
    node.hello(OTHER)
    node.submits(1)
    node.submits(1, route=OTHER)
    node.workers[0].stats = EngineStats(9, 2, 0, 3.5, 100, 50, 10, 20, 1.0)
    node.receives(messages.Ping(4))
    pong = only(node.said(messages.Pong))
    assert (pong.sequence, pong.epoch, pong.state, pong.num_steps, pong.last_step_age_s) == (4, EPOCH, "ready", 9, 3.5)
    assert pong.models == (messages.ModelLoad("m", 1000, 4, 2, 0, 1),)


def test_a_lone_node_answers_status_with_itself(node: NodeHarness) -> None:
    report = node.agent.report(node.now)
    assert report.kind == "node"
    assert report.num_ready == 1
    assert report.nodes[0].slots_total == 4


# --- who may do what --------------------------------------------------------------------------------------------------


def test_a_client_key_cannot_be_a_broker() -> None:
    node = NodeHarness()
    node.hello(user="client:notebook", role="broker")
    assert only(node.said(messages.Refused)).code == "forbidden"
    assert node.said(messages.Welcome) == []


def test_a_client_key_cannot_drain() -> None:
    node = NodeHarness()
    node.hello(user="client:notebook")
    node.receives(messages.Admin(1, "drain", "n1"), user="client:notebook")
    done = only(node.said(messages.Done))
    assert not done.ok
    assert "only a member" in done.text
    assert node.agent.work.state == "ready"


def test_a_large_submit_of_a_forgotten_client_is_told_to_greet_too(node: NodeHarness) -> None:
    heads = tuple(RequestHead(number, 1, affinity="x" * 100) for number in range(200))
    node.receives(messages.Submit(heads), *[b"body"] * 200, route=OTHER)

    assert node.said(messages.Refused, OTHER)[-1].code == "no_hello"


def test_a_revoked_key_ends_its_connections_and_nobody_elses(node: NodeHarness) -> None:
    node.hello(OTHER, user="client:notebook")
    node.submits(1)
    node.submits(1, route=OTHER)
    node.agent.end_access({"client:notebook"})
    assert only(node.said(messages.Refused, OTHER)).code == "revoked_key"
    assert len(node.agent.work.requests) == 1
    node.submits(2, route=OTHER)
    assert node.said(messages.Refused, OTHER)[-1].code == "no_hello"
