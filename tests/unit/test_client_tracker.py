"""What becomes of one request, event by event, on hand-made times."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.bodies import TokenEntry
from mesh.client.params import asks_of
from mesh.client.results import Choice
from mesh.client.retry import RetryPolicy
from mesh.client.tracker import State, Tracker
from mesh.errors import (
    DeadlineExceeded,
    EngineFailed,
    Failed,
    NodeLost,
    NoSuchModel,
    NotReady,
    Overloaded,
    Rejected,
    RequestError,
)
from tests.support.story import entry_of, text_of, tokens_of


class Story:
    """One request, the server's side of it, and a clock."""

    def __init__(self, *, policy: RetryPolicy | None = None, wants_chunks: bool = True, **params: Any) -> None:
        ask = asks_of({"prompt": "once", "max_tokens": 6, **params})[0]
        self.now = 100.0
        self.tracker = Tracker(
            1, ask, self.now, policy=policy or RetryPolicy(), rng=random.Random(1), wants_chunks=wants_chunks
        )
        self.body: dict[str, Any] = {}
        self.shown = ""

    def submits(self) -> Story:
        self.now = max(self.now, self.tracker.due)
        self.head, self.body = self.tracker.submit(self.now)
        return self

    def hears(self, start: int, stop: int, *, ends: bool = False, attempt: int | None = None) -> Story:
        self.hears_entry(entry_of(self.body, 1, attempt or self.tracker.attempt, start, stop, ends=ends))
        return self

    def hears_entry(self, entry: TokenEntry) -> None:
        chunk = self.tracker.on_tokens(entry, self.now)
        self.shown += chunk.text if chunk else ""

    def loses(self, reason: str = "died") -> Story:
        self.tracker.on_lost(self.tracker.attempt, "n1", reason, self.now)
        return self

    def is_refused(self, code: str, retry_after_s: float = 0.0, default: type[RequestError] = Rejected) -> Story:
        self.tracker.on_error(
            self.tracker.attempt, code, "because", "n1", self.now, retry_after_s=retry_after_s, default=default
        )
        return self

    def fails(self, code: str) -> Story:
        return self.is_refused(code, default=Failed)

    def is_exact(self, count: int = 6) -> bool:
        outcome = self.tracker.outcome
        assert isinstance(outcome, Choice)
        tokens = tokens_of(self.body, count)
        text = text_of(tokens, is_whole=True)
        return list(outcome.token_ids) == tokens and outcome.text == text and self.shown in (text, "")

    @property
    def error(self) -> RequestError:
        assert isinstance(self.tracker.outcome, RequestError)
        return self.tracker.outcome


def test_an_undisturbed_answer_is_told_in_full():
    story = Story(logprobs=True, seed=5, temperature=1.0).submits()
    story.now += 1
    story.hears(0, 2)
    story.now += 1
    story.hears(2, 6, ends=True)

    assert story.is_exact()
    outcome = story.tracker.outcome
    assert isinstance(outcome, Choice)
    assert (outcome.ttft_s, outcome.total_s, outcome.attempts) == (1.0, 2.0, 1)
    assert (outcome.node, outcome.model, outcome.finish_reason, outcome.seed) == ("fake", "fake-model", "length", 5)
    assert outcome.logprobs == tuple(-float(token_id) for token_id in outcome.token_ids)
    assert outcome.pieces == tuple(f"w{token_id} ".encode() for token_id in outcome.token_ids)
    assert outcome.stop_string is None


def test_a_lost_node_makes_the_next_attempt_resume_at_the_token_reached():
    story = Story().submits().hears(0, 4).loses()
    assert (story.tracker.state, story.tracker.due) == (State.WAITING, story.now)

    story.submits()
    assert (story.head.attempt, story.head.max_tokens, len(story.body["resume"])) == (2, 2, 4)
    assert story.hears(4, 6, ends=True).is_exact()


def test_late_frames_of_an_older_attempt_are_dropped_and_counted():
    story = Story().submits().hears(0, 2).loses().submits()
    story.hears(2, 4, attempt=1).hears(2, 6, ends=True)

    assert story.is_exact()
    assert story.tracker.num_stale == 1


