"""Adaptive concurrency holds the target with as many requests as it can, on a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from mesh import messages
from mesh.errors import ConfigError
from node.concurrency import MIN_STEPS, WINDOW_S, AdaptiveLimit, Step
from node.config import NodeConfig
from node.engine.base import EngineOptions, EngineRequest, StepOutput
from node.engine.synthetic import PRESETS, SyntheticEngine
from tests.support.node_harness import FakeWorker, NodeHarness, engine_info

TARGET_S = 0.020


class Clocked:
    """One limit and its clock. A step with `batch` requests takes `itl_s(batch)`."""

    def __init__(self, limit: int, slots: int = 100, target_s: float = TARGET_S) -> None:
        self.limit = AdaptiveLimit(target_s, slots, limit)
        self.now = 0.0

    def steps(
        self, itl_s: float, seconds: float, *, running: int | None = None, is_waiting: bool = True, inside: int = 0
    ) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += itl_s
            num = self.limit.limit if running is None else running
            self.limit.after_step(Step(itl_s * num, num, num, inside, is_waiting), self.now)

    def windows(self, itl_s: float, number: int = 1, **what: object) -> int:
        """So many decisions; the limit after them."""
        self.steps(itl_s, number * max(WINDOW_S, MIN_STEPS * itl_s) + 3 * itl_s, **what)  # type: ignore[arg-type]
        return self.limit.limit


@pytest.mark.parametrize(
    ("itl_s", "expected"),
    [
        (0.020, 40),
        (0.0197, 40),  # near enough
        (0.0209, 40),
        (0.0150, 53),  # × target/measured
        (0.0010, 80),  # at most doubled
        (0.0250, 36),  # half of the way down
        (0.0500, 28),
        (1.0000, 28),  # a pause, such as a host that was suspended, is one window
    ],
)
def test_each_window_moves_the_limit_towards_the_target(itl_s: float, expected: int) -> None:
    assert Clocked(40).windows(itl_s) == expected


def test_the_limit_comes_near_from_one_side_and_stays() -> None:
    """A step of 8 ms and 0.1 ms for each sequence: 120 sequences take 20 ms."""
    clocked, limits = Clocked(4, slots=200), []
    for _ in range(30):
        clocked.steps(0.008 + 0.0001 * clocked.limit.limit, WINDOW_S + 0.02)
        limits.append(clocked.limit.limit)

    assert limits == sorted(limits)
    assert 116 <= limits[8] == limits[-1] <= 130


def test_without_waiting_work_nothing_is_raised() -> None:
    assert Clocked(40).windows(0.008, 5, is_waiting=False) == 40
    assert Clocked(40).windows(0.008, 5, running=39) == 40


def test_an_engine_that_cannot_run_what_it_has_is_not_given_more() -> None:
    """Its cache is full: more requests would wait in there, where they cannot be handed over."""
    assert Clocked(40).windows(0.008, 5, inside=10) == 40
    assert Clocked(40).windows(0.008, 1, inside=5) > 40


def test_a_limit_that_was_not_reached_is_lowered_from_what_ran() -> None:
    assert Clocked(64).windows(0.025, running=10) == 9


def test_a_lowered_limit_waits_until_as_many_have_left() -> None:
    clocked = Clocked(64)
    assert clocked.windows(0.040) == 48
    assert clocked.windows(0.040, 10, running=64) == 48  # these run on, whatever the limit is
    assert clocked.windows(0.040, running=48) < 48


def test_the_limit_stays_between_one_and_the_slots_and_says_so() -> None:
    clocked = Clocked(8, slots=16)
    assert clocked.windows(0.100, 20) == 1
    assert str(clocked.limit) == "1 of 16 slots: even so 100 ms, target 20 ms between tokens"
    assert clocked.windows(0.001, 20) == 16
    assert str(clocked.limit) == "all 16 slots: 1 ms, target 20 ms between tokens"


def test_idle_time_between_two_bursts_is_no_window() -> None:
    clocked = Clocked(40)
    for _ in range(10):
        clocked.steps(0.050, 0.5)
        clocked.limit.after_step(Step(0.05, 1, 0, 0, False), clocked.now)
        clocked.now += 60
    assert clocked.limit.limit == 40


def test_requests_of_one_token_are_not_held_back() -> None:
    """They have no time between tokens, so no target is missed."""
    clocked = Clocked(4)
    for _ in range(200):
        clocked.now += 0.02
        clocked.limit.after_step(Step(0.0, 0, clocked.limit.limit, 0, True), clocked.now)
    assert clocked.limit.limit > 16


def test_a_worker_that_comes_back_with_other_slots_begins_anew() -> None:
    node = NodeHarness(slots=(40,), target_itl_s=TARGET_S)
    pool = node.agent.work.pool
    assert pool.slots_total == 10
    node.workers[0].info = engine_info(80)
    assert pool.slots_total == 20
    assert "20 of 80 slots to begin with" in node.agent.report(node.now).nodes[0].note


@pytest.mark.parametrize("value", ["-0.01", "20", "nan"])
def test_a_target_that_makes_no_sense_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"--target-itl: must be from 0 to 10 seconds.*0\.02 is 20 ms"):
        NodeConfig(target_itl_s=float(value))


# --- the whole node with the synthetic engine's timing ----------------------------------------------------------------


class _SteppedEngine(SyntheticEngine):
    """The synthetic engine, one step at a time, on a clock that only its steps move."""

    def __init__(self, options: EngineOptions) -> None:
        self.now = 1000.0
        super().__init__(options, clock=lambda: self.now)

    def _spend(self, duration_s: float) -> None:
        self.now += duration_s

    def one_step(self) -> list[StepOutput]:
        return self._take_commands() + self._step()


class SaturatedNode:
    """A node with a target and more work than it can run."""

    def __init__(self, device: str, target_s: float) -> None:
        self.engine = _SteppedEngine(EngineOptions("synthetic", device=device))
        self.slots = int(PRESETS[device].slots)
        self.node = NodeHarness(slots=(self.slots,), target_itl_s=target_s)
        self.node.workers[0].info = engine_info(self.slots, 4000, 160_000)
        self.node.agent.work.worker_ready(self.node.agent.work.codec, self.node.now)
        self.node.hello()
        self.node.agent.work.facts.listener = self
        self.gaps: list[float] = []
        self._ids = count(1)

    def observe_queue(self, seconds: float) -> None: ...

    def observe_first_token(self, seconds: float) -> None: ...

    def observe_inter_token(self, seconds: float, count: int) -> None:
        self.gaps.extend([seconds] * count)

    def runs(self, seconds: float, *, prompt: int, tokens: int, until: Callable[[int], bool] | None = None) -> float:
        """Returns after how many seconds `until` was true of the limit."""
        began_at = self.node.now
        self.gaps.clear()
        while self.node.now < began_at + seconds:
            if until is not None and until(self.node.agent.work.pool.slots_total):
                return self.node.now - began_at
            while len(self.node.agent.work.requests) < 2 * self.slots:
                number = next(self._ids)
                length = tokens // 2 + number * 37 % tokens  # in no step, so that they do not all end at once
                self.node.submits(number, prompt=f"{number} ".ljust(prompt, "x"), max_tokens=length, ignore_eos=True)
            self._hand_over(self.node.workers[0])
            outputs = self.engine.one_step()
            self.node.now = self.engine.now
            self.node.workers[0].stats = self.engine.stats()
            self.node.agent.work.take_outputs(outputs, self.node.now)
            self.node.hello()  # its client is still there
            self.node.sent.clear()
        return seconds

    def forgets_all(self) -> None:
        """Its client cancels everything."""
        self.node.receives(messages.Cancel(tuple(r.head.request_id for r in self.node.agent.work.requests)))
        self.engine.cancel(self.node.workers[0].cancelled)

    def _hand_over(self, worker: FakeWorker) -> None:
        self.engine.submit(worker.submitted)
        worker.submitted.clear()


def right_slots(device: str, target_s: float, *, prompt: int, tokens: int) -> int:
    """The batch whose mean step takes as long as the target, by the timing model."""
    timing, batch = PRESETS[device], 1
    while True:
        prefill_s = batch * prompt / tokens / timing.prefill_tokens_per_s
        if timing.step_s(batch, 0, batch * (prompt + tokens // 2)) + prefill_s >= target_s:
            return batch
        batch += 1


def test_a_saturated_node_finds_the_right_number_holds_the_target_and_recovers_when_the_load_changes() -> None:
    target_s = 0.019
    node = SaturatedNode("a10g", target_s)
    right = right_slots("a10g", target_s, prompt=6, tokens=100)
    assert 16 < right < node.slots

    def is_about_right(limit: int) -> bool:
        return 0.85 * right <= limit <= 1.15 * right

    assert node.runs(30, prompt=6, tokens=100, until=is_about_right) < 12
    node.runs(4, prompt=6, tokens=100)
    node.runs(6, prompt=6, tokens=100)
    assert is_about_right(node.node.agent.work.pool.slots_total)
    assert sorted(node.gaps)[int(0.9 * len(node.gaps))] == pytest.approx(target_s, rel=0.1)
    assert sum(node.gaps) / len(node.gaps) == pytest.approx(target_s, rel=0.05)

    node.runs(15, prompt=300, tokens=60)  # each prompt makes a step five times as long
    assert 1 <= node.node.agent.work.pool.slots_total < 0.4 * right

    node.forgets_all()
    assert node.runs(30, prompt=6, tokens=100, until=is_about_right) < 12


def test_brokers_are_told_the_number_that_runs_and_waiting_requests_stay_outside_the_engine() -> None:
    node = NodeHarness(slots=(40,), target_itl_s=TARGET_S)
    node.hello()
    for number in range(30):
        node.submits(number)
    (load,) = node.agent.work.models(b"client")

    assert load.slots_total == len(node.workers[0].submitted) == 10
    assert (load.num_running, load.num_waiting) == (30, 20)


def test_a_raised_limit_is_used_at_once() -> None:
    node = NodeHarness(slots=(40,), target_itl_s=TARGET_S)
    node.hello()
    for number in range(60):
        node.submits(number, max_tokens=500, ignore_eos=True)
    worker = node.workers[0]
    for after in range(120):
        running: list[EngineRequest] = list(worker.submitted)
        node.now += 0.01
        outputs = [StepOutput(r.request_id, (300 + after,)) for r in running]
        node.agent.work.take_outputs(outputs, node.now)
    assert len(worker.submitted) == node.agent.work.pool.slots_total == 20
