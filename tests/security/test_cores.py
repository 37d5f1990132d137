"""Whatever frames come, from whomever: the cores never raise, their books agree, and no message costs them long."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.messages import Bye, Hello
from scripts.fuzztool.inputs import Frames, Inputs, NodeInputs
from tests.support.broker_harness import BrokerHarness
from tests.support.node_harness import NodeHarness

MESH = "default"
USERS = ("member", "client:fuzz")
FRAMES = st.lists(st.binary(max_size=40) | st.sampled_from([b"", b"client", b"zone"]), max_size=6)
MAX_STALL_S = 0.1


class Broker:
    """A core with a node, a good client, and a hostile one; each input arrives over both kinds of keys."""

    def __init__(self) -> None:
        self.harness = BrokerHarness(max_queued=200)
        self.node = self.harness.joins("a", model="demo")
        self.harness.greets("good")
        self.harness.submits("good", 3)

    def from_client(self, frames: Frames) -> None:
        for user in USERS:
            self.harness.core.from_client([user.encode(), *frames], self.harness.now, user)
        self._end_turn()

    def from_node(self, frames: Frames) -> None:
        if self.node.peer in self.harness.hung_up:
            self.node = self.harness.joins("a", model="demo", epoch=self.node.epoch + 1)
        self.harness.core.from_node(self.node.peer, frames, self.harness.now)
        self._end_turn()

    def _end_turn(self) -> None:
        self.harness.settle()
        self.harness.now += 1e-3
        if self.harness.core.next_deadline() <= self.harness.now:
            self.harness.core.tick(self.harness.now)


class Node:
    """An agent that is told what its server would tell it."""

    def __init__(self) -> None:
        self.harness = NodeHarness(model="demo")

    def receives(self, frames: Frames) -> None:
        harness = self.harness
        for user in USERS:
            whole = [user.encode(), *frames]
            if b"" in whole[1:] and (cut := whole.index(b"", 1)) + 1 < len(whole):
                harness.agent.receive(user, tuple(whole[:cut]), whole[cut + 1], whole[cut + 2 :], harness.now)
        for work, then in harness.in_thread:
            then(work())
        harness.in_thread.clear()
        harness.sent.clear()
        for worker in harness.workers:
            harness.step(*worker.submitted)
            worker.submitted.clear()
        harness.time_passes(1e-3)


def receivers() -> list[Callable[[Frames], None]]:
    return [Broker().from_client, Broker().from_node, Node().receives]


@pytest.mark.parametrize("which", range(3), ids=["broker, from a client", "broker, from a node", "node"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(messages=st.lists(FRAMES, max_size=10))
def test_arbitrary_frames_are_taken_without_a_word(which: int, messages: list[Frames]) -> None:
    receive = receivers()[which]
    for frames in messages:
        receive(frames)


@pytest.mark.parametrize("which", range(3), ids=["broker, from a client", "broker, from a node", "node"])
@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_hostile_messages_leave_the_books_in_order(which: int, seed: int) -> None:
    receive, inputs = receivers()[which], Inputs(seed, MESH)
    for _ in range(1500):
        receive(inputs.next()[1])


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_lies_about_requests_changes_nothing_for_others(seed: int) -> None:
    broker, lies = Broker(), NodeInputs(seed)
    broker.harness.joins("evil", model="evil")
    peer = broker.harness.nodes["evil"].peer
    for _ in range(1500):
        broker.harness.core.from_node(peer, lies.well_formed(), broker.harness.now)
        broker.harness.settle()
    assert peer not in broker.harness.hung_up
    assert broker.harness.core.status(broker.harness.now).num_in_flight == 3


@pytest.mark.parametrize("kind", ["huge", "deep nesting", "zstd bomb", "many frames", "hostile body"])
def test_no_message_holds_a_core_up(kind: str) -> None:
    """Measured as time on the processor, so that a busy machine does not matter. What goes to a thread is not here."""
    broker, node, inputs = Broker(), NodeHarness(model="demo"), Inputs(5, MESH)
    for user in USERS:
        node.receives(Hello("client", user, 1, MESH), route=(user.encode(),), user=user)
        broker.from_client(inputs.of("greeting")[1])
    slowest = 0.0
    gc.collect()
    gc.freeze()  # the heap of the tests is not a server's, and looking through it takes longer than most messages
    for _ in range(40):
        frames = inputs.of(kind)[1]
        began = time.process_time()
        broker.harness.core.from_client([b"good", *frames], broker.harness.now, "client:fuzz")
        actions = broker.harness.core.take_actions(broker.harness.now)
        between = time.process_time()
        node.agent.receive("client:fuzz", (b"client:fuzz",), frames[1], frames[2:], node.now)
        slowest = max(slowest, between - began, time.process_time() - between)
        node.in_thread.clear()
        node.receives(Bye(), route=(b"client:fuzz",))
        node.receives(Hello("client", "again", 1, MESH), route=(b"client:fuzz",))
        del actions
    gc.unfreeze()
    assert slowest < MAX_STALL_S