def test_a_repeated_frame_adds_nothing():
    assert Story().submits().hears(0, 3).hears(0, 3).hears(1, 3).hears(3, 6, ends=True).is_exact()


@pytest.mark.parametrize(("start", "stop"), [(3, 4), (1, 4), (2, 7)], ids=["a gap", "an overlap", "too many"])
def test_tokens_out_of_order_cost_an_attempt_and_not_the_answer(start, stop):
    story = Story().submits().hears(0, 2).hears(start, stop)

    assert (story.tracker.attempt, story.tracker.state) == (2, State.WAITING)
    assert story.submits().hears(2, 6, ends=True).is_exact()


def test_when_only_the_end_was_lost_the_held_back_text_still_comes():
    """All six tokens are here, but resume must be shorter than max_tokens, and the last text is on the dead node."""
    story = Story().submits().hears(0, 4).hears(4, 6).loses().submits()

    assert len(story.body["resume"]) == 4
    story.hears(4, 5)
    assert story.hears(5, 6, ends=True).is_exact()


def test_the_end_may_come_without_tokens():
    assert Story().submits().hears(0, 6).hears(6, 6, ends=True).is_exact()


def test_a_request_that_kills_nodes_is_stopped_and_tells_its_story():
    story = Story(policy=RetryPolicy(max_attempts=3))
    for _ in range(2):
        story.submits().loses("died")
    story.submits().fails("engine_failed")

    assert type(story.error) is EngineFailed
    assert story.error.attempts == ("attempts 1-2: lost: node n1: died", "attempt 3: engine_failed: node n1: because")
    assert "3 times (max_attempts=3)" in story.error.message


def test_draining_nodes_and_own_pauses_do_not_count_as_deaths():
    story = Story(policy=RetryPolicy(max_attempts=1))
    for _ in range(20):
        story.submits().loses("n1 is draining")
    story.submits().tracker.on_disconnected("stood still", story.now, is_own_fault=True)

    assert story.submits().hears(0, 6, ends=True).is_exact()


def test_an_overloaded_mesh_is_waited_for_as_long_as_it_takes():
    story = Story()
    for _ in range(1000):
        story.submits().is_refused("overloaded", retry_after_s=1.0)
        assert 1.0 <= story.tracker.due - story.now <= 3.0

    assert story.submits().hears(0, 6, ends=True).is_exact()


def test_an_overloaded_mesh_ends_at_the_deadline_with_the_reason():
    story = Story(timeout_s=5.0).submits().is_refused("overloaded", retry_after_s=10)
    story.now += 5
    story.tracker.on_time(story.now)

    assert type(story.error) is DeadlineExceeded
    assert story.error.attempts == ("attempt 1: overloaded: node n1: because",)


@pytest.mark.parametrize(("patience_s", "retry_after_s"), [(0.0, 0.0), (0.0, 0.5), (2.0, 2.0), (2.0, 30.0)])
def test_who_does_not_want_to_wait_that_long_hears_at_once_when_to_come_back(patience_s, retry_after_s):
    story = Story(policy=RetryPolicy(overload_patience_s=patience_s)).submits().is_refused("overloaded", retry_after_s)

    assert type(story.error) is Overloaded
    assert (story.error.retry_after_s, story.error.attempts) == (retry_after_s, ())


def test_patience_with_an_overloaded_mesh_ends_with_a_last_try():
    story = Story(policy=RetryPolicy(overload_patience_s=2.0))
    while story.tracker.state is State.WAITING:
        story.submits().is_refused("overloaded", retry_after_s=0.3)
        assert story.tracker.due <= 102.0

    assert type(story.error) is Overloaded
    assert 101.7 <= story.now <= 102.0
    assert story.error.attempts


def test_what_has_begun_is_finished_however_overloaded_the_mesh_is():
    story = Story(policy=RetryPolicy(overload_patience_s=0.0)).submits().hears(0, 2).loses()
    for _ in range(10):
        story.submits().is_refused("overloaded", retry_after_s=5.0)

    assert story.submits().hears(2, 6, ends=True).is_exact()


