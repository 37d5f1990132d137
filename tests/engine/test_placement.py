"""Where a model runs and how much it may use, decided by arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from node.engine.base import EngineOptions  # noqa: E402
from node.engine.placement import cache_bytes_per_token, choose_slots, cpu_cache_tokens, place  # noqa: E402

pytestmark = pytest.mark.model

GB = 10**9


@pytest.mark.parametrize(
    ("asked", "cache_tokens", "max_model_len", "is_cuda", "slots", "because"),
    [
        (7, 10, 4096, True, 7, "asked for"),
        (9999, 10, 4096, True, 256, "at most"),
        (0, 36_000, 4096, True, 35, "1024 a request"),
        (0, 500, 4096, True, 1, "500 cache tokens"),
        (0, 10**7, 4096, True, 256, "1/4 of the context"),
        (0, 32_768, 8192, False, 16, "default on a CPU"),
        (0, 5_000, 8192, False, 4, "5000 cache tokens on a CPU, 1024 a request"),
        (0, 300, 8192, False, 1, "300 cache tokens"),
        (0, 4_000, 250, False, 16, "default on a CPU"),
    ],
)
def test_slots_follow_from_the_cache(
    asked: int, cache_tokens: int, max_model_len: int, is_cuda: bool, slots: int, because: str
) -> None:
    chosen, reason = choose_slots(asked, cache_tokens, max_model_len, is_cuda)
    assert chosen == slots
    assert because in reason


def test_a_cpu_cache_takes_no_more_than_its_share_of_memory() -> None:
    assert cpu_cache_tokens(16, 8192, bytes_per_token=46_080, free_bytes=20 * GB) == 16 * 1024
    assert cpu_cache_tokens(1, 8192, bytes_per_token=46_080, free_bytes=20 * GB) == 8192
    assert cpu_cache_tokens(16, 4096, bytes_per_token=786_432, free_bytes=20 * GB) == 5 * GB // 786_432
    assert cpu_cache_tokens(16, 4096, 786_432, 20 * GB, memory_fraction=0.9) == 5 * GB // 786_432
    assert cpu_cache_tokens(16, 4096, 786_432, 20 * GB, memory_fraction=0.05) == GB // 786_432


def test_a_token_of_phi3_mini_costs_what_the_data_sheet_says() -> None:
    transformers = pytest.importorskip("transformers")
    assert cache_bytes_per_token(transformers.Phi3Config(), torch.bfloat16) == 393_216


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests what a host without a GPU says")
def test_a_device_that_is_not_here_is_named() -> None:
    with pytest.raises(ValueError, match=r"cuda:1.*sees no GPU"):
        place(EngineOptions(device="cuda:1"))
    with pytest.raises(ValueError, match=r"cuda:0.*sees no GPU"):
        place(EngineOptions(device="cuda:0,cuda:1", tensor_parallel=2), rank=1)
    assert place(EngineOptions()).device.type == "cpu"
    assert not place(EngineOptions(parallel="auto")).is_spread


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(ValueError, match="int8"):
        place(EngineOptions(device="cpu", dtype="int8"))
    assert place(EngineOptions(device="cpu", dtype="bfloat16")).dtype == torch.bfloat16


def test_a_small_memory_fraction_is_kept_to_by_a_real_engine(tmp_path: Path) -> None:
    """Slots follow from the cache that was made, not from the one that was wanted."""
    import psutil

    from node.engine.transformers_engine import TransformersEngine
    from tests.engine.driver import running
    from tests.engine.tiny_models import mixed_requests, save_phi3

    model = save_phi3(tmp_path)
    fraction = 1500 * 512 / psutil.virtual_memory().available  # 512 bytes a token
    with running(
        TransformersEngine(EngineOptions(model=model, device="cpu", memory_fraction=fraction), tmp_path)
    ) as it:
        assert 1000 < it.info.cache_tokens < 2000
        assert it.info.slots == it.info.cache_tokens // 512
        assert {answer.finish_reason for answer in it.run(*mixed_requests(8))} == {"length"}
