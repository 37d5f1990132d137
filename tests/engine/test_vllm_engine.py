"""What only the engine around vLLM can get wrong: a full cache, a dead thread, its own limits, the way out."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.needs import HAS_VLLM, WITHOUT_VLLM, warnings_of_vllm

if not HAS_VLLM:
    pytest.skip(WITHOUT_VLLM, allow_module_level=True)

from node.engine import placement
from node.engine.base import EngineOptions, EngineRequest
from node.engine.vllm_engine import VllmEngine
from tests.engine.driver import Driver
from tests.support.eventually import eventually

pytestmark = [pytest.mark.model, warnings_of_vllm]

OPTIONS = EngineOptions("vllm", model="demo", device="cpu", slots=4)


class Network:
    """Hears, while it listens, every connection that this process opens and every name that it looks up. Sockets within
    this host do not count."""

    def __init__(self) -> None:
        self.is_listening = False
        self.heard: list[tuple[str, object]] = []
        sys.addaudithook(self._hear)  # for good: there is no way to take one out

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_listening or event not in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
            return
        if event == "socket.getaddrinfo" or arguments[0].family != socket.AF_UNIX:
            self.heard.append((event, arguments[1:]))


@pytest.fixture(scope="module")
def network() -> Network:
    return Network()


@pytest.fixture(scope="module")
def loaded(model_home: Path, network: Network) -> Iterator[Driver]:
    """Four slots over a cache of 128 tokens: too little for four long requests together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "cpu_cache_tokens", lambda *facts: 128)
        network.is_listening = True
        driver = Driver(VllmEngine(OPTIONS, model_home))
        network.is_listening = False
    yield driver
    driver.engine.stop()


@pytest.fixture
def small(loaded: Driver) -> Driver:
    assert loaded.engine._llm.reset_prefix_cache()  # type: ignore[attr-defined]
    return loaded


def test_a_request_set_back_by_a_full_cache_ends_with_the_same_tokens(small, chat, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    prompts = [chat.prompt(f"Tell me about {topic}.") for topic in ("cats", "trains", "snow", "bread")]
    requests = [
        EngineRequest(0, prompt, 36, temperature=0.9 * (i % 2), top_k=40, seed=i, logprobs=True)
        for i, prompt in enumerate(prompts)
    ]
    alone = [small.ask(request) for request in requests]
    set_back = []
    scheduler = small.engine._scheduler
    preempt = scheduler._preempt_request
    monkeypatch.setattr(scheduler, "_preempt_request", lambda *a, **k: set_back.append(1) or preempt(*a, **k))

    together = small.run(*requests)

    assert set_back, "the cache never filled up"
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_token_is_the_one_that_the_rule_chooses_from_the_models_logits(  # type: ignore[no-untyped-def]
    small, chat, demo_folder, temperature
) -> None:
    """The logits are computed by transformers: so a node with that engine answers the same."""
    import torch
    from transformers import AutoModelForCausalLM

    from node.engine.sampling import Needs, choose_tokens, logprobs_of

    prompt = chat.prompt("Name three colours.")
    request = EngineRequest(0, prompt, 24, temperature=temperature, top_p=0.9, top_k=50, seed=2**62 + 5, logprobs=True)
    answer = small.ask(request)

    model = AutoModelForCausalLM.from_pretrained(demo_folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer.tokens])).logits[0, len(prompt) - 1 : -1]
    chosen = choose_tokens(
        logits,
        temperatures=torch.full((24,), temperature),
        top_ks=torch.full((24,), 50),
        top_ps=torch.full((24,), 0.9),
        seeds=torch.full((24,), 2**62 + 5),
        positions=torch.arange(len(prompt), len(prompt) + 24),
        needs=Needs(),
    )
    assert answer.tokens == chosen.tolist()
    assert answer.logprobs == pytest.approx(logprobs_of(logits, chosen).tolist(), abs=1e-3)


def test_a_shared_prefix_is_taken_from_the_cache(small: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[Any] = []
    hear = small.engine._emit  # type: ignore[attr-defined]
    monkeypatch.setattr(small.engine, "_emit", lambda step: (outputs.extend(step), hear(step)))
    for _ in range(2):
        small.ask(EngineRequest(0, list(range(100, 180)), 2))
    assert [output.num_cached for output in outputs] == [0, 0, 64, 64]  # whole pages of 32


def test_the_cache_decides_how_long_a_request_may_be(small: Driver) -> None:
    assert small.info.max_model_len == small.info.cache_tokens == 128
    refused, fine = small.run(EngineRequest(0, [65] * 100, 50), EngineRequest(0, [65] * 100, 20))
    assert (refused.finish_reason, fine.finish_reason) == ("error", "length")


@pytest.mark.parametrize(
    "bad",
    [
        {"token_ids": [65, -1]},
        {"token_ids": [65, 10**6]},
        {"seed": -1},
        {"seed": 2**63},
        {"temperature": float("nan")},
        {"top_p": -0.5},
        {"stop_token_ids": ["not a token"]},  # which vLLM itself finds
    ],
)
def test_a_request_that_cannot_be_is_refused_and_harms_no_other(small: Driver, bad: dict[str, Any]) -> None:
    refused, fine = small.run(
        EngineRequest(0, **{"token_ids": [65], "max_tokens": 2, **bad}), EngineRequest(0, [65], 2)
    )
    assert (refused.finish_reason, fine.finish_reason) == ("error", "length")
    assert refused.error


def test_extremes_of_sampling_are_served(small: Driver) -> None:
    answers = small.run(
        EngineRequest(0, [65], 4, temperature=1e-30, seed=2**63 - 1),
        EngineRequest(0, [65], 4, temperature=100.0, top_p=0.0),
        EngineRequest(0, [65], 4, temperature=1.0, top_k=2**31 - 1),
    )
    assert {(answer.finish_reason, len(answer.tokens)) for answer in answers} == {("length", 4)}


def test_nothing_is_told_to_the_network(small: Driver, network: Network) -> None:
    network.is_listening = True
    small.ask(EngineRequest(0, [65], 2))
    network.is_listening = False
    assert network.heard == []


def test_a_step_that_hangs_is_seen(small: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    llm = small.engine._llm  # type: ignore[attr-defined]
    step = llm.step
    monkeypatch.setattr(llm, "step", lambda: goes_on.wait(60) and step())
    (stuck,) = small.submit([EngineRequest(0, [65], 2)])
    eventually(lambda: small.engine.stats().last_step_age_s > 0.2)
    goes_on.set()
    small.wait(lambda: small.answers[stuck].finish_reason)
    assert small.engine.stats().last_step_age_s == 0


def test_a_dead_thread_is_reported_and_no_request_is_blamed(small: Driver) -> None:
    """The last one: the engine does not outlive it."""

    def fail() -> None:
        raise RuntimeError("the device fell off the bus")

    small.engine._llm.step = fail  # type: ignore[attr-defined]
    (lost,) = small.submit([EngineRequest(0, [65] * 5, 5)])
    assert "fell off the bus" in small.wait_for_death()
    assert small.answers[lost].finish_reason is None
