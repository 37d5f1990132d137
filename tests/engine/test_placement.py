"""Where a model runs and how much it may use, decided by arithmetic."""

from __future__ import annotations

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
        (0, 32_768, 8192, False, 16, "CPU"),
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


def test_a_token_of_phi3_mini_costs_what_the_data_sheet_says() -> None:
    transformers = pytest.importorskip("transformers")
    assert cache_bytes_per_token(transformers.Phi3Config(), torch.bfloat16) == 393_216


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests what a host without a GPU says")
def test_a_device_that_is_not_here_is_named() -> None:
    with pytest.raises(ValueError, match=r"cuda:1.*sees no GPU"):
        place(EngineOptions(device="cuda:1"), 0)
    assert place(EngineOptions(), 0).device.type == "cpu"


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(ValueError, match="int8"):
        place(EngineOptions(device="cpu", dtype="int8"), 0)
    assert place(EngineOptions(device="cpu", dtype="bfloat16"), 0).dtype == torch.bfloat16
