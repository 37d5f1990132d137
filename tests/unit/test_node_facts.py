"""What a node measures about itself: times between tokens, devices, and counters that add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mesh import messages
from mesh.messages import DeviceFacts, NodeFacts
from node.engine.base import EngineStats, StepOutput
from node.engine.synthetic_vocab import expected_tokens
from node.facts import Gaps
from tests.support.node_harness import NodeHarness, engine_info


@pytest.fixture
def node() -> NodeHarness:
    harness = NodeHarness()
    harness.hello()
    return harness


def facts_of(node: NodeHarness) -> NodeFacts:
    node.receives(messages.Ping(1))
    pong = node.said(messages.Pong)[-1]
    assert isinstance(pong, messages.Pong)
    return pong.facts


def counters_of(node: NodeHarness) -> dict[str, int]:
    return dict(facts_of(node).counters)


def stats(busy_s: float = 0.0, used: int = 0, total: int = 0) -> EngineStats:
    return EngineStats(1, 1, 0, 0.0, 1, 1, used, total, busy_s)


# --- times between tokens ---------------------------------------------------------------------------------------------


def test_the_quantiles_count_every_request_of_a_step() -> None:
    gaps = Gaps()
    gaps.add({0.010: 90, 0.100: 10}, 0.0)
    assert gaps.quantiles((0.50, 0.89, 0.99), 0.0) == [0.010, 0.010, 0.100]


def test_only_the_last_seconds_count_but_an_idle_node_keeps_the_last_it_knows() -> None:
    gaps = Gaps()
    assert gaps.quantiles((0.5,), 0.0) == [0.0]
    gaps.add({0.5: 1000}, 1.0)
    assert gaps.quantiles((0.5,), 600.0) == [0.5]
    gaps.add({0.01: 1}, 601.0)
    assert gaps.quantiles((0.5,), 601.0) == [0.01]


def test_the_time_between_tokens_is_that_of_each_request_and_leaves_the_first_token_out(node: NodeHarness) -> None:
    node.submits(1, max_tokens=50)
    node.time_passes(1.0)
    for after in range(5):
        node.step(node.workers[0].submitted[0], after=after)
        node.time_passes(0.03)

    facts = facts_of(node)
    assert facts.ttft_p50_s == pytest.approx(1.0)
    assert facts.itl_p50_s == pytest.approx(0.03)
    assert facts.itl_p99_s == pytest.approx(0.03)


def test_a_listener_hears_of_every_duration() -> None:
    heard: list[tuple[str, float]] = []

    class Recorder:
        def observe_queue(self, seconds: float) -> None:
            heard.append(("queue", round(seconds, 3)))

        def observe_first_token(self, seconds: float) -> None:
            heard.append(("first", round(seconds, 3)))

        def observe_inter_token(self, seconds: float, count: int) -> None:
            heard.extend([("inter", round(seconds, 3))] * count)

    node = NodeHarness(slots=(1,))
    node.hello()
    node.agent.work.facts.listener = Recorder()
    for request_id in range(3):
        node.submits(request_id, max_tokens=2)
    first, second = node.workers[0].submitted  # one slot, one prefetched
    node.time_passes(0.1)
    node.step(first)
    node.time_passes(0.02)
    node.step(first, after=1)
    third = node.workers[0].submitted[2]
    node.time_passes(0.5)
    node.step(second, third)

    assert heard == [
        ("queue", 0.0), ("first", 0.1), ("inter", 0.02),
        ("queue", 0.0), ("first", 0.62), ("queue", 0.12), ("first", 0.62),
    ]  # fmt: skip


# --- devices ----------------------------------------------------------------------------------------------------------


def test_a_cpu_is_as_busy_as_the_engine_that_runs_on_it(node: NodeHarness) -> None:
    worker = node.workers[0]
    worker.info = engine_info()
    for busy_s in (0.0, 0.125, 0.25, 0.375, 0.5):
        worker.stats = stats(busy_s, used=3, total=24)
        node.agent.work.facts.worker_stats(worker, node.now)
        node.time_passes(0.25)

    facts = facts_of(node)
    (device,) = facts.devices
    assert device == DeviceFacts("synthetic", pytest.approx(0.4), 3, 24)
    assert device.utilisation == pytest.approx(facts.busy_fraction)


def test_gpus_are_what_their_driver_says(node: NodeHarness) -> None:
    worker = node.workers[0]
    worker.info = replace(engine_info(), device="cuda:0 NVIDIA A100")
    worker.stats = stats(used=3, total=80)
    facts = node.agent.work.facts
    assert facts_of(node).devices == (DeviceFacts("cuda:0 NVIDIA A100", 0.0, 3, 80),)  # no driver to ask

    facts.gpus = lambda: (DeviceFacts("NVIDIA A100", 0.9, 40, 80, 65.0, 300.0),)
    assert facts_of(node).devices == facts.gpus()
    (reported,) = node.agent.report(node.now).nodes[0].devices
    assert (reported.utilisation, reported.temperature_c) == (0.9, 65.0)


def test_gpus_that_no_worker_uses_are_left_out(node: NodeHarness) -> None:
    node.workers[0].stats = stats()
    node.agent.work.facts.gpus = lambda: (DeviceFacts("NVIDIA A100", 0.9),)
    assert [device.name for device in facts_of(node).devices] == ["synthetic"]


# --- counters ---------------------------------------------------------------------------------------------------------


def test_tokens_are_counted_when_they_are_computed(node: NodeHarness) -> None:
    node.submits(1, prompt="hello", max_tokens=3)
    assert "prompt_tokens" not in counters_of(node)
    work = node.workers[0].submitted[0]
    tokens = expected_tokens(list(b"hello"), 3)
    node.agent.work.take_outputs([StepOutput(work.request_id, tokens[:1], num_cached=4)], node.now)
    node.agent.work.take_outputs([StepOutput(work.request_id, tokens[1:], (), "length", num_cached=4)], node.now)

    counters = counters_of(node)
    assert {name: counters[name] for name in ("prompt_tokens", "cached_tokens", "generated_tokens", "finished")} == {
        "prompt_tokens": 5, "cached_tokens": 4, "generated_tokens": 3, "finished": 1,
    }  # fmt: skip
    assert "recomputed_tokens" not in counters


def test_what_a_failover_cost_is_counted(node: NodeHarness) -> None:
    """The prompt and the tokens so far are computed again, but for what the prefix cache had."""
    whole = expected_tokens(list(b"resume me"), 10, stop_token_ids=())
    node.submits(1, attempt=2, prompt="resume me", max_tokens=10, ignore_eos=True, resume=whole[:6])
    work = node.workers[0].submitted[0]
    node.agent.work.take_outputs([StepOutput(work.request_id, whole[6:], (), "length", num_cached=8)], node.now)

    counters = counters_of(node)
    assert (counters["resumed_requests"], counters["resumed_tokens"]) == (1, 6)
    assert counters["recomputed_tokens"] == 9 + 6 - 8
    assert counters["generated_tokens"] == 4


def test_endings_and_restarts_are_counted(node: NodeHarness) -> None:
    node.submits(1)
    node.receives(messages.Cancel((1,)))
    node.submits(2, model="other")
    node.workers[0].num_starts = 3

    counters = counters_of(node)
    assert (counters["cancelled"], counters["rejected_no_such_model"], counters["worker_restarts"]) == (1, 1, 2)
    assert node.agent.report(node.now).nodes[0].counters == counters
