"""Brings a model up under the batching manager, and says what it offers once it is there."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import replace
from typing import Any

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, GgufConfig
from transformers.distributed import DistributedConfig
from transformers.generation.continuous_batching.model_runner import infer_max_single_request_tokens
from transformers.generation.continuous_batching.requests import GenerationOutput
from transformers.utils import logging as transformers_logging

from node.engine import cpu_attention
from node.engine.base import EngineInfo, EngineOptions
from node.engine.batching import SCHEDULER, SeededManager
from node.engine.model_files import ModelFiles, Report
from node.engine.placement import (
    CPU_SLOTS,
    MAX_SLOTS,
    cache_bytes_per_token,
    choose_slots,
    cpu_cache_tokens,
    describe_device,
    place,
)
from node.engine.quantization import config_for, label_for
from node.engine.spread import OFFLOADED, LayerGroup, cache_over, layer_groups, num_blocks_that_fit
from node.engine.tensor_parallel import keep_in_step

# A page is what prefix sharing shares: small is better, but flash attention wants 256. The tokens of a step bound how
# long running answers stand still for someone's prompt: about a second of prefill on two cores.
CPU_PAGE_SIZE, CPU_BATCH_TOKENS = 32, 256
CUDA_PAGE_SIZE, CUDA_BATCH_TOKENS = 256, 2048
# Over several GPUs: accelerate's hooks cannot be captured, and the paged kernel wants the library's own cache.
SPREAD_LIMITS = {"use_cuda_graph": False, "use_async_batching": False, "max_blocks_per_request": 0}


class Loader:
    """One model, in the order of the methods: load it, build the manager around it, describe the result. `bring_up`
    does it all.

    `rank` is the one of this process in a tensor-parallel group, which has met already.
    """

    def __init__(self, options: EngineOptions, files: ModelFiles, report: Report, rank: int = 0) -> None:
        self._options = options
        self._files = files
        self._report = report
        self._placement = place(options, rank)
        if self._placement.is_cuda:  # the library sizes its cache by the current device
            torch.cuda.set_device(self._placement.device)

    def bring_up(
        self, deliver: Callable[[list[GenerationOutput]], None], on_death: Callable[[Exception], object]
    ) -> tuple[SeededManager, EngineInfo]:
        """The running manager, and what it offers. Raises ValueError for what the operator can change."""
        started = time.monotonic()
        model = self.load_model()
        self._report(f"loaded after {time.monotonic() - started:.1f} s")
        with torch.inference_mode():  # the manager's thread runs in the mode of whoever starts it
            manager = self.build_manager(model, deliver, on_death)
            info = self.describe(manager)
            manager.limit_slots(info.slots)
            manager.warmup()  # captures CUDA graphs, where they are used
            manager.start()
        return manager, info

    def load_model(self) -> Any:
        options, placement = self._options, self._placement
        device = describe_device(options, placement.device)
        dtype = label_for(options.quantize, dtype_name(placement.dtype))
        self._report(f"loading {self._files.gguf or self._files.path.name} as {dtype} on {device}")
        # The GGUF reader has a progress bar that no setting turns off.
        quiet = redirect_stderr(io.StringIO()) if self._files.gguf else nullcontext()
        try:
            with quiet:
                model = AutoModelForCausalLM.from_pretrained(
                    self._files.path,
                    dtype=placement.dtype,
                    attn_implementation=self._attention(),
                    trust_remote_code=options.trust_remote_code,
                    local_files_only=True,
                    **self._where(),
                    **self._format(),
                )
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"{options.model} does not fit on {device}: try --quantize, or --tensor-parallel N or --parallel auto "
                f"on several GPUs ({error})"
            ) from error
        if placement.is_spread and not set(OFFLOADED).isdisjoint(map(str, model.hf_device_map.values())):
            self._report("some layers did not fit on the GPUs and lie in main memory or on disk: this is slow")
        return model

    def build_manager(
        self,
        model: Any,
        deliver: Callable[[list[GenerationOutput]], None],
        on_death: Callable[[Exception], object],
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
            keep_in_step(manager)
            with self._spread(manager, groups):
                manager.build()
            return manager

        groups = layer_groups(model)
        config = self._batching_config(model.config.get_text_config(), is_spread=bool(groups))
        try:
            return build(config)
        except (ImportError, OSError) as error:
            # Flash attention may be fetched from the hub at this point. Without it the engine is slower, not broken.
            self._report(f"no flash attention ({error}): using sdpa, which is slower with long contexts")
            return build(replace(config, auto_switch_to_flash=False))

    def describe(self, manager: SeededManager) -> EngineInfo:
        """Facts, except for `load_s` and `folder`, which are the caller's."""
        options, model = self._options, manager.model
        cache, config = manager.batch_processor.cache, model.config.get_text_config()
        cache_tokens = cache.num_blocks * manager.continuous_batching_config.page_size
        max_model_len = min(
            options.max_model_len or config.max_position_embeddings,
            infer_max_single_request_tokens(cache),
        )
        slots, slots_reason = choose_slots(options.slots, cache_tokens, max_model_len, is_cuda=self._placement.is_cuda)
        dtype = label_for(options.quantize, dtype_name(self._placement.dtype))
        if self._files.gguf and not hasattr(model, "hf_quantizer"):  # it is there while the weights are packed
            dtype = f"{dtype_name(self._placement.dtype)} (unpacked gguf)"
        return EngineInfo(
            model=options.model,
            revision=self._files.revision,
            device=describe_device(options, self._placement.device),
            dtype=dtype,
            vocab_size=config.vocab_size,
            max_model_len=max_model_len,
            cache_tokens=cache_tokens,
            slots=slots,
            slots_reason=slots_reason,
            load_s=0.0,
        )

    def _where(self) -> dict[str, Any]:
        """How `from_pretrained` is told where the weights go."""
        if self._options.tensor_parallel > 1:
            return {"distributed_config": DistributedConfig(tp_size=self._options.tensor_parallel)}
        return {"device_map": "auto" if self._placement.is_spread else self._placement.device}

    def _format(self) -> dict[str, Any]:
        """How `from_pretrained` is told what the weights are, and what to make of them."""
        quantize, gguf = self._options.quantize, self._files.gguf
        if quantize == "gguf" and not gguf:
            raise ValueError(f"--quantize gguf is for GGUF files, and {self._options.model} is none")
        if gguf and quantize not in ("none", "gguf"):
            raise ValueError(f"--quantize {quantize}: {gguf} is quantised already: leave the option out")
        config = config_for(quantize, self._placement.dtype, self._placement.device.type)
        if gguf:
            return {"gguf_file": gguf, "quantization_config": config or GgufConfig(dequantize=True)}
        return {"use_safetensors": True, "quantization_config": config}

    def _spread(self, manager: SeededManager, groups: list[LayerGroup]) -> AbstractContextManager[None]:
        """Sizes and places the cache of a model whose layers lie on several devices."""
        if not groups:
            return nullcontext()
        if self._placement.is_cuda:
            batching, config = manager.continuous_batching_config, manager.model.config.get_text_config()
            batching.num_blocks = num_blocks_that_fit(config, batching, manager.model.dtype, groups)
        return cache_over(groups)

    def _attention(self) -> str:
        """Flash attention, where there is any, is the library's own choice later."""
        if self._placement.is_cuda:
            return "sdpa"
        config = load_config(self._files, self._options.trust_remote_code)
        has_window = getattr(config.get_text_config(), "sliding_window", None)  # ours attends to everything
        return "sdpa" if has_window else cpu_attention.register()

    def _batching_config(self, config: Any, is_spread: bool) -> ContinuousBatchingConfig:
        options = self._options
        common = {"return_logprobs": True, "scheduler_type": SCHEDULER}
        if self._placement.is_cuda:
            return ContinuousBatchingConfig(
                page_size=options.page_size or CUDA_PAGE_SIZE,
                max_batch_tokens=options.max_batch_tokens or CUDA_BATCH_TOKENS,
                max_requests_per_batch=options.slots or MAX_SLOTS,
                max_memory_percent=options.memory_fraction,
                **(common | (SPREAD_LIMITS if is_spread else {})),
            )
        slots = min(options.slots or CPU_SLOTS, MAX_SLOTS)
        page_size = options.page_size or CPU_PAGE_SIZE
        cache_tokens = cpu_cache_tokens(
            slots,
            options.max_model_len or config.max_position_embeddings,
            cache_bytes_per_token(config, self._placement.dtype),
            psutil.virtual_memory().available // options.tensor_parallel,  # each process has a cache
            options.memory_fraction,
        )
        return ContinuousBatchingConfig(
            page_size=page_size,
            num_blocks=-(-cache_tokens // page_size),
            max_batch_tokens=max(options.max_batch_tokens or CPU_BATCH_TOKENS, slots),
            max_requests_per_batch=slots,
            max_memory_percent=1.0,  # the size is settled already
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
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a cast in every layer of every step


def load_config(files: ModelFiles, trust_remote_code: bool = False) -> Any:
    """The model's configuration, as transformers has it."""
    gguf = {"gguf_file": files.gguf} if files.gguf else {}
    return AutoConfig.from_pretrained(files.path, trust_remote_code=trust_remote_code, **gguf)


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16"."""
    return str(dtype).removeprefix("torch.")
