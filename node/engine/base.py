"""The contract between an engine worker and an engine, in plain data: no torch, no sockets.

One contract test suite (`tests/engine/`) runs against every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to continue.

    `token_ids` is the prompt followed by whatever an earlier attempt already generated; the engine cannot tell them
    apart and need not. Sampling noise depends on (seed, position in the sequence, vocabulary index) alone, so the
    continuation is the same wherever the sequence was cut (DESIGN.md §5).
    """

    request_id: int
    token_ids: Sequence[int]
    max_tokens: int  # how many more to generate, at least 1
    temperature: float = 0.0  # 0 = greedy
    top_p: float = 1.0  # 1 = off
    top_k: int = 0  # 0 = off
    seed: int = 0  # 0 .. 2**63 - 1
    stop_token_ids: Sequence[int] = ()  # generation ends with one of these, which is the last token reported
    logprobs: bool = False  # report the log probability of each token under the model (before sampling)
    num_prompt: int = 0  # how many of token_ids are the prompt (the synthetic engine's key)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one engine step added to one request. `error` is set on failure and ends the request."""

    request_id: int
    token_ids: Sequence[int]
    logprobs: Sequence[float] = ()  # as long as token_ids when asked for, else empty
    finish_reason: str | None = None  # "stop" (a stop token), "length", "cancelled", "error", or None: more to come
    error: str | None = None
    num_cached: int = 0  # prompt tokens taken from the prefix cache, where the engine can tell


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine offers once it is ready. Facts, measured after the model was loaded."""

    model: str  # what was loaded, as the user named it
    revision: str  # commit, checksum or "" when unknown
    device: str  # "cuda:0 NVIDIA A100-SXM4-80GB", "cpu", "synthetic"
    dtype: str
    vocab_size: int
    max_model_len: int  # prompt + generated tokens of one request
    cache_tokens: int  # prompt + generated tokens that all running requests can hold together
    slots: int  # sequences that run at the same time
    slots_reason: str  # one short phrase for the operator: why this many
    load_s: float
    folder: str = ""  # where the model files lie, tokenizer included; "" for the synthetic engine


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A cheap snapshot. `steps` only grows; a request that waits while it stands still is a hung engine."""

    steps: int
    num_running: int
    num_waiting: int
    last_step_age_s: float  # 0 when idle
    tokens_generated: int
    cache_tokens_used: int
    memory_used_bytes: int
    memory_total_bytes: int
    busy_s: float  # time spent inside steps since start


Emit = Callable[[list[StepOutput]], None]


class Engine(Protocol):
    """`start` loads and blocks until ready. `submit` and `cancel` never block and are called from one thread; `emit` is
    called once per step, from any thread, with everything that step produced. A cancelled request may still emit what
    its last step made, and ends with one `finish_reason="cancelled"`. A request that cannot run is answered with
    `finish_reason="error"` and harms no other. `fatal` is called once if the engine can no longer serve."""

    def start(self, emit: Emit, fatal: Callable[[str], None]) -> EngineInfo: ...

    def submit(self, requests: Sequence[EngineRequest]) -> None: ...

    def cancel(self, request_ids: Sequence[int]) -> None: ...

    def stats(self) -> EngineStats: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What a worker process is told: plain data, so that it travels over a pipe as msgpack."""

    engine: str = "transformers"  # one of node.engine.factory.ENGINES
    model: str = "microsoft/Phi-3-mini-4k-instruct"  # a hub name, a folder, or "demo"
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:1", …; "cuda:0,cuda:1" for a worker that spans several
    dtype: str = "auto"
    slots: int = 0  # 0 = from the cache size
    memory_fraction: float = 0.9  # of the free device memory, for the KV cache; of vLLM, weights included
    max_model_len: int = 0  # 0 = the model's own
    max_batch_tokens: int = 0  # 0 = the engine's choice
    page_size: int = 0  # 0 = the engine's choice
    trust_remote_code: bool = False
    tensor_parallel: int = 1  # GPUs (or CPU processes) that share each layer of the model
    parallel: str = "data"  # "data": the whole model on each device; "auto": its layers spread over all GPUs
    quantize: str = "none"  # how weights are quantised while loading; see `quantization.METHODS`
    # For CUDA_VISIBLE_DEVICES, which the worker sets before the engine is made: the engine then sees these GPUs alone,
    # and its `device` counts them from 0. "" = all GPUs of the host.
    visible_devices: str = ""
    synthetic: dict[str, float] = field(default_factory=dict)  # timing of the synthetic engine, by parameter name
