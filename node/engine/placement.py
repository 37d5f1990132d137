"""Decides where a model runs and how much of the device it may use: device, precision, cache, slots. Pure arithmetic
over facts, except for the two functions that ask torch for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from node.engine.base import EngineOptions

MAX_SLOTS = 256
CPU_SLOTS = 16  # measured: on two cores more sequences add latency and hardly any throughput
CPU_TOKENS_PER_SLOT = 1024
CPU_MEMORY_SHARE = 0.25
SHARE_OF_CONTEXT = 4  # a request is expected to fill a quarter of its context


@dataclass(frozen=True, slots=True)
class Placement:
    """`device` is where the inputs go; `device_map` is "auto" when accelerate spreads the layers over several."""

    device: torch.device
    device_map: str | None
    dtype: torch.dtype

    @property
    def is_cuda(self) -> bool:
        return str(self.device.type) == "cuda"


def place(options: EngineOptions, model_bytes: int) -> Placement:
    """Raises ValueError for a device or a precision that is not here."""
    device, device_map = _device(options, model_bytes)
    return Placement(device, device_map, _dtype(options.dtype, device))


def model_bytes(folder: Path) -> int:
    """The size of the weights on disk: what they will need in memory, if their precision is kept."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def describe_device(device: torch.device) -> str:
    """ "cuda:0 NVIDIA A100-SXM4-80GB", or "cpu"."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def cpu_cache_tokens(slots: int, max_model_len: int, bytes_per_token: int, free_bytes: int) -> int:
    """How many tokens the cache holds in main memory: enough for the slots, but a quarter of what is free at most,
    because nothing says how much of it is ours to take."""
    wanted = max(slots * min(CPU_TOKENS_PER_SLOT, max_model_len), max_model_len)
    return max(1, min(wanted, int(free_bytes * CPU_MEMORY_SHARE) // bytes_per_token))


def cache_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one token in every layer."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * dtype.itemsize)


def choose_slots(asked: int, cache_tokens: int, max_model_len: int, is_cuda: bool) -> tuple[int, str]:
    """How many sequences run together, and why. The cache may be promised more than once: a request that finds it full
    is set back and prefilled again, which costs time but no token."""
    if asked:
        return min(asked, MAX_SLOTS), "as asked for" if asked <= MAX_SLOTS else f"at most {MAX_SLOTS}"
    if not is_cuda:
        return CPU_SLOTS, "the default on a CPU"
    expected = max(1, max_model_len // SHARE_OF_CONTEXT)
    slots = max(1, min(MAX_SLOTS, cache_tokens // expected))
    return slots, f"{cache_tokens} cache tokens, {expected} a request (1/{SHARE_OF_CONTEXT} of the context)"


def _device(options: EngineOptions, model_bytes: int) -> tuple[torch.device, str | None]:
    if options.device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu"), None
        device = torch.device("cuda:0")
        free_bytes, _ = torch.cuda.mem_get_info(device)
        fits = model_bytes < 0.9 * free_bytes
        return device, None if fits or torch.cuda.device_count() == 1 else "auto"
    device = torch.device(options.device)  # RuntimeError for nonsense
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {options.device}: torch {torch.__version__} sees no GPU. Try --device cpu")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise ValueError(f"device {device}: this host has {torch.cuda.device_count()} GPU(s), counted from 0")
    return device, None


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        # fp32 on a CPU: slower than bf16, but near ties, and with them whole answers, do not hang on rounding.
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    dtype = getattr(torch, name, None)
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"unknown dtype {name!r}: choose auto, float32, float16 or bfloat16")
    return dtype
