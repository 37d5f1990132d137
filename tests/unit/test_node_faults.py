"""A node among broken things: hands that do not take its messages, and workers that say nothing."""

from __future__ import annotations

from mesh import messages
from node.engine.base import EngineStats, StepOutput
from tests.support.node_harness import CLIENT, NodeHarness


def test_who_cannot_be_told_of_a_failure_is_dropped_and_not_left_waiting() -> None:
    """A full queue swallowed the only word of a request's end, and its client waited for ever."""
    node = NodeHarness()
    node.hello()
    node.submits(1)
    node.unreachable.add(CLIENT)
    failed = node.workers[0].submitted[0].request_id

    node.agent.work.take_outputs([StepOutput(failed, (), (), "error", "broken")], node.now)

    assert CLIENT[0] not in node.agent.requesters  # its next heartbeat is answered "no_hello", so it begins again


def test_who_cannot_be_told_that_its_requests_are_handed_over_is_dropped() -> None:
    node = NodeHarness()
    node.hello()
    node.submits(1)
    node.unreachable.add(CLIENT)

    node.agent.drain(node.now)

    assert CLIENT[0] not in node.agent.requesters
    assert len(node.agent.work.requests) == 0


def test_who_cannot_be_told_no_is_dropped() -> None:
    node = NodeHarness()
    node.hello()
    node.unreachable.add(CLIENT)

    node.submits(1, model="another")

    assert CLIENT[0] not in node.agent.requesters


def test_a_pong_tells_how_long_a_silent_worker_has_made_no_step() -> None:
    """A worker under SIGSTOP reports nothing, and its last report said that all was well."""
    node = NodeHarness()
    node.hello()
    node.submits(1)
    worker = node.workers[0]
    worker.stats = EngineStats(9, 1, 0, 0.1, 100, 50, 10, 20, 1.0)
    worker.silence_s = 7.0

    node.receives(messages.Ping(1))

    assert node.said(messages.Pong)[-1].last_step_age_s == 7.1
