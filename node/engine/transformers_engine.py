"""The default engine: a model under transformers' continuous batching.

Owns what the manager does not: refusing a request that would kill it, the life of each request from submit to its one
terminal output, and the facts about the device. How tokens are chosen is in `sampling`, how it is wired in `batching`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
from transformers.generation.continuous_batching.requests import GenerationOutput

from node.engine.base import Emit, EngineInfo, EngineOptions, EngineRequest, EngineStats, StepOutput
from node.engine.batching import Sampling
from node.engine.loading import Loader, silence_transformers
from node.engine.model_files import Report, resolve_model

STOP_TIMEOUT_S = 5.0
MAX_TEMPERATURE = 100.0


@dataclass(slots=True)
class _Live:
    """A request between submit and its terminal output."""

    request: EngineRequest
    sampling: Sampling
    stop_ids: frozenset[int]
    num_told: int = 0  # tokens that were emitted


class TransformersEngine:
    """Every submitted request gets exactly one terminal output, unless the engine as a whole says that it is dead."""

    def __init__(self, options: EngineOptions, home: Path, report: Report = lambda line: None) -> None:
        self._options = options
        self._home = home
        self._report = report
        self._lock = threading.Lock()  # held while emitting: a terminal output is never overtaken
        self._live: dict[str, _Live] = {}
        self._keys: dict[int, str] = {}  # request id → the manager's name for it, never used twice
        self._num_submitted = 0
        self._tokens_generated = 0
        self._became_busy_at = 0.0
        self._process = psutil.Process()

    # --- the contract -------------------------------------------------------------------------------------------------

    def start(self, emit: Emit, fatal: Callable[[str], None]) -> EngineInfo:
        started = time.monotonic()
        self._emit, self._fatal = emit, fatal
        silence_transformers()
        files = resolve_model(self._options.model, self._home, self._report, self._options.trust_remote_code)
        loader = Loader(self._options, files, self._report)
        model = loader.load_model()
        self._report(f"loaded after {time.monotonic() - started:.1f} s")
        with torch.inference_mode():  # the manager's thread runs in the mode of whoever starts it
            self._manager = loader.build_manager(model, self._on_step, self._on_death)
            self._info = loader.describe(self._manager)
            self._scheduler = self._manager.limit_slots(self._info.slots)
            self._manager.warmup()  # captures CUDA graphs, where they are used
            self._manager.start()
        self._info = replace(self._info, load_s=time.monotonic() - started)
        info = self._info
        self._report(f"ready on {info.device}: {info.slots} slots ({info.slots_reason}), {info.load_s:.1f} s")
        return info

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        refusals = []
        for request in requests:
            if error := self._why_not(request):
                refusals.append(StepOutput(request.request_id, (), (), "error", error))
            else:
                self._hand_over(request)
        if refusals:
            with self._lock:
                self._emit(refusals)

    def cancel(self, request_ids: Sequence[int]) -> None:
        with self._lock:
            keys = [self._keys[request_id] for request_id in request_ids if request_id in self._keys]
            for key in keys:
                self._manager.cancel_request(key)  # drops it from the batch before the next step
            outputs = [StepOutput(self._forget(key).request.request_id, (), (), "cancelled") for key in keys]
            if outputs:
                self._emit(outputs)

    def stats(self) -> EngineStats:
        manager = self._manager
        num_live = len(self._live)
        # A copy in one bytecode: the dictionary belongs to the manager's thread.
        running = list(self._scheduler.active_requests.values())
        num_running = min(len(running), num_live)
        progressed_at = max(manager.last_step_at, self._became_busy_at)
        used_bytes, total_bytes = self._memory()
        return EngineStats(
            steps=manager.num_steps,
            num_running=num_running,
            num_waiting=num_live - num_running,
            last_step_age_s=time.monotonic() - progressed_at if num_live else 0.0,
            tokens_generated=self._tokens_generated,
            cache_tokens_used=sum(state.position_offset for state in running),
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            busy_s=manager.busy_s,
        )

    def stop(self) -> None:
        with self._lock:
            self._live.clear()  # the manager fails what still runs; nobody wants to hear it any more
            self._keys.clear()
        self._manager.stop(block=True, timeout=STOP_TIMEOUT_S, hard_stop=True)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _why_not(self, request: EngineRequest) -> str:
        """Why a request cannot run, or "". What passes here must not be able to raise in the manager's thread: that
        would take every other request with it."""
        num_tokens = len(request.token_ids)
        if num_tokens == 0:
            return "there are no prompt tokens"
        if request.max_tokens < 1:
            return f"max_tokens is {request.max_tokens}: it must be at least 1"
        if num_tokens + request.max_tokens > self._info.max_model_len:
            return (
                f"{num_tokens} prompt tokens and max_tokens {request.max_tokens} are more than the "
                f"{self._info.max_model_len} tokens that this engine holds for a request"
            )
        if min(request.token_ids) < 0 or max(request.token_ids) >= self._info.vocab_size:
            return f"a token id lies outside the vocabulary, 0 to {self._info.vocab_size - 1}"
        if not (0 <= request.seed < 2**63 and 0 <= request.temperature <= MAX_TEMPERATURE and 0 <= request.top_p <= 1):
            return (
                f"seed {request.seed}, temperature {request.temperature} or top_p {request.top_p} is out of range: "
                f"0 to 2**63 - 1, 0 to {MAX_TEMPERATURE:g}, 0 to 1"
            )
        return ""

    def _hand_over(self, request: EngineRequest) -> None:
        sampling = Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=max(0, min(request.top_k, self._info.vocab_size)),
            seed=request.seed,
            logprobs=request.logprobs,
        )
        with self._lock:
            if not self._live:
                self._became_busy_at = time.monotonic()
            self._num_submitted += 1
            key = f"{request.request_id}/{self._num_submitted}"
            self._live[key] = _Live(request, sampling, frozenset(request.stop_token_ids))
            self._keys[request.request_id] = key
        self._manager.add_request(
            list(request.token_ids),
            request_id=key,
            max_new_tokens=request.max_tokens,
            streaming=True,
            eos_token_id=list(request.stop_token_ids),
            sampling=sampling,
        )

    def _forget(self, key: str) -> _Live:
        live = self._live.pop(key)
        self._keys.pop(live.request.request_id, None)
        return live

    def _on_step(self, generated: list[GenerationOutput]) -> None:
        with self._lock:
            outputs = [self._output(one) for one in generated if one.request_id in self._live]
            for one in generated:
                # A cancel can overtake its request between the manager's two queues and be forgotten: it is said again.
                if one.request_id not in self._live and not one.is_finished():
                    self._manager.cancel_request(one.request_id)
            if outputs:
                self._emit(outputs)

    def _output(self, generated: GenerationOutput) -> StepOutput:
        live = self._live[generated.request_id]
        tokens = generated.generated_tokens[live.num_told :]
        logprobs = generated.logprobs[live.num_told :] if live.request.logprobs else ()
        live.num_told += len(tokens)
        self._tokens_generated += len(tokens)
        finish_reason = None
        if generated.is_finished():
            self._forget(generated.request_id)
            finish_reason = "stop" if tokens and tokens[-1] in live.stop_ids else "length"
            if generated.error is not None:
                finish_reason = "error"
        num_cached = live.sampling.num_cached or 0
        return StepOutput(live.request.request_id, tokens, logprobs, finish_reason, generated.error, num_cached)

    def _on_death(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, torch.OutOfMemoryError):
            reason = f"out of GPU memory, try a smaller --memory-fraction: {error}"
        self._fatal(reason)

    def _memory(self) -> tuple[int, int]:
        device = self._manager.model.device
        if device.type == "cuda":
            free_bytes, total_bytes = torch.cuda.mem_get_info(device)
            return total_bytes - free_bytes, total_bytes
        return self._process.memory_info().rss, psutil.virtual_memory().total
