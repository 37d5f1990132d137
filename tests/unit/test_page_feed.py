"""The page's frames: what is in them, what is kept for those who open late, and what they cost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")

from broker.gateway.page.feed import MAX_PAGES, Feed, Reader
from broker.gateway.page.history import NUM_SAMPLES, Shares
from broker.gateway.page.view import MAX_NODES, view_of
from broker.gateway.problems import Problem
from broker.gateway.watch import Watch
from mesh.errors import BrokerUnreachable
from mesh.report import ClientReport, DeviceReport, NodeReport, StatusReport


def node(name: str = "a", **facts: Any) -> NodeReport:
    fields: dict[str, Any] = {"name": name, "node_id": name, "state": "ready", "slots_total": 8, "tokens_per_s": 10.0}
    return NodeReport(**{**fields, **facts})


def report(*nodes: NodeReport, **facts: Any) -> StatusReport:
    return StatusReport(**{"kind": "broker", "name": "b1", "node_id": "x", **facts}, nodes=nodes)


class World:
    """A feed on a fake clock, and a mesh that says what it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.says: StatusReport | None = report(node())
        self.num_asked = 0
        self.watch = Watch(self._ask, lambda: self.now)
        self.feed = Feed(self.watch, mesh="default", clock=lambda: self.now)

    async def _ask(self) -> StatusReport:
        self.num_asked += 1
        if self.says is None:
            raise BrokerUnreachable("no broker answered")
        return self.says

    def second(self, says: StatusReport | None) -> None:
        """One passes, and this is the answer."""
        self.says = says
        self.now += 1.0
        asyncio.run(self.watch.refresh())
        self.feed.turn()


def parsed(frames: bytes) -> dict[str, Any]:
    """By the name of the event."""
    told = {}
    for block in frames.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        told[name.removeprefix("event: ")] = json.loads(data.removeprefix("data: "), parse_constant=pytest.fail)
    return told


def test_a_page_that_opens_late_gets_the_last_minutes_and_events() -> None:
    world = World()
    world.second(report(node(tokens_per_s=5.0)))
    world.second(None)
    world.second(report(node(tokens_per_s=7.0), node("b", tokens_per_s=1.0)))
    told = parsed(Reader(world.feed).first())

    assert told["past"]["mesh"]["tokens_per_s"] == [5.0, None, 8.0]
    assert told["past"]["nodes"]["a"]["tokens_per_s"] == [5.0, None, 7.0]
    assert told["past"]["nodes"]["b"]["tokens_per_s"] == [None, None, 1.0]
    assert [event["text"] for event in told["events"]] == [
        "answers, 1 node ready",
        "does not answer: no broker answered",
        "answers again, 2 nodes ready",
        "is ready",
    ]
    assert told["mesh"]["view"]["totals"]["tokens_per_s"] == 8.0
    assert (told["mesh"]["is_up"], told["mesh"]["trouble"]) == (True, "")


def test_an_event_is_given_to_each_page_once_however_slowly_it_reads() -> None:
    world = World()
    world.second(report(node()))
    fast, slow = Reader(world.feed), Reader(world.feed)
    for reader in (fast, slow):
        reader.first()
    world.second(report(node(state="lost")))
    assert [event["text"] for event in parsed(fast.next())["events"]] == ["is lost"]
    world.second(report(node()))
    assert [event["text"] for event in parsed(fast.next())["events"]] == ["is ready"]
    assert [event["text"] for event in parsed(slow.next())["events"]] == ["is lost", "is ready"]
    assert "events" not in parsed(slow.next())


def test_many_pages_cost_one_report_and_one_frame() -> None:
    world = World()
    readers = [Reader(world.feed) for _ in range(MAX_PAGES)]
    with pytest.raises(Problem, match="pages are open already") as refused:
        Reader(world.feed)
    assert refused.value.status == 503
    for reader in readers:
        reader.first()
    world.second(report(node()))
    for reader in readers:
        reader.next()
    assert world.num_asked == 1
    assert world.feed.frame() is world.feed.frame()
    readers[0].close()
    Reader(world.feed)


def test_a_mesh_that_is_silent_is_said_to_be_with_the_time_since() -> None:
    world = World()
    world.second(report(node()))
    world.second(None)
    world.now += 10
    world.feed.turn()
    told = parsed(world.feed.frame())["mesh"]

    assert (told["is_up"], told["view"], told["trouble"]) == (False, None, "no broker answered")
    assert told["quiet_s"] == pytest.approx(11, abs=0.2)


def test_the_feed_turns_without_answers_too_and_wakes_its_readers_to_leave() -> None:
    async def leaves() -> bool:
        world = World()
        running = asyncio.create_task(world.feed.run())
        waiting = asyncio.create_task(world.feed.next_turn())
        await asyncio.sleep(0)
        world.feed.leave_soon()
        await asyncio.wait_for(waiting, 1)
        running.cancel()
        return world.feed.is_leaving

    assert asyncio.run(leaves())


def test_lines_and_their_memory_end_after_two_minutes() -> None:
    world = World()
    for second in range(NUM_SAMPLES + 30):
        world.second(report(node(f"n{second % 3}"), num_queued=second))
    lines = world.feed._history.lines()

    assert lines["mesh"]["queued"] == list(range(30, NUM_SAMPLES + 30))
    assert list(lines["nodes"]) == [f"n{(NUM_SAMPLES + 29) % 3}"]


def test_the_shares_of_callers_are_of_the_last_minute_and_survive_a_new_connection() -> None:
    shares = Shares()
    shares.add({"a": 1000, "b": 0})
    shares.add({"a": 1010, "b": 5})
    assert shares.add({"a": 4, "b": 5, "c": 2}) == {"a": 14, "b": 5, "c": 2}  # a has connected anew, c has come
    for _ in range(60):
        last = shares.add({"a": 4, "b": 6})
    assert last == {"a": 0, "b": 1}
    assert shares.add({}) == {}


def test_a_node_that_does_not_report_its_devices_is_shown_as_one() -> None:
    old = node(device="NVIDIA A10G", busy_fraction=0.5, memory_used_bytes=6, memory_total_bytes=24)
    (shown,) = view_of(report(old))["nodes"]

    (device,) = shown["devices"]
    assert (device["name"], device["utilisation"], device["memory_total"]) == ("NVIDIA A10G", 0.5, 24)
    assert view_of(report(node()))["nodes"][0]["devices"] == []


def test_a_view_is_bounded_and_finite_whatever_nodes_say() -> None:
    bad = DeviceReport(name="x" * 5000, utilisation=float("nan"), power_w=float("inf"))
    nodes = [node(f"n{number:04}", tokens_per_s=float("inf"), devices=(bad,) * 99) for number in range(2000)]
    nodes.append(node("zzz", state="lost", note="gone " * 1000))
    view = view_of(report(*nodes, clients=(ClientReport(name="c" * 5000),)))

    assert (len(view["nodes"]), view["num_nodes"]) == (MAX_NODES, 2001)
    assert view["nodes"][0]["name"] == "zzz"  # whoever needs a person comes first
    json.dumps(view, allow_nan=False)
    assert len(json.dumps(view["nodes"][1])) < 10_000
    assert len(view["callers"][0]["name"]) <= 200
