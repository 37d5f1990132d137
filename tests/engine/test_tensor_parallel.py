"""Two processes share a model: they say what one says, stay in step, and live and die together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.engine.base import EngineOptions, EngineRequest
from tests.engine.driver import Driver
from tests.engine.tiny_models import mixed_requests, save_llama, save_phi3
from tests.support.eventually import eventually

torch = pytest.importorskip("torch")

from node.engine.tensor_parallel import (  # noqa: E402
    check_plan,
    decode_commands,
    encode_commands,
    keep_in_step,
)
from node.engine.transformers_engine import TransformersEngine  # noqa: E402

pytestmark = [pytest.mark.model, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def start(model: str, home: Path, **options: object) -> Driver:
    return Driver(TransformersEngine(EngineOptions(model=model, device="cpu", slots=4, **options), home))  # type: ignore[arg-type]


def children() -> set[int]:
    """Processes that this one has started and not buried."""
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What one process says."""
    alone = start(model, tmp_path_factory.mktemp("home"))
    tokens = [answer.tokens for answer in alone.run(*mixed_requests())]
    alone.engine.stop()
    return tokens


@pytest.fixture(scope="module")
def pair(model: str, expected: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Two processes, of which this one is the first. One engine for the module: a process takes seconds to start."""
    import torch

    environment, num_threads, before = os.environ.copy(), torch.get_num_threads(), children()
    driver = start(model, tmp_path_factory.mktemp("home"), tensor_parallel=2)
    driver.ranks = children() - before  # type: ignore[attr-defined]
    yield driver
    driver.engine.stop()
    assert children() == before
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(num_threads)


def test_two_processes_say_what_one_says(pair: Driver, expected: list[list[int]]) -> None:
    assert pair.info.device == "cpu (2 processes)"
    assert [answer.tokens for answer in pair.run(*mixed_requests())] == expected
    assert [pair.ask(request).tokens for request in mixed_requests()] == expected


def test_a_cancel_reaches_both_and_the_others_go_on(pair: Driver, expected: list[list[int]]) -> None:
    endless = pair.submit([EngineRequest(0, [65], 500) for _ in range(4)])
    pair.wait(lambda: all(pair.answers[i].tokens for i in endless))
    pair.engine.cancel(endless[:2])
    assert [answer.tokens for answer in pair.run(*mixed_requests())] == expected
    pair.engine.cancel(endless[2:])
    pair.wait(lambda: {pair.answers[i].finish_reason for i in endless} == {"cancelled"})
    assert pair.broken_promises == []


def test_an_idle_engine_wakes_up_and_answers(pair: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks come round while there is nothing to do."""
    manager = pair.engine._manager  # type: ignore[attr-defined]
    naps = []
    wait = manager._wake_up_loop.wait
    monkeypatch.setattr(manager._wake_up_loop, "wait", lambda timeout: naps.append(timeout) or wait(timeout))
    eventually(lambda: len(naps) > 3)  # rank 0 comes round, so rank 1 has come along each time
    assert pair.ask(EngineRequest(0, [65], 1)).finish_reason == "length"


def test_when_one_dies_the_engine_says_which_and_why(pair: Driver) -> None:
    """The last test with this engine."""
    (rank,) = pair.ranks  # type: ignore[attr-defined]
    pair.submit([EngineRequest(0, [65], 500)])
    os.kill(rank, signal.SIGKILL)
    assert pair.wait_for_death() == "rank 1 of 2: was killed by signal 9"


def test_a_rank_does_not_outlive_rank_0(tmp_path: Path) -> None:
    """Not even one that has not read its orders yet, and whatever kills rank 0."""
    script = f"""
        import os, time
        from pathlib import Path
        from node.engine import tensor_parallel_group as group
        group.write_start = lambda *told: print(*Path("/proc/self/task").glob("*/children"), flush=True)
        group.Ranks(group.EngineOptions(tensor_parallel=2), Path({str(tmp_path)!r}), print).start()
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as rank_0:
        assert rank_0.stdout is not None
        files = [Path(name.replace("self", str(rank_0.pid))) for name in rank_0.stdout.readline().split()]
        (rank,) = [int(pid) for file in files for pid in file.read_text().split()]
        alive = Path(f"/proc/{rank}")
        assert alive.exists()
        rank_0.kill()
        eventually(lambda: not alive.exists())


def test_ranks_that_differ_are_found_out_before_they_step() -> None:
    from types import SimpleNamespace

    def rank(attention: str, seen: list[list[int]]) -> SimpleNamespace:
        def all_reduce_min(numbers: torch.Tensor, on_cpu: bool) -> torch.Tensor:
            seen.append(numbers.tolist())
            return torch.tensor(seen).amin(dim=0)

        helper = SimpleNamespace(tp_size=2, tp_all_reduce_min=all_reduce_min)
        batching = SimpleNamespace(use_cuda_graph=False, use_async_batching=False, max_blocks_per_request=0)
        config = SimpleNamespace(_attn_implementation=attention)
        return SimpleNamespace(
            distributed_helper=helper,
            continuous_batching_config=batching,
            model=SimpleNamespace(config=config),
            is_tp_driver=True,
        )

    alike: list[list[int]] = []
    keep_in_step(rank("sdpa", alike))
    keep_in_step(rank("sdpa", alike))
    with pytest.raises(RuntimeError, match="this one has flash_attention_2 attention"):
        keep_in_step(rank("flash_attention_2", alike))


def test_requests_travel_as_plain_data() -> None:
    from transformers.generation.continuous_batching.requests import RequestState

    from node.engine.batching import Sampling

    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=40, seed=2**63 - 1, logprobs=True)
    state = RequestState("7/1", [1, 2, 3], True, False, 20, [2, 5], logit_processor_kwargs={"sampling": sampling})
    (same,), cancelled = decode_commands(encode_commands(([state], ["3/1", "4/2"])))
    assert cancelled == ["3/1", "4/2"]
    assert same.logit_processor_kwargs == {"sampling": sampling}
    for field in (
        "request_id",
        "initial_tokens",
        "remaining_prefill_tokens",
        "max_new_tokens",
        "_eos_token_ids",
        "streaming",
    ):
        assert getattr(same, field) == getattr(state, field)


def test_heads_that_cannot_be_shared_out_are_named(tmp_path: Path) -> None:
    from transformers import AutoConfig, GPT2Config

    llama = AutoConfig.from_pretrained(save_llama(tmp_path / "llama"))
    check_plan(llama, 2)
    with pytest.raises(ValueError, match=r"--tensor-parallel 4: this model has 2 key_value_heads"):
        check_plan(llama, 4)
    with pytest.raises(ValueError, match=r"--tensor-parallel 3: this model has 4 attention_heads"):
        check_plan(llama, 3)
    phi3 = AutoConfig.from_pretrained(
        save_phi3(tmp_path / "phi3", num_attention_heads=3, num_key_value_heads=3, hidden_size=48)
    )
    check_plan(phi3, 2)  # whose attention is whole in each process
    with pytest.raises(ValueError, match=r"no plan for models of type gpt2: use --parallel auto"):
        check_plan(GPT2Config(), 2)