def test_a_mesh_without_a_ready_node_is_waited_for_with_patience_only():
    story = Story(policy=RetryPolicy(patience_s=60))
    num_tries = 0
    while story.tracker.state is State.WAITING:
        story.submits().is_refused("not_ready", retry_after_s=0.5)
        num_tries += 1

    assert type(story.error) is NotReady
    assert 60 < story.now - 100 < 65
    assert num_tries < 60


def test_pauses_grow_while_nothing_moves_and_start_over_after_a_token():
    story = Story().submits()
    pauses = []
    for _ in range(7):
        story.loses("draining")
        pauses.append(story.tracker.due - story.now)
        story.submits()
    assert pauses[0] == 0
    assert pauses[6] > 10 * pauses[1]

    story.hears(0, 1).loses()
    assert story.tracker.due == story.now


def test_an_error_that_cannot_change_ends_it_at_once():
    assert type(Story().submits().is_refused("no_such_model").error) is NoSuchModel


def test_a_code_from_the_future_is_a_plain_failure():
    assert type(Story().submits().fails("melted").error) is Failed


def test_the_deadline_travels_as_the_time_left_and_never_as_none():
    story = Story(timeout_s=5.0)
    story.now += 3
    assert story.submits().head.deadline_s == 2.0
    story.loses()
    story.now = story.tracker.deadline
    assert 0 < story.submits().head.deadline_s < 0.01


def test_errors_of_an_older_attempt_are_not_believed():
    story = Story().submits().loses().submits()
    story.tracker.on_error(1, "engine_failed", "late", "n1", story.now, default=Failed)
    story.tracker.on_lost(1, "n1", "late", story.now)

    assert (story.tracker.state, story.tracker.attempt) == (State.SENT, 2)


def test_overloaded_is_an_error_class_that_says_it_can_be_retried():
    assert Overloaded.retryable
    assert NodeLost.retryable


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["tokens", "tokens", "tokens", "repeat", "late", "gap", "lost", "cut", "overloaded", "drained"]
        ),
        st.integers(1, 5),
    ),
    max_size=40,
)


@given(events=EVENTS, max_tokens=st.integers(1, 12))
def test_whatever_the_network_does_the_answer_is_exact(events, max_tokens):
    """Loss, repetition, late and reordered frames in any order: every token once, every character once."""
    story = Story(max_tokens=max_tokens, policy=RetryPolicy(max_attempts=1000), logprobs=True).submits()
    heard: list[TokenEntry] = []
    position = 0
    for kind, size in events:
        if story.tracker.state is State.WAITING:
            story.submits()
            position = len(story.body.get("resume", ()))
        attempt = story.tracker.attempt
        stop = min(position + size, max_tokens)
        if kind == "tokens" and stop > position:
            heard.append(entry_of(story.body, 1, attempt, position, stop))
            story.hears_entry(heard[-1])
            position = stop
        elif kind in ("repeat", "late") and heard:
            old = heard[-min(size, len(heard))]
            story.hears_entry(old)
        elif kind == "gap" and stop < max_tokens:
            story.hears(stop + 1, max_tokens)
        elif kind == "lost":
            story.loses()
        elif kind == "drained":
            story.loses("draining")
        elif kind == "cut":
            story.tracker.on_disconnected("connection lost", story.now)
        elif kind == "overloaded":
            story.is_refused("overloaded", 0.1)
        assert list(story.tracker.token_ids) == tokens_of(story.body, len(story.tracker.token_ids))

    if story.tracker.state is State.WAITING:
        story.submits()
        position = len(story.body.get("resume", ()))
    story.hears(position, max_tokens, ends=True)

    assert story.is_exact(max_tokens)
    outcome = story.tracker.outcome
    assert isinstance(outcome, Choice)
    assert b"".join(outcome.pieces or ()).decode() == outcome.text
    assert outcome.logprobs == tuple(-float(token_id) for token_id in outcome.token_ids)
