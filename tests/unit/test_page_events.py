"""What the page says has happened, from one status report to the next."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")

from broker.gateway.page.events import Changes, Event, counted
from broker.gateway.page.log import EventLog
from mesh.report import ModelReport, NodeReport, StatusReport


def node(name: str = "b", state: str = "ready", **facts: Any) -> NodeReport:
    return NodeReport(**{"name": name, "node_id": f"id-{name}", "address": f"tcp://{name}:1", "state": state, **facts})


def report(*nodes: NodeReport, **facts: Any) -> StatusReport:
    return StatusReport(**{"kind": "broker", "name": "b1", "node_id": "x", "uptime_s": 10.0, **facts}, nodes=nodes)


def told(*reports: StatusReport | None, trouble: str = "") -> list[str]:
    """What is said of the last one, after those before."""
    changes, events = Changes(), list[Event]()
    for each in reports:
        events = changes.to(each, trouble)
    return [f"{event.level}: {event.subject} {event.text}".replace(":  ", ": ") for event in events]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (node(state="ready"), node(state="busy"), []),
        (node(state="busy"), node(state="ready"), []),
        (node(state="ready"), node(state="lost", note="connection lost"), ["bad: b is lost: connection lost"]),
        (node(state="lost"), node(state="joining", note="loading"), ["info: b is joining: loading"]),
        (node(state="joining", note="loading"), node(state="busy"), ["good: b is ready"]),
        (node(state="ready"), node(state="suspect"), ["warn: b does not answer"]),
        (node(state="suspect"), node(state="busy"), ["good: b answers again"]),
        (node(state="busy"), node(state="stalled", note="no step for 9 s"), ["bad: b has stalled: no step for 9 s"]),
        (node(state="ready"), node(state="draining"), ["info: b is draining"]),
        (node(state="ready"), node(state="sleeping"), ["info: b is sleeping"]),  # of a newer broker
        (node(uptime_s=60), node(uptime_s=2), ["info: b has been started again"]),
        (node(state="lost", uptime_s=0), node(uptime_s=5), ["good: b is ready"]),
        (None, node(), ["good: b is ready"]),
        (node(), None, ["info: b has left"]),
        (node(state="lost", note="first\nline"), node(state="lost", note="other words"), []),
        (None, node("", "joining", node_id="", note="connection refused"), []),  # an address where nobody is yet
        (node("", "lost", node_id=""), None, []),
    ],
)
def test_a_change_of_a_nodes_state_is_one_event(
    before: NodeReport | None, after: NodeReport | None, said: list[str]
) -> None:
    others = (node("a"), node("c", "busy"))
    reports = [report(*others, *([one] if one else [])) for one in (before, after)]

    assert told(*reports) == said


@pytest.mark.parametrize(
    ("counter", "grown", "said"),
    [
        ("lost", 7, "warn: 7 running answers handed over to resume elsewhere"),
        ("lost", 1, "warn: 1 running answer handed over to resume elsewhere"),
        ("failed", 2, "bad: 2 requests failed"),
        ("expired", 1, "warn: 1 request passed the deadline"),
        ("rejected_overloaded", 30, "warn: 30 requests turned away: the queue is full"),
    ],
)
def test_a_counter_that_grows_is_one_event(counter: str, grown: int, said: str) -> None:
    assert told(report(counters={counter: 5}), report(counters={counter: 5 + grown, "accepted": 99})) == [said]


def test_a_killed_node_and_its_streams_are_told_together() -> None:
    before = report(node(), counters={"lost": 0})
    after = report(node(state="lost", note="connection lost"), counters={"lost": 7}, uptime_s=11.0)

    assert told(before, after) == [
        "warn: 7 running answers handed over to resume elsewhere",
        "bad: b is lost: connection lost",
    ]


def test_the_first_report_says_what_is_there_and_nothing_else() -> None:
    assert told(report(node(), node("a", "lost"), counters={"lost": 9})) == ["good: broker b1 answers, 1 node ready"]


def test_a_mesh_that_does_not_answer_is_said_once_and_compared_with_what_was_before() -> None:
    before = report(node())

    assert told(before, None, trouble="no broker\nanswered") == ["bad: broker b1 does not answer: no broker answered"]
    assert told(before, None, None) == []
    assert told(before, None, report(node(state="lost"))) == [
        "good: broker b1 answers again, 0 nodes ready",
        "bad: b is lost",
    ]
    assert told(None) == []  # nothing is known yet


def test_another_broker_or_a_new_process_of_it_starts_counting_anew() -> None:
    before = report(node(), counters={"lost": 500})

    assert told(before, report(node(), name="b2", node_id="y", counters={"lost": 700})) == [
        "info: broker b2 answers in place of broker b1, 1 node ready"
    ]
    assert told(before, report(node(), uptime_s=1.0, counters={"lost": 600})) == [
        "info: broker b1 has been started again"
    ]


def test_many_nodes_that_change_alike_are_one_event() -> None:
    before = report(*[node(f"n{number}") for number in range(300)])
    after = report(*[node(f"n{number}", "lost" if number < 200 else "ready") for number in range(300)])

    assert told(before, after) == ["bad: 200 nodes are lost"]


def test_models_come_and_go() -> None:
    before, after = (report(models=(ModelReport(name=name),)) for name in ("phi", "demo"))

    assert told(before, after) == ["info: demo is served", "warn: phi is not served any more"]


def test_names_and_notes_of_other_hosts_are_kept_to_one_short_line() -> None:
    (said,) = told(report(), report(node("x\ny" + "z" * 900, "lost", note="n" * 900)))

    assert "\n" not in said
    assert len(said) < 450


def test_two_nodes_with_one_id_are_told_apart() -> None:
    twins = [node("t1", node_id="same"), node("t2", node_id="same")]

    assert told(report(*twins), report(twins[0], node("t2", "lost", node_id="same"))) == ["bad: t2 is lost"]


def test_the_log_keeps_the_last_hundred_and_gives_only_what_is_new() -> None:
    log = EventLog()
    for number in range(130):
        log.add(Event("ready", "good", f"n{number}", "is ready"), now=float(number))
    seen = log.change

    assert [event["subject"] for event in log.since(0)] == [f"n{number}" for number in range(30, 130)]
    assert log.since(seen) == []
    log.add(Event("lost", "bad", "n1", "is lost"), now=131.0)
    assert [(event["id"], event["subject"], event["at"]) for event in log.since(seen)] == [(131, "n1", 131.0)]


def test_what_goes_on_is_one_event_that_grows() -> None:
    log = EventLog()
    log.add(counted("rejected_overloaded", 10), now=0.0)
    log.add(Event("lost", "bad", "b", "is lost"), now=1.0)
    seen = log.change
    log.add(counted("rejected_overloaded", 5), now=2.0)

    (grown,) = log.since(seen)
    assert (grown["id"], grown["text"]) == (1, "15 requests turned away: the queue is full")
    assert [event["id"] for event in log.since(0)] == [2, 1]  # in the order of when they last happened
    log.add(counted("rejected_overloaded", 1), now=60.0)
    assert [event["id"] for event in log.since(0)] == [2, 1, 3]
