"""The engine around vLLM: its scheduler, cache and kernels, stepped by one thread of the worker.

One thread loads, steps, and takes every command between two steps, so vLLM sees a single caller and nothing is locked.
How tokens are chosen is in `vllm_sampling`, what vLLM is told at the start in `vllm_loading`.
"""

from __future__ import annotations

import logging
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from node.engine.admission import why_not
from node.engine.base import Emit, EngineInfo, EngineOptions, EngineRequest, EngineStats, StepOutput
from node.engine.model_files import Report, resolve_model
from node.engine.vllm_loading import VllmLoader, check_installed, prepare_environment

STOP_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class VllmEngine:
    """Every submitted request gets exactly one terminal output, unless the engine as a whole says that it is dead."""

    def __init__(self, options: EngineOptions, home: Path, report: Report = lambda line: None) -> None:
        self._options = options
        self._home = home
        self._report = report
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # to be called between two steps
        self._ready: Future[EngineInfo] = Future()
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._is_stopping = False
        self._dying = threading.Lock()
        self._is_dead = False
        # The engine's thread owns what follows, and others only read it, except for `_num_submitted` and
        # `_became_busy_at`, which belong to the thread that submits.
        self._live: dict[int, EngineRequest] = {}
        self._num_submitted = 0
        self._num_ended = 0
        self._num_steps = 0
        self._tokens_generated = 0
        self._busy_s = 0.0
        self._last_step_at = self._became_busy_at = time.monotonic()
        self._process = psutil.Process()

    # --- the contract -------------------------------------------------------------------------------------------------

    def start(self, emit: Emit, fatal: Callable[[str], None]) -> EngineInfo:
        self._emit, self._fatal = emit, fatal
        check_installed()
        self._thread.start()
        return self._ready.result()

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        if self._num_submitted == self._num_ended:
            self._became_busy_at = time.monotonic()
        self._num_submitted += len(requests)
        self._inbox.put(lambda: self._add(requests))

    def cancel(self, request_ids: Sequence[int]) -> None:
        self._inbox.put(lambda: self._abort(request_ids))

    def stats(self) -> EngineStats:
        num_live = self._num_submitted - self._num_ended
        running = list(self._scheduler.running)  # a copy in one bytecode: the list belongs to the engine's thread
        num_running = min(len(running), num_live)
        used_bytes, total_bytes = self._memory()
        progressed_at = max(self._last_step_at, self._became_busy_at)
        return EngineStats(
            steps=self._num_steps,
            num_running=num_running,
            num_waiting=num_live - num_running,
            last_step_age_s=time.monotonic() - progressed_at if num_live else 0.0,
            tokens_generated=self._tokens_generated,
            cache_tokens_used=sum(request.num_computed_tokens for request in running),
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            busy_s=self._busy_s,
        )

    def stop(self) -> None:
        self._inbox.put(self._leave)
        self._thread.join(STOP_TIMEOUT_S)

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            info = self._load()
        except BaseException as error:  # whatever it was, it belongs to the caller of `start`
            self._ready.set_exception(error)
            return
        self._ready.set_result(info)
        try:
            while not self._is_stopping:
                self._take_commands()
                if self._live:
                    self._step()
        except Exception as error:  # vLLM's state is unknown now: the worker must end, and its requests go elsewhere
            log.exception("vllm_died")
            self._die(_describe(error))
        finally:
            for rank in multiprocessing.active_children():  # of a tensor-parallel engine; vLLM would wait for each
                rank.kill()
            self._llm.engine_core.shutdown()

    def _load(self) -> EngineInfo:
        started = time.monotonic()
        options = self._options
        files = resolve_model(options.model, self._home, self._report, options.trust_remote_code)
        self._report("importing vLLM")
        prepare_environment()
        loader = VllmLoader(options, files, self._report)
        self._is_cuda = loader.is_cuda
        self._llm = llm = loader.load()
        self._scheduler = llm.engine_core.engine_core.scheduler
        # A rank that dies while nothing runs is noticed by vLLM's own watch alone.
        llm.model_executor.register_failure_callback(lambda: self._die("a process of the tensor-parallel group died"))
        self._info = info = replace(loader.describe(llm), load_s=time.monotonic() - started)
        self._report(f"ready on {info.device}: {info.slots} slots ({info.slots_reason}), {info.load_s:.1f} s")
        return info

    def _take_commands(self) -> None:
        """Waits for one while there is nothing to step."""
        if not self._live:
            self._inbox.get()()
        while not self._is_stopping:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            command()

    def _leave(self) -> None:
        self._is_stopping = True

    def _add(self, requests: Sequence[EngineRequest]) -> None:
        answers = [(request, why_not(request, self._info) or self._hand_over(request)) for request in requests]
        self._tell([StepOutput(request.request_id, (), (), "error", error) for request, error in answers if error])

    def _hand_over(self, request: EngineRequest) -> str:
        """Gives a request to vLLM; returns why it does not want it, or ""."""
        from vllm.inputs.engine import tokens_input

        from node.engine.vllm_sampling import sampling_params

        key = str(request.request_id)
        try:
            self._llm.add_request(key, tokens_input(list(request.token_ids)), sampling_params(request))
        except Exception as error:  # of any kind: no other request may suffer
            log.warning("request_refused request=%s", key, exc_info=True)
            self._llm.abort_request([key])
            return _describe(error)
        self._live[request.request_id] = request
        return ""

    def _abort(self, request_ids: Sequence[int]) -> None:
        gone = [self._live.pop(request_id) for request_id in request_ids if request_id in self._live]
        self._llm.abort_request([str(request.request_id) for request in gone])
        self._tell([StepOutput(request.request_id, (), (), "cancelled") for request in gone])

    def _step(self) -> None:
        started = time.monotonic()
        results = self._llm.step()
        self._last_step_at = time.monotonic()
        self._busy_s += self._last_step_at - started
        self._num_steps += 1
        self._tell([self._output(result) for result in results if int(result.request_id) in self._live])

    def _output(self, result: Any) -> StepOutput:
        request = self._live[int(result.request_id)]
        completion = result.outputs[0]
        tokens = list(completion.token_ids)
        self._tokens_generated += len(tokens)
        logprobs: list[float] = []
        if request.logprobs:
            logprobs = [known[token].logprob for token, known in zip(tokens, completion.logprobs, strict=True)]
        reason, error = completion.finish_reason, None
        if reason not in (None, "stop", "length"):
            reason, error = "error", f"vLLM ended this request: {reason}"
        if reason:
            del self._live[request.request_id]
        return StepOutput(request.request_id, tokens, logprobs, reason, error, result.num_cached_tokens or 0)

    def _tell(self, outputs: list[StepOutput]) -> None:
        self._num_ended += sum(output.finish_reason is not None for output in outputs)
        if outputs:
            self._emit(outputs)

    def _die(self, reason: str) -> None:
        """Says it once, whichever thread notices first."""
        with self._dying:
            if not self._is_dead and not self._is_stopping:
                self._is_dead = True
                self._fatal(reason)

    def _memory(self) -> tuple[int, int]:
        if self._is_cuda:
            import torch

            free_bytes, total_bytes = torch.cuda.mem_get_info(0)
            return total_bytes - free_bytes, total_bytes
        return self._process.memory_info().rss, psutil.virtual_memory().total


def _describe(error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "OutOfMemoryError":
        reason = f"out of GPU memory, try a smaller --memory-fraction: {error}"
    return reason
