"""An engine without a model: known tokens at the pace of a GPU. For tests, benchmarks and capacity planning.

What it says is `synthetic_vocab.story`, so that every answer can be checked exactly; how fast, is `Timing`. It has the
shape of a real engine (a waiting line, slots, a cache budget, one thread that steps) and of its failures.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from node.engine.base import Emit, EngineInfo, EngineOptions, EngineRequest, EngineStats, StepOutput
from node.engine.synthetic_vocab import EOS_ID, VOCAB_SIZE, story, story_key

DEFAULT_PRESET = "a10g"


@dataclass(frozen=True, slots=True)
class Timing:
    """A GPU, as a handful of numbers. Any of them can be set by name through `EngineOptions.synthetic`."""

    prefill_tokens_per_s: float  # 0 = prefill takes no time
    step_base_s: float  # reading the weights once
    step_per_seq_s: float  # what one more sequence adds to a step
    step_per_cached_token_s: float  # reading the KV cache
    slots: float
    cache_tokens: float
    max_model_len: float = 4096
    max_batch_tokens: float = 2048  # prefill tokens in one step; the rest of a long prompt waits for the next
    load_s: float = 0.0
    fatal_after_steps: float = 0.0  # faults, each after that many steps; 0 = never
    oom_after_steps: float = 0.0
    hang_after_steps: float = 0.0

    def step_s(self, num_running: int, num_prefill: int, num_cached: int) -> float:
        """How long a step takes that decodes `num_running` sequences and prefills `num_prefill` tokens."""
        prefill_s = num_prefill / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0
        return (
            self.step_base_s + num_running * self.step_per_seq_s + num_cached * self.step_per_cached_token_s + prefill_s
        )


# Phi-3-mini in bf16: 7.6 GB of weights, 393 kB of cache a token, 7.6 GFLOP a token. Bandwidth, compute (at half of the
# data sheet) and memory of each card give its row; an estimate for planning, to be replaced by a measured row.
_WEIGHTS_BYTES, _TOKEN_BYTES = 7_600_000_000, 393_216
PRESETS: dict[str, Timing] = {
    "a10g": Timing(4_500, 0.016, 50e-6, 0.70e-6, slots=32, cache_tokens=36_000),
    "a100": Timing(20_000, 0.008, 25e-6, 0.22e-6, slots=128, cache_tokens=160_000),
    "h200": Timing(55_000, 0.005, 15e-6, 0.09e-6, slots=256, cache_tokens=310_000),
    "instant": Timing(0, 0, 0, 0, slots=64, cache_tokens=1_000_000, max_model_len=16_384),
}


def timing_of(options: EngineOptions) -> Timing:
    """The preset that `device` names, with the numbers of `options` put in. Raises ValueError for an unknown name."""
    name = DEFAULT_PRESET if options.device == "auto" else options.device
    if name not in PRESETS:
        raise ValueError(f"the synthetic engine has no device {name!r}: choose one of {', '.join(PRESETS)}, or auto")
    known = {field.name for field in fields(Timing)}
    if unknown := sorted(set(options.synthetic) - known):
        raise ValueError(f"unknown synthetic parameter {', '.join(unknown)}: choose from {', '.join(sorted(known))}")
    timing = replace(PRESETS[name], **options.synthetic)
    return replace(
        timing,
        slots=options.slots or timing.slots,
        max_model_len=options.max_model_len or timing.max_model_len,
        max_batch_tokens=options.max_batch_tokens or timing.max_batch_tokens,
    )


class _Sequence:
    """One request on its way: what is left to prefill, what was generated, what comes next."""

    __slots__ = ("num_given", "num_tokens", "num_unprefilled", "request", "stop_ids", "tokens")

    def __init__(self, request: EngineRequest) -> None:
        prompt = request.token_ids[: request.num_prompt or len(request.token_ids)]
        key = story_key(prompt, request.seed if request.temperature > 0 else None)
        self.request = request
        self.stop_ids = frozenset(request.stop_token_ids)
        self.tokens: Iterator[int] = story(key, len(request.token_ids) - len(prompt), ends=EOS_ID in self.stop_ids)
        self.num_unprefilled = len(request.token_ids)
        self.num_tokens = 0
        self.num_given = len(request.token_ids)

    @property
    def reserved(self) -> int:
        """Cache tokens that it may come to need."""
        return len(self.request.token_ids) + self.request.max_tokens

    def advance(self) -> StepOutput:
        """Generates one token."""
        token = next(self.tokens)
        self.num_tokens += 1
        finish_reason = None
        if token in self.stop_ids:
            finish_reason = "stop"
        elif self.num_tokens >= self.request.max_tokens:
            finish_reason = "length"
        logprobs = (-(token % 64) / 16,) if self.request.logprobs else ()
        return StepOutput(self.request.request_id, (token,), logprobs, finish_reason)


class SyntheticEngine:
    """Keeps `running` within slots and cache, and the average pace exact: deadlines are absolute, so a late wake-up is
    made up for by the next step."""

    def __init__(self, options: EngineOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._timing = timing_of(options)
        self._clock = clock
        self._lock = threading.Condition()
        self._submitted: deque[_Sequence] = deque()
        self._cancelled: set[int] = set()
        self._stopping = threading.Event()
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[int, _Sequence] = {}
        self._reserved = 0
        self._steps = 0
        self._tokens_generated = 0
        self._busy_s = 0.0
        self._deadline = 0.0
        self._progress_at = 0.0
        self._thread = threading.Thread(target=self._run, name="synthetic-engine", daemon=True)

    # --- the contract -------------------------------------------------------------------------------------------------

    def start(self, emit: Emit, fatal: Callable[[str], None]) -> EngineInfo:
        started = self._clock()
        self._emit, self._fatal = emit, fatal
        self._stopping.wait(self._timing.load_s)
        self._thread.start()
        timing = self._timing
        preset = DEFAULT_PRESET if self._options.device == "auto" else self._options.device
        return EngineInfo(
            model=self._options.model,
            revision="synthetic",
            device=f"synthetic {preset}",
            dtype="none",
            vocab_size=VOCAB_SIZE,
            max_model_len=int(timing.max_model_len),
            cache_tokens=int(timing.cache_tokens),
            slots=int(timing.slots),
            slots_reason="as asked for" if self._options.slots else f"preset {preset}",
            load_s=self._clock() - started,
        )

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        with self._lock:
            if not self._submitted and not self._waiting and not self._running:
                self._progress_at = self._clock()
            self._submitted.extend(map(_Sequence, requests))
            self._lock.notify()

    def cancel(self, request_ids: Sequence[int]) -> None:
        with self._lock:
            self._cancelled.update(request_ids)
            self._lock.notify()

    def stats(self) -> EngineStats:
        with self._lock:
            num_waiting = len(self._submitted) + len(self._waiting)
            is_busy = bool(num_waiting or self._running)
            num_cached = sum(s.num_given - s.num_unprefilled + s.num_tokens for s in self._running.values())
            return EngineStats(
                steps=self._steps,
                num_running=len(self._running),
                num_waiting=num_waiting,
                last_step_age_s=self._clock() - self._progress_at if is_busy else 0.0,
                tokens_generated=self._tokens_generated,
                cache_tokens_used=num_cached,
                memory_used_bytes=_WEIGHTS_BYTES + num_cached * _TOKEN_BYTES,
                memory_total_bytes=_WEIGHTS_BYTES + int(self._timing.cache_tokens) * _TOKEN_BYTES,
                busy_s=self._busy_s,
            )

    def stop(self) -> None:
        self._stopping.set()
        with self._lock:
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    # --- the step loop ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                outputs = self._take_commands()
                if self._running:
                    outputs += self._step()
                if outputs and not self._stopping.is_set():
                    self._emit(outputs)
        except (RuntimeError, MemoryError) as error:
            self._fatal(str(error))

    def _take_commands(self) -> list[StepOutput]:
        """Waits while there is nothing to do; then cancels, refuses and admits. Returns what that ended."""
        with self._lock:
            while not (self._submitted or self._waiting or self._running or self._cancelled or self._stopping.is_set()):
                self._lock.wait()
            outputs = [self._refusal(s) for s in self._submitted if not self._fits(s)]
            self._waiting.extend(s for s in self._submitted if self._fits(s))
            self._submitted.clear()
            outputs += self._drop_cancelled()
            self._admit()
            return outputs

    def _fits(self, sequence: _Sequence) -> bool:
        return len(sequence.request.token_ids) > 0 and sequence.reserved <= self._max_tokens

    @property
    def _max_tokens(self) -> int:
        return int(min(self._timing.max_model_len, self._timing.cache_tokens))

    def _refusal(self, sequence: _Sequence) -> StepOutput:
        request = sequence.request
        error = (
            f"{len(request.token_ids)} prompt tokens and max_tokens {request.max_tokens} do not fit: "
            f"this engine holds 1 to {self._max_tokens} tokens for a request"
        )
        return StepOutput(request.request_id, (), (), "error", error)

    def _drop_cancelled(self) -> list[StepOutput]:
        dropped = [s for s in (*self._waiting, *self._running.values()) if s.request.request_id in self._cancelled]
        self._cancelled.clear()  # an id that is not here has ended already, and says nothing more
        for sequence in dropped:
            if self._running.pop(sequence.request.request_id, None):
                self._reserved -= sequence.reserved
            else:
                self._waiting.remove(sequence)
        return [StepOutput(s.request.request_id, (), (), "cancelled") for s in dropped]

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._timing.slots:
            if self._reserved + self._waiting[0].reserved > self._timing.cache_tokens:
                return  # in order of arrival: a small request must not starve a large one
            sequence = self._waiting.popleft()
            self._running[sequence.request.request_id] = sequence
            self._reserved += sequence.reserved

    def _step(self) -> list[StepOutput]:
        """Prefills, takes the time that a GPU would, and generates one token for each sequence that is prefilled."""
        budget = int(self._timing.max_batch_tokens)
        num_prefill = 0
        for sequence in self._running.values():
            share = min(sequence.num_unprefilled, budget - num_prefill)
            sequence.num_unprefilled -= share
            num_prefill += share
        decoding = [s for s in self._running.values() if not s.num_unprefilled]
        num_cached = sum(s.num_given + s.num_tokens for s in decoding)
        self._spend(self._timing.step_s(len(decoding), num_prefill, num_cached))
        self._inject_faults()
        with self._lock:
            outputs = [s.advance() for s in decoding]
            self._steps += 1
            self._tokens_generated += len(outputs)
            self._progress_at = self._clock()
            for sequence, output in zip(decoding, outputs, strict=True):
                if output.finish_reason:
                    del self._running[sequence.request.request_id]
                    self._reserved -= sequence.reserved
        return outputs

    def _spend(self, duration_s: float) -> None:
        now = self._clock()
        is_behind = self._deadline < now - 0.1  # idle since then: that time is not made up for
        self._deadline = (now if is_behind else self._deadline) + duration_s
        self._busy_s += duration_s
        if (rest_s := self._deadline - now) > 0:
            self._stopping.wait(rest_s)

    def _inject_faults(self) -> None:
        timing, step = self._timing, self._steps + 1
        if timing.fatal_after_steps and step > timing.fatal_after_steps:
            raise RuntimeError("injected fault: the device fell off the bus")
        if timing.oom_after_steps and step > timing.oom_after_steps:
            raise MemoryError("injected fault: CUDA out of memory")
        if timing.hang_after_steps and step > timing.hang_after_steps:
            self._stopping.wait()
