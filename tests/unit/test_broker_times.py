"""How long requests wait and take, and how late heartbeats are, as a broker measures it."""

from __future__ import annotations

import pytest

from tests.support.broker_harness import BrokerHarness


def test_waiting_ends_at_a_node_and_the_whole_with_the_nodes_last_word() -> None:
    broker = BrokerHarness()
    broker.joins("n1", slots=1)
    first, second, third = broker.submits(count=3)  # one runs, one is fetched ahead, one waits here
    assert broker.core.times.queue.count == 2
    broker.time_passes(3)
    broker.hears_tokens("n1", first, done=True)

    assert broker.where_is(third) == "n1"
    assert (broker.core.times.queue.count, broker.core.times.queue.total) == (3, pytest.approx(3, abs=0.1))
    assert (broker.core.times.duration.count, broker.core.times.duration.total) == (1, pytest.approx(3, abs=0.1))
    broker.hears_failed("n1", second)
    assert broker.core.times.duration.count == 2


def test_a_request_that_its_caller_gave_up_says_nothing_about_how_long_one_takes() -> None:
    broker = BrokerHarness()
    broker.joins("n1", slots=1)
    broker.cancels(*broker.submits(count=3))
    assert broker.core.times.duration.count == 0


def test_each_heartbeat_that_is_answered_is_measured() -> None:
    broker = BrokerHarness()
    broker.joins("n1")
    before = broker.core.times.heartbeat.count
    broker.time_passes(5 * broker.config.heartbeat_s)
    assert broker.core.times.heartbeat.count - before == pytest.approx(5, abs=1)
