"""What every engine promises, asked of each engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.engine.base import EngineOptions, EngineRequest
from node.engine.factory import create_engine
from tests.engine.driver import Driver
from tests.engine.needs import HAS_VLLM, warnings_of_vllm

SLOTS = 8
MAX_MODEL_LEN = 1024
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue?",
    "Write one sentence about a river.",
    "What is two plus two?",
    "Tell me a joke.",
)


@pytest.fixture(
    scope="module",
    params=[
        "synthetic",
        pytest.param("transformers", marks=pytest.mark.model),
        *([pytest.param("vllm", marks=[pytest.mark.model, warnings_of_vllm])] if HAS_VLLM else []),
    ],
)
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(engine_name: str, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """One engine for the whole module: the model is loaded once."""
    if engine_name == "synthetic":
        pace = {"step_base_s": 0.001}  # so that a cancel comes before the end
        options = EngineOptions("synthetic", device="instant", slots=SLOTS, max_model_len=MAX_MODEL_LEN, synthetic=pace)
        engine = create_engine(options, Path("unused"))
    else:
        options = EngineOptions(
            engine=engine_name, model="demo", device="cpu", slots=SLOTS, max_model_len=MAX_MODEL_LEN
        )
        engine = create_engine(options, request.getfixturevalue("model_home"))
    driver = Driver(engine)
    yield driver
    engine.stop()


@pytest.fixture
def engine(loaded: Driver) -> Iterator[Driver]:
    yield loaded
    assert loaded.broken_promises == []
    assert loaded.fatal is None
    stats = loaded.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)


@pytest.fixture(scope="module")
def prompts(engine_name: str, request: pytest.FixtureRequest) -> list[list[int]]:
    if engine_name == "synthetic":
        return [list(question.encode()) for question in QUESTIONS]
    chat = request.getfixturevalue("chat")
    return [chat.prompt(question) for question in QUESTIONS]


def greedy(prompt: list[int], max_tokens: int = 16, **options: object) -> EngineRequest:
    return EngineRequest(0, prompt, max_tokens, num_prompt=len(prompt), **options)  # type: ignore[arg-type]


def sampled(prompt: list[int], max_tokens: int = 16, **options: object) -> EngineRequest:
    return greedy(prompt, max_tokens, **{"temperature": 0.9, "top_p": 0.95, "seed": 2**62 + 17, **options})


def forget(driver: Driver) -> None:
    """Empties the prefix cache, as on a node that never saw these prompts: otherwise a repeated prompt is not computed
    again, and a test of equal answers would compare an answer with itself."""
    if manager := getattr(driver.engine, "_manager", None):
        manager.batch_processor.cache.evict_cached_blocks()
    if llm := getattr(driver.engine, "_llm", None):
        assert llm.reset_prefix_cache()


def resumed(request: EngineRequest, tokens: list[int], at: int) -> EngineRequest:
    """The rest of a request of which `at` tokens have arrived."""
    return replace(request, token_ids=[*request.token_ids, *tokens[:at]], max_tokens=request.max_tokens - at)


def test_max_tokens_is_exact(engine: Driver, prompts: list[list[int]]) -> None:
    for max_tokens in (1, 2, 17):
        answer = engine.ask(greedy(prompts[0], max_tokens))
        assert len(answer.tokens) == max_tokens
        assert answer.finish_reason == "length"


def test_a_stop_token_ends_the_answer_and_is_its_last_token(engine: Driver, prompts: list[list[int]]) -> None:
    free = engine.ask(greedy(prompts[0])).tokens
    stop = free[5]
    answer = engine.ask(greedy(prompts[0], stop_token_ids=[stop]))
    assert answer.finish_reason == "stop"
    assert answer.tokens == free[: free.index(stop) + 1]


def test_greedy_gives_the_same_answer_again(engine: Driver, prompts: list[list[int]]) -> None:
    assert engine.ask(greedy(prompts[1])).tokens == engine.ask(greedy(prompts[1])).tokens


def test_the_seed_decides_a_sampled_answer(engine: Driver, prompts: list[list[int]]) -> None:
    first, again, other = engine.run(sampled(prompts[2]), sampled(prompts[2]), sampled(prompts[2], seed=1))
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


@pytest.mark.parametrize("kind", [greedy, sampled])
def test_a_request_that_moves_after_any_token_ends_with_the_same_tokens(kind, engine, prompts) -> None:  # type: ignore[no-untyped-def]
    whole = kind(prompts[3])
    tokens = engine.ask(whole).tokens
    for cut in (1, 2, 7, 15):
        forget(engine)
        assert tokens[:cut] + engine.ask(resumed(whole, tokens, cut)).tokens == tokens, f"cut at {cut}"


def test_an_answer_does_not_depend_on_the_others_in_the_batch(engine: Driver, prompts: list[list[int]]) -> None:
    requests = [*(greedy(prompt, 10) for prompt in prompts), *(sampled(p, 10, seed=i) for i, p in enumerate(prompts))]
    alone = [engine.ask(request).tokens for request in requests]
    forget(engine)
    together = [answer.tokens for answer in engine.run(*requests)]
    assert together == alone


def test_a_request_resumed_in_a_full_batch_ends_with_the_same_tokens(engine: Driver, prompts: list[list[int]]) -> None:
    requests = [kind(prompt) for prompt in prompts for kind in (greedy, sampled)]
    whole = [answer.tokens for answer in engine.run(*requests)]
    rests = [resumed(r, tokens, 3 + i) for i, (r, tokens) in enumerate(zip(requests, whole, strict=True))]
    forget(engine)
    for i, answer in enumerate(engine.run(*rests)):
        assert whole[i][: 3 + i] + answer.tokens == whole[i]


def test_logprobs_come_with_each_token_to_those_who_ask(engine: Driver, prompts: list[list[int]]) -> None:
    quiet, told, sampled_told = engine.run(
        greedy(prompts[4]), greedy(prompts[4], logprobs=True), sampled(prompts[4], logprobs=True)
    )
    assert quiet.logprobs == []
    assert told.tokens == quiet.tokens
    for answer in (told, sampled_told):
        assert len(answer.logprobs) == len(answer.tokens)
        assert all(logprob <= 0 for logprob in answer.logprobs)


def test_logprobs_survive_a_move(engine: Driver, prompts: list[list[int]]) -> None:
    whole = sampled(prompts[4], logprobs=True)
    answer = engine.ask(whole)
    forget(engine)
    rest = engine.ask(resumed(whole, answer.tokens, 9))
    assert rest.logprobs == pytest.approx(answer.logprobs[9:], abs=1e-3)


def test_more_requests_than_slots_all_end(engine: Driver, prompts: list[list[int]]) -> None:
    answers = engine.run(*(greedy(prompts[i % len(prompts)], 6) for i in range(3 * SLOTS)))
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert {len(answer.tokens) for answer in answers} == {6}


def test_a_cancelled_request_ends_once_and_frees_its_slot(engine: Driver, prompts: list[list[int]]) -> None:
    endless = engine.submit([greedy(prompts[5], 900) for _ in range(SLOTS)])
    (waiting,) = engine.submit([greedy(prompts[0], 4)])
    engine.wait(lambda: engine.answers[endless[0]].tokens)
    assert not engine.answers[waiting].tokens

    engine.engine.cancel(endless)

    engine.wait(lambda: engine.answers[waiting].finish_reason == "length")
    assert {engine.answers[i].finish_reason for i in endless} == {"cancelled"}


def test_cancelling_what_ended_or_never_was_does_nothing(engine: Driver, prompts: list[list[int]]) -> None:
    (done,) = engine.submit([greedy(prompts[0], 2)])
    engine.wait(lambda: engine.answers[done].finish_reason)
    engine.engine.cancel([done, 10**9])
    assert engine.ask(greedy(prompts[0], 2)).finish_reason == "length"


def test_a_request_that_cannot_run_is_refused_and_harms_no_other(engine: Driver, prompts: list[list[int]]) -> None:
    fine, too_long, too_much, empty = engine.run(
        greedy(prompts[0], 8),
        greedy([65] * (engine.info.max_model_len + 1), 1),
        greedy(prompts[0], engine.info.max_model_len),
        greedy([], 8),
    )
    assert (fine.finish_reason, len(fine.tokens)) == ("length", 8)
    for refused in (too_long, too_much, empty):
        assert refused.finish_reason == "error"
        assert refused.tokens == []
        assert refused.error
    assert str(engine.info.max_model_len) in (too_long.error or "")


def test_the_longest_request_that_fits_runs(engine: Driver) -> None:
    answer = engine.ask(greedy([65] * (engine.info.max_model_len - 2), 2))
    assert (answer.finish_reason, len(answer.tokens)) == ("length", 2)


def test_stats_show_progress(engine: Driver, prompts: list[list[int]]) -> None:
    before = engine.engine.stats()
    answers = engine.run(greedy(prompts[0], 10), greedy(prompts[1], 10))
    after = engine.engine.stats()
    assert after.steps >= before.steps + 10
    assert after.tokens_generated == before.tokens_generated + sum(len(answer.tokens) for answer in answers)
    assert after.busy_s >= before.busy_s
    assert after.last_step_age_s == 0


def test_info_states_what_the_engine_offers(engine: Driver) -> None:
    info = engine.info
    assert info.slots == SLOTS
    assert info.slots_reason
    assert info.max_model_len == MAX_MODEL_LEN
    assert info.cache_tokens >= info.max_model_len
