"""Brings a model up under the batching manager, and says what it offers once it is there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.model_runner import infer_max_single_request_tokens
from transformers.generation.continuous_batching.requests import GenerationOutput
from transformers.utils import logging as transformers_logging

from node.engine import cpu_attention
from node.engine.base import EngineInfo, EngineOptions
from node.engine.batching import SCHEDULER, SeededManager
from node.engine.model_files import ModelFiles, Report
from node.engine.placement import (
    MAX_SLOTS,
    cache_bytes_per_token,
    choose_slots,
    cpu_cache_tokens,
    describe_device,
    model_bytes,
    place,
)

# A page is what prefix sharing shares: small is better, but flash attention wants 256. The tokens of a step bound how
# long running answers stand still for someone's prompt: about a second of prefill on two cores.
CPU_PAGE_SIZE, CPU_BATCH_TOKENS = 32, 256
CUDA_PAGE_SIZE, CUDA_BATCH_TOKENS = 256, 2048


class Loader:
    """One model, in the order of the methods: load it, build the manager around it, describe the result."""

    def __init__(self, options: EngineOptions, files: ModelFiles, report: Report) -> None:
        self._options = options
        self._files = files
        self._report = report
        self._placement = place(options, model_bytes(files.path))
        if self._placement.is_cuda:  # the library sizes its cache by the current device
            torch.cuda.set_device(self._placement.device)

    def load_model(self) -> Any:
        placement = self._placement
        self._report(
            f"loading {self._files.path.name} as {_name(placement.dtype)} on {describe_device(placement.device)}"
        )
        return AutoModelForCausalLM.from_pretrained(
            self._files.path,
            dtype=placement.dtype,
            device_map=placement.device_map or placement.device,
            attn_implementation=self._attention(),
            trust_remote_code=self._options.trust_remote_code,
            use_safetensors=True,
            local_files_only=True,
        )

    def build_manager(
        self, model: Any, deliver: Callable[[list[GenerationOutput]], None], on_death: Callable[[Exception], None]
    ) -> SeededManager:
        """The manager with its cache allocated, not yet started."""

        def build(config: ContinuousBatchingConfig) -> SeededManager:
            manager = SeededManager(
                model=model,
                generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
                continuous_batching_config=config,
                deliver=deliver,
                on_death=on_death,
            )
            manager.build()
            return manager

        config = self._batching_config(model.config.get_text_config())
        try:
            return build(config)
        except (ImportError, OSError) as error:
            # Flash attention may be fetched from the hub at this point. Without it the engine is slower, not broken.
            self._report(f"no flash attention ({error}): using sdpa, which is slower with long contexts")
            return build(replace(config, auto_switch_to_flash=False))

    def describe(self, manager: SeededManager) -> EngineInfo:
        """Facts, except for `load_s`, which is not over yet."""
        cache, config = manager.batch_processor.cache, manager.model.config.get_text_config()
        cache_tokens = cache.num_blocks * manager.continuous_batching_config.page_size
        max_model_len = min(
            self._options.max_model_len or config.max_position_embeddings,
            infer_max_single_request_tokens(cache),
        )
        slots, slots_reason = choose_slots(
            self._options.slots, cache_tokens, max_model_len, is_cuda=self._placement.is_cuda
        )
        return EngineInfo(
            model=self._options.model,
            revision=self._files.revision,
            device=describe_device(self._placement.device),
            dtype=_name(self._placement.dtype),
            vocab_size=config.vocab_size,
            max_model_len=max_model_len,
            cache_tokens=cache_tokens,
            slots=slots,
            slots_reason=slots_reason,
            load_s=0.0,
            folder=str(self._files.path),
        )

    def _attention(self) -> str:
        """Flash attention, where there is any, is the library's own choice later."""
        if self._placement.is_cuda:
            return "sdpa"
        config = AutoConfig.from_pretrained(self._files.path, trust_remote_code=self._options.trust_remote_code)
        has_window = getattr(config.get_text_config(), "sliding_window", None)  # ours attends to everything
        return "sdpa" if has_window else cpu_attention.register()

    def _batching_config(self, config: Any) -> ContinuousBatchingConfig:
        options = self._options
        common = {
            "return_logprobs": True,
            "max_memory_percent": options.memory_fraction,
            "scheduler_type": SCHEDULER,
        }
        if self._placement.is_cuda:
            return ContinuousBatchingConfig(
                page_size=options.page_size or CUDA_PAGE_SIZE,
                max_batch_tokens=options.max_batch_tokens or CUDA_BATCH_TOKENS,
                max_requests_per_batch=options.slots or MAX_SLOTS,
                **common,
            )
        slots, _ = choose_slots(options.slots, 0, 0, is_cuda=False)
        page_size = options.page_size or CPU_PAGE_SIZE
        cache_tokens = cpu_cache_tokens(
            slots,
            options.max_model_len or config.max_position_embeddings,
            cache_bytes_per_token(config, self._placement.dtype),
            psutil.virtual_memory().available,
        )
        return ContinuousBatchingConfig(
            page_size=page_size,
            num_blocks=-(-cache_tokens // page_size),
            max_batch_tokens=max(options.max_batch_tokens or CPU_BATCH_TOKENS, slots),
            max_requests_per_batch=slots,
            auto_switch_to_flash=False,  # there is no flash attention for a CPU
            **common,
        )


def silence_transformers() -> None:
    """Its progress bars and advice are for a notebook; here errors come as exceptions."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # This logger has its own handler and ignores the verbosity set above.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
