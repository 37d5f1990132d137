"""A model over several devices. There are none here to spread it over: what decides is pure, and what moves the cache
is tried with two groups of layers on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from node.engine import spread  # noqa: E402
from node.engine.base import EngineOptions  # noqa: E402
from node.engine.loading import Loader  # noqa: E402
from node.engine.spread import LayerGroup, group_layers  # noqa: E402
from node.engine.transformers_engine import TransformersEngine  # noqa: E402
from tests.engine.driver import running  # noqa: E402
from tests.engine.tiny_models import mixed_requests, save_phi3  # noqa: E402

pytestmark = pytest.mark.model

CUDA = [torch.device("cuda", index) for index in range(2)]
LAYERS = {f"model.layers.{i}.self_attn": i for i in range(4)}


@pytest.mark.parametrize(
    ("places", "groups"),
    [
        ({"layers.0": 0, "layers.1": 0, "layers.2": 1, "layers.3": 1}, [(0, 1), (2, 3)]),
        ({"embed_tokens": 0, "layers.0": 0, "layers": 1}, [(0,), (1, 2, 3)]),
        ({"": "cuda:0", "layers.3": "cuda:1"}, [(0, 1, 2), (3,)]),
        # What lies in main memory or on disk is brought to the first GPU.
        ({"layers.0": 0, "layers.1": 1, "layers.2": "cpu", "layers.3": "disk"}, [(0, 2, 3), (1,)]),
    ],
)
def test_the_cache_of_a_layer_is_where_the_layer_is(
    places: dict[str, int | str], groups: list[tuple[int, ...]]
) -> None:
    device_map = {f"model.{name}" if name else "": place for name, place in places.items()}
    assert group_layers(LAYERS, device_map) == [
        LayerGroup(device, layers) for device, layers in zip(CUDA, groups, strict=True)
    ]


def test_accelerate_lays_a_model_that_is_too_big_over_the_gpus(tmp_path: Path) -> None:
    """Its own choice for two GPUs that hold half the model each, and the cache that follows from it."""
    from accelerate import infer_auto_device_map, init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(save_phi3(tmp_path, num_hidden_layers=6))
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
    half = sum(p.numel() for p in model.parameters()) * 4 * 6 // 10
    model.hf_device_map = infer_auto_device_map(
        model, max_memory={0: half, 1: half}, no_split_module_classes=model._no_split_modules
    )
    first, second = spread.layer_groups(model)
    assert (first.device, second.device) == tuple(CUDA)
    assert first.layers + second.layers == tuple(range(6))


def test_the_cache_is_as_large_as_the_fullest_device_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import ContinuousBatchingConfig, Phi3Config

    config = Phi3Config(sliding_window=None, attn_implementation="flash_attention_2")  # 32 layers, 32 heads of 96
    batching = ContinuousBatchingConfig(
        max_batch_tokens=2048, max_requests_per_batch=256, max_blocks_per_request=0, max_memory_percent=0.9
    )
    monkeypatch.setattr(spread.PagedAttentionMemoryHandler, "get_available_memory", lambda self: 10 * 10**9)
    cpu = torch.device("cpu")
    groups = [LayerGroup(cpu, tuple(range(20))), LayerGroup(cpu, tuple(range(20, 32)))]
    blocks = spread.num_blocks_that_fit(config, batching, torch.bfloat16, groups)
    cache_bytes = blocks * batching.page_size * 20 * 2 * 3072 * 2
    assert 9 * 10**9 < cache_bytes < 10 * 10**9  # the rest is for activations


@pytest.mark.parametrize("sliding_window", [None, 64])
def test_a_cache_in_parts_serves_as_a_whole_one_does(
    sliding_window: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_phi3(tmp_path / "phi3", num_hidden_layers=3, sliding_window=sliding_window)

    def answers() -> list[list[int]]:
        with running(TransformersEngine(EngineOptions(model=model, device="cpu", slots=4), tmp_path)) as driver:
            return [answer.tokens for answer in driver.run(*mixed_requests())]

    whole = answers()
    cpu = torch.device("cpu")
    parts = [LayerGroup(cpu, (0, 2)), LayerGroup(cpu, (1,))]
    monkeypatch.setattr("node.engine.loading.layer_groups", lambda model: parts)
    made = []
    monkeypatch.setattr(spread, "_Part", lambda *of, kind=spread._Part: made.append(kind(*of)) or made[-1])
    assert answers() == whole
    assert [part.layers for part in made] == [[0, 2], [1]]


def test_a_dispatched_model_runs_with_layers_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate's hooks bring a layer's weights when it is computed: the engine has to bear them."""
    model = save_phi3(tmp_path / "phi3", tie_word_embeddings=False)
    options = EngineOptions(model=model, device="cpu", slots=4)
    with running(TransformersEngine(options, tmp_path)) as driver:
        expected = [answer.tokens for answer in driver.run(*mixed_requests(8))]
    on_cpu = ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head")
    places = {**dict.fromkeys(on_cpu, "cpu"), "model.layers.1": "disk"}
    monkeypatch.setattr(
        Loader, "_where", lambda self: {"device_map": places, "offload_folder": str(tmp_path / "offload")}
    )
    with running(TransformersEngine(options, tmp_path)) as driver:
        assert [answer.tokens for answer in driver.run(*mixed_requests(8))] == expected
