"""What only the engine around a real model can get wrong: a full cache, a dead thread, its own limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from node.engine import loading
from node.engine.base import EngineOptions, EngineRequest
from node.engine.transformers_engine import TransformersEngine
from tests.engine.driver import Driver

pytestmark = pytest.mark.model


@pytest.fixture
def small(model_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Four slots over a cache of 192 tokens: too little for four long requests together."""
    monkeypatch.setattr(loading, "cpu_cache_tokens", lambda *facts: 192)
    engine = TransformersEngine(EngineOptions(model="demo", device="cpu", slots=4), model_home)
    yield Driver(engine)
    engine.stop()


def test_a_request_set_back_by_a_full_cache_ends_with_the_same_tokens(small: Driver, chat) -> None:  # type: ignore[no-untyped-def]
    prompts = [chat.prompt(f"Tell me about {topic}.") for topic in ("cats", "trains", "snow", "bread")]
    requests = [
        EngineRequest(0, prompt, 40, temperature=0.9 * (i % 2), top_k=40, seed=i, logprobs=True)
        for i, prompt in enumerate(prompts)
    ]
    alone = [small.ask(request) for request in requests]
    manager = small.engine._manager  # type: ignore[attr-defined]
    set_back = []
    reset = manager.batch_processor.offloading_manager.offload_requests
    manager.batch_processor.offloading_manager.offload_requests = lambda: set_back.append(1) or reset()

    together = small.run(*requests)

    assert set_back, "the cache never filled up"
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_a_request_beyond_the_whole_cache_is_refused(small: Driver) -> None:
    assert small.info.max_model_len <= 192
    refused, fine = small.run(EngineRequest(0, [65] * 150, 100), EngineRequest(0, [65] * 150, 20))
    assert (refused.finish_reason, fine.finish_reason) == ("error", "length")


def test_a_token_outside_the_vocabulary_is_refused(small: Driver) -> None:
    answers = small.run(*(EngineRequest(0, [65, token], 2) for token in (-1, small.info.vocab_size)))
    assert {answer.finish_reason for answer in answers} == {"error"}


@pytest.mark.parametrize(
    "bad", [{"seed": -1}, {"seed": 2**63}, {"temperature": float("nan")}, {"temperature": 1e39}, {"top_p": -0.5}]
)
def test_a_parameter_out_of_range_is_refused(small: Driver, bad: dict[str, float]) -> None:
    refused, fine = small.run(EngineRequest(0, [65], 2, **bad), EngineRequest(0, [65], 2))  # type: ignore[arg-type]
    assert (refused.finish_reason, fine.finish_reason) == ("error", "length")


def test_a_cancel_that_overtook_its_request_is_said_again(small: Driver) -> None:
    manager = small.engine._manager  # type: ignore[attr-defined]
    cancel, manager.cancel_request = manager.cancel_request, lambda key: None  # as if it had come too early
    (endless,) = small.submit([EngineRequest(0, [65], 180)])
    small.engine.cancel([endless])
    manager.cancel_request = cancel
    small.wait(lambda: small.answers[endless].finish_reason == "cancelled")
    small.ask(EngineRequest(0, [66], 2))
    assert len(manager.batch_processor.scheduler.active_requests) == 0


def test_a_dead_thread_is_reported_and_no_request_is_blamed(small: Driver) -> None:
    manager = small.engine._manager  # type: ignore[attr-defined]

    def fail() -> None:
        raise RuntimeError("the device fell off the bus")

    manager._generation_step = fail
    (lost,) = small.submit([EngineRequest(0, [65] * 5, 5)])
    assert "fell off the bus" in small.wait_for_death()
    assert small.answers[lost].finish_reason is None


def test_a_shared_prefix_is_taken_from_the_cache(small: Driver) -> None:
    outputs = []
    hear = small.engine._emit  # type: ignore[attr-defined]
    small.engine._emit = lambda step: (outputs.extend(step), hear(step))  # type: ignore[attr-defined]
    for _ in range(2):
        small.ask(EngineRequest(0, list(range(100, 180)), 2))
    assert [output.num_cached for output in outputs] == [0, 0, 64, 64]  # whole pages of 32


def test_a_model_with_a_sliding_window_says_what_generate_says(tmp_path: Path) -> None:
    """Phi-3-mini-4k has one, the demo model none. Random weights will do: they show which tokens are attended to."""
    import torch
    from transformers import Phi3Config, Phi3ForCausalLM

    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        original_max_position_embeddings=512,
        sliding_window=64,
        initializer_range=0.3,
        pad_token_id=0,
    )
    model = Phi3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    prompts = [[(i * 7 + j * 13) % 900 + 50 for j in range(length)] for i, length in enumerate((5, 100, 300))]
    expected = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        options = {"max_new_tokens": 80, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        whole = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        expected.append(whole[0, len(prompt) :].tolist())

    driver = Driver(TransformersEngine(EngineOptions(model=str(tmp_path), device="cpu", slots=4), tmp_path))
    answers = driver.run(*(EngineRequest(0, prompt, 80) for prompt in prompts))
    driver.engine.stop()

    assert [answer.tokens for answer in answers] == expected
