"""The synthetic engine says what it should, at the pace it should, and fails when told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from node.engine import synthetic_vocab as vocab
from node.engine.base import EngineOptions, EngineRequest
from node.engine.synthetic import PRESETS, SyntheticEngine, timing_of
from tests.engine.driver import Driver

PROMPT = vocab.encode("Tell me about the mesh.")

Start = Callable[..., Driver]


@pytest.fixture
def start() -> Iterator[Start]:
    drivers: list[Driver] = []

    def _start(device: str = "instant", **synthetic: float) -> Driver:
        drivers.append(Driver(SyntheticEngine(EngineOptions("synthetic", device=device, synthetic=synthetic))))
        return drivers[-1]

    yield _start
    for driver in drivers:
        driver.engine.stop()


def request(max_tokens: int, **options: object) -> EngineRequest:
    return EngineRequest(0, PROMPT, max_tokens, stop_token_ids=[vocab.EOS_ID], num_prompt=len(PROMPT), **options)  # type: ignore[arg-type]


def test_it_says_what_a_checker_expects(start: Start) -> None:
    driver = start()
    assert driver.ask(request(300)).tokens == vocab.expected_tokens(PROMPT, 300)
    assert driver.ask(request(300, temperature=1.0, seed=5)).tokens == vocab.expected_tokens(PROMPT, 300, seed=5)


def test_an_answer_ends_by_itself_at_its_natural_length(start: Start) -> None:
    answer = start().ask(request(3000))
    length = vocab.natural_length(vocab.story_key(PROMPT))
    assert vocab.MIN_NATURAL_LENGTH <= length <= vocab.MAX_NATURAL_LENGTH
    assert answer.finish_reason == "stop"
    assert answer.tokens.index(vocab.EOS_ID) == len(answer.tokens) - 1 == length


def test_it_splits_characters_over_tokens_and_the_text_is_whole() -> None:
    tokens = vocab.expected_tokens(PROMPT, 400, stop_token_ids=())
    assert any(token >= 0x80 for token in tokens if token < vocab.FIRST_WORD)
    text = vocab.decode(tokens)
    assert any(character in text for character in vocab.SPLIT_CHARACTERS)
    assert "�" in "".join(map(vocab.piece, tokens))
    assert "�" not in text[:-1]  # only a cut at the very end may split a character


def test_the_pace_is_that_of_the_timing_model(start: Start) -> None:
    driver = start("a100", step_base_s=0.004, step_per_seq_s=0.0005, step_per_cached_token_s=0, prefill_tokens_per_s=0)
    started = time.monotonic()
    driver.run(*(request(50, seed=i) for i in range(8)))
    expected_s = 50 * (0.004 + 8 * 0.0005)
    assert expected_s <= time.monotonic() - started < 2 * expected_s
    assert driver.engine.stats().busy_s == pytest.approx(expected_s)


def test_prefill_takes_its_time(start: Start) -> None:
    driver = start(prefill_tokens_per_s=10_000)
    started = time.monotonic()
    driver.ask(EngineRequest(0, [65] * 1000, 1))
    assert 0.1 <= time.monotonic() - started < 0.5


def test_the_cache_limits_how_many_run_together(start: Start) -> None:
    driver = start(cache_tokens=250, step_base_s=0.001)
    ids = driver.submit([EngineRequest(0, [65] * 50, 50) for _ in range(6)])
    driver.wait(lambda: driver.answers[ids[0]].tokens)
    assert driver.engine.stats().num_running == 2
    driver.wait(lambda: all(driver.answers[i].finish_reason == "length" for i in ids))


@pytest.mark.parametrize(("fault", "words"), [("fatal_after_steps", "fell off"), ("oom_after_steps", "out of memory")])
def test_a_fault_ends_the_engine_with_a_reason(start: Start, fault: str, words: str) -> None:
    driver = start(**{fault: 5})
    (doomed,) = driver.submit([request(100)])
    assert words in driver.wait_for_death()
    assert len(driver.answers[doomed].tokens) == 5
    assert driver.answers[doomed].finish_reason is None


def test_a_hung_engine_shows_in_its_stats(start: Start) -> None:
    driver = start(hang_after_steps=3)
    (stuck,) = driver.submit([request(100)])
    driver.wait(lambda: len(driver.answers[stuck].tokens) == 3)
    first = driver.engine.stats()
    second = driver.engine.stats()
    assert first.steps == second.steps == 3
    assert 0 < first.last_step_age_s < second.last_step_age_s


def test_bad_options_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="a10g, a100, h200, instant"):
        timing_of(EngineOptions("synthetic", device="tpu"))
    with pytest.raises(ValueError, match="step_bass_s"):
        timing_of(EngineOptions("synthetic", synthetic={"step_bass_s": 1}))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_can_hold_its_slots(preset: str) -> None:
    timing = PRESETS[preset]
    assert timing.cache_tokens / timing.slots >= 1000
