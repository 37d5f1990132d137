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

from node.engine.admission import why_not
from node.engine.base import Emit, EngineInfo, EngineOptions, EngineRequest, EngineStats, StepOutput
from node.engine.batching import Sampling
from node.engine.gguf import text_folder
from node.engine.loading import Loader, load_config, silence_transformers
from node.engine.model_files import ModelFiles, Report, resolve_model
from node.engine.spread import gpus_of
from node.engine.tensor_parallel import check_plan
from node.engine.tensor_parallel_group import Ranks, join, leave

STOP_TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Live:
    """A request between submit and its terminal output."""

    request: EngineRequest
    sampling: Sampling
    stop_ids: frozenset[int]
    num_told: int = 0  # tokens that were emitted


class TransformersEngine:
    """Every submitted request gets exactly one terminal output, unless the engine as a whole says that it is dead."""

    def __init__(
        self,
        options: EngineOptions,
        home: Path,
        report: Report = lambda line: None,
        scratch: Path | None = None,
    ) -> None:
        """`scratch` is a folder for files that live as long as the process; None: one of the system's."""
        self._options = options
        self._home = home
        self._report = report
        self._scratch = scratch
        self._ranks: Ranks | None = None
        self._dying = threading.Lock()
        self._is_dead = False
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
        options = self._options
        silence_transformers()
        files = resolve_model(options.model, self._home, self._report, options.trust_remote_code)
        folder = text_folder(files, self._home, self._report) if files.gguf else files.path
        try:
            if options.tensor_parallel > 1:
                self._gather(files)
            self._manager, info = Loader(options, files, self._report).bring_up(self._on_step, self._on_death)
        except BaseException:
            if self._ranks is not None:
                self._ranks.stop()
            raise
        self._scheduler = self._manager.batch_processor.scheduler
        self._gpus = gpus_of(self._manager.model)
        self._info = info = replace(info, load_s=time.monotonic() - started, folder=str(folder))
        self._report(f"ready on {info.device}: {info.slots} slots ({info.slots_reason}), {info.load_s:.1f} s")
        return info

    def _gather(self, files: ModelFiles) -> None:
        """Starts the other processes of a tensor-parallel engine, and meets them."""
        options = self._options
        if files.gguf:
            raise ValueError("--tensor-parallel: GGUF files cannot be shared out: use --parallel auto")
        check_plan(load_config(files, options.trust_remote_code).get_text_config(), options.tensor_parallel)
        self._ranks = Ranks(replace(options, model=str(files.path)), self._scratch, self._die)
        self._ranks.start()
        self._report(f"waiting for {options.tensor_parallel - 1} more process(es) to start")
        join(options, 0, self._ranks.meeting_place)

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        refusals = []
        for request in requests:
            if error := why_not(request, self._info):
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
        if self._ranks is not None:
            self._ranks.stop()
            leave()

    # --- requests -----------------------------------------------------------------------------------------------------

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
        elif self._ranks is not None:  # what is seen here may be no more than a line that broke
            reason = self._ranks.wait_for_loss() or reason
        self._die(reason)

    def _die(self, reason: str) -> None:
        """Says it once, whichever thread notices first."""
        with self._dying:
            if not self._is_dead:
                self._is_dead = True
                self._fatal(reason)

    def _memory(self) -> tuple[int, int]:
        if self._gpus:
            infos = [torch.cuda.mem_get_info(device) for device in self._gpus]
            return sum(total - free for free, total in infos), sum(total for _, total in infos)
        return self._process.memory_info().rss, psutil.virtual_memory().total
