"""A model whose layers lie on several GPUs (`--parallel auto`): the cache has to lie where the layers are.

accelerate decides which layer goes where and moves the activations; the library allocates all of its cache on one
device. Here each device gets a cache for its own layers. Blocks, pages and their bookkeeping stay the library's: only
the place of a token within the smaller tensor is computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.cache import (
    PagedAttentionCache,
    PagedAttentionMemoryHandler,
    group_layers_by_attn_type,
)
from transformers.generation.continuous_batching.cache_allocators.full_attention import FullAttentionCacheAllocator
from transformers.generation.continuous_batching.utils import find_head_dim, find_num_key_value_heads

OFFLOADED = ("cpu", "disk")  # weights that lie here are computed with on the main device


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """The layers that are computed on one device."""

    device: torch.device
    layers: tuple[int, ...]


def layer_groups(model: Any) -> list[LayerGroup]:
    """Which layers of a dispatched model are computed where; [] for a model on one device."""
    device_map: Mapping[str, Any] = getattr(model, "hf_device_map", {})
    if len({str(place) for place in device_map.values()}) < 2:
        return []
    layers = {
        name: module.layer_idx
        for name, module in model.named_modules()
        if isinstance(getattr(module, "layer_idx", None), int)
    }
    return group_layers(layers, device_map)


def group_layers(layers: Mapping[str, int], device_map: Mapping[str, Any]) -> list[LayerGroup]:
    """Pure. `layers` is the index of each module that has a cache, by its name; `device_map` is accelerate's: a device
    or an offload target for each part of the model."""
    devices = [place for place in device_map.values() if place not in OFFLOADED]
    main = _device(devices[0]) if devices else torch.device("cpu")
    grouped: dict[torch.device, set[int]] = {}
    for name, index in layers.items():
        place = device_map[max(_prefixes(name) & device_map.keys(), key=len)]
        device = main if place in OFFLOADED else _device(place)
        grouped.setdefault(device, set()).add(index)
    return [LayerGroup(device, tuple(sorted(indices))) for device, indices in grouped.items()]


def _prefixes(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(len(parts) + 1)}


def _device(place: Any) -> torch.device:
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def gpus_of(model: Any) -> list[torch.device]:
    """The GPUs on which this process computes."""
    devices = [group.device for group in layer_groups(model)] or [model.device]
    return [device for device in devices if device.type == "cuda"]


def num_blocks_that_fit(config: Any, batching: Any, dtype: torch.dtype, groups: Iterable[LayerGroup]) -> int:
    """How many cache blocks the fullest device has room for, by the library's own arithmetic over its free memory."""
    fitting: list[int] = []
    for group in groups:
        with torch.cuda.device(group.device) if group.device.type == "cuda" else nullcontext():
            page_bytes = FullAttentionCacheAllocator.get_bytes_per_page(
                find_num_key_value_heads(config), find_head_dim(config), dtype, batching.page_size
            )
            handler = PagedAttentionMemoryHandler(
                config=config,
                cb_config=batching,
                dtype=dtype,
                bytes_per_sector=len(group.layers) * page_bytes,
                tokens_per_sector=batching.page_size,
                bytes_per_block=len(group.layers) * page_bytes,
                attn_types=list(group_layers_by_attn_type(config)),
            )
            fitting.append(handler.infer_max_batch_tokens_and_num_sectors()[1])
    return min(fitting)


@contextmanager
def cache_over(groups: Sequence[LayerGroup]) -> Iterator[None]:
    """While it lasts, the library builds its cache over these groups. It names the class and takes no other."""

    def build(**kwargs: Any) -> PagedAttentionCache:
        return SpreadCache(groups=groups, **kwargs)

    whole = continuous_api.PagedAttentionCache
    continuous_api.PagedAttentionCache = build
    try:
        yield
    finally:
        continuous_api.PagedAttentionCache = whole


class SpreadCache(PagedAttentionCache):  # type: ignore[misc]
    """The library's cache without its tensor, and one tensor for each group in its place."""

    def __init__(self, *, groups: Sequence[LayerGroup], continuous_batching_config: Any, **kwargs: Any) -> None:
        # The size was computed for each device; the library would compare the whole with the memory of one.
        unchecked = replace(continuous_batching_config, max_memory_percent=float(1 << 20))
        super().__init__(continuous_batching_config=unchecked, **{**kwargs, "device": torch.device("meta")})
        self.device = kwargs["device"]
        self.layer_to_allocator = {
            layer: part
            for allocator in self.cache_allocators.values()
            for group in groups
            for part in [_Part(allocator, group)]
            for layer in part.layers
        }


class _Part:
    """What `PagedAttentionCache.update` needs of an allocator, over the layers of one group.

    A block of the whole cache holds a page for each layer; here it holds fewer pages, so it begins elsewhere. Within a
    page nothing changes, and the library's special places (to read or write what is thrown away) are mapped rightly:
    they are places in the first pages of a block.
    """

    def __init__(self, allocator: FullAttentionCacheAllocator, group: LayerGroup) -> None:
        self.layers = [layer for layer in allocator.layer_indices if layer in group.layers]
        self.layer_type = allocator.layer_type
        self.index = allocator.index
        self.sentinel_index = allocator.sentinel_index
        self._update = type(allocator).update
        self._whole_stride = allocator.block_physical_stride
        page = allocator.tokens_per_page
        self._stride = allocator.rows_per_token * page * len(self.layers)
        rows, _, heads, dim = allocator.cache_tensor.shape
        num_blocks = rows * allocator.rows_per_token // self._whole_stride
        storage = torch.zeros((num_blocks * self._stride, heads, dim), dtype=allocator.cache_dtype, device=group.device)
        self._kv_token_views = {
            layer: (storage[2 * i * page :], storage[(2 * i + 1) * page :]) for i, layer in enumerate(self.layers)
        }

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        read_index: torch.Tensor,
        write_index: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Has the signature that the library calls."""
        found: tuple[torch.Tensor, torch.Tensor] = self._update(
            self, key_states, value_states, layer_idx, self._here(read_index), self._here(write_index)
        )
        return found

    def _here(self, index: torch.Tensor) -> torch.Tensor:
        return index // self._whole_stride * self._stride + index % self._whole_stride
