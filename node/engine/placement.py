"""Decides where a model runs and how much of the device it may use: device, precision, cache, slots. Pure arithmetic
over facts, except where torch is asked for them."""

from __future__ import annotations

from dataclasses import dataclass
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
    """`device` is where the inputs go; `is_spread` when accelerate lays the layers over all GPUs of the process."""

    device: torch.device
    is_spread: bool
    dtype: torch.dtype

    @property
    def is_cuda(self) -> bool:
        return str(self.device.type) == "cuda"


def place(options: EngineOptions, rank: int = 0) -> Placement:
    """Where this process computes: `rank` chooses among the devices of a tensor-parallel group.

    Raises ValueError for a device or a precision that is not here.
    """
    names = [name.strip() for name in options.device.split(",")]
    devices = [_device(name) for name in names]  # all of them: what was given to this worker has to be there
    device = devices[rank] if len(devices) > 1 and options.tensor_parallel > 1 else devices[0]
    is_spread = options.parallel == "auto" and device.type == "cuda"
    return Placement(device, is_spread, _dtype(options.dtype, device))


def describe_device(options: EngineOptions, device: torch.device) -> str:
    """ "cuda:0 NVIDIA A100-SXM4-80GB", "cuda:0,cuda:1 NVIDIA A100-SXM4-80GB", "cpu", or "cpu (2 processes)"."""
    if device.type == "cuda":
        is_shared = options.tensor_parallel > 1 or options.parallel == "auto"
        return f"{options.device if is_shared else device} {torch.cuda.get_device_name(device)}"
    return f"{device} ({options.tensor_parallel} processes)" if options.tensor_parallel > 1 else str(device)


def cpu_cache_tokens(
    slots: int, max_model_len: int, bytes_per_token: int, free_bytes: int, memory_fraction: float = 1.0
) -> int:
    """How many tokens the cache holds in main memory: enough for the slots, but a quarter of what is free at most,
    because nothing says how much of it is ours to take. A smaller `memory_fraction` is kept to."""
    wanted = max(slots * min(CPU_TOKENS_PER_SLOT, max_model_len), max_model_len)
    share = min(CPU_MEMORY_SHARE, memory_fraction)
    return max(1, min(wanted, int(free_bytes * share) // bytes_per_token))


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
        expected = min(CPU_TOKENS_PER_SLOT, max_model_len)
        if cache_tokens >= CPU_SLOTS * expected:
            return CPU_SLOTS, "the default on a CPU"
        return max(1, cache_tokens // expected), f"{cache_tokens} cache tokens on a CPU, {expected} a request"
    expected = max(1, max_model_len // SHARE_OF_CONTEXT)
    slots = max(1, min(MAX_SLOTS, cache_tokens // expected))
    return slots, f"{cache_tokens} cache tokens, {expected} a request (1/{SHARE_OF_CONTEXT} of the context)"


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(name)  # RuntimeError for nonsense
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name}: torch {torch.__version__} sees no GPU. Try --device cpu")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise ValueError(f"device {device}: this host has {torch.cuda.device_count()} GPU(s), counted from 0")
    return device


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
