"""Deadlines: each once, in order, and nothing left behind."""

from __future__ import annotations

import math
from functools import partial

from broker.timers import Timers


def test_timers_run_once_in_order_and_not_before_their_time() -> None:
    timers, ran = Timers(), []
    for when in (3.0, 1.0, 2.0):
        timers.at(when, lambda now, when=when: ran.append((when, now)))

    assert timers.next() == 1.0
    timers.run_due(0.9)
    assert ran == []
    timers.run_due(2.5)
    assert ran == [(1.0, 2.5), (2.0, 2.5)]
    timers.run_due(9.0)
    timers.run_due(10.0)
    assert [when for when, _ in ran] == [1.0, 2.0, 3.0]
    assert timers.next() == math.inf


def test_a_cancelled_timer_does_not_run_and_is_not_waited_for() -> None:
    timers, ran = Timers(), []
    timer = timers.at(1.0, ran.append)
    timers.at(2.0, ran.append)
    timers.cancel(timer)
    timers.cancel(timer)

    assert timers.next() == 2.0
    assert len(timers) == 1
    timers.run_due(5.0)
    assert ran == [5.0]


def test_a_timer_may_set_another_that_is_due_at_once() -> None:
    timers, ran = Timers(), []
    timers.at(1.0, lambda now: timers.at(1.0, ran.append))
    timers.run_due(1.0)

    assert ran == [1.0]


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    timers.at(1e9, print)
    for index in range(10_000):
        timers.cancel(timers.at(3600.0 + index, partial(print)))

    assert len(timers) == 1
    assert len(timers._heap) < 200
