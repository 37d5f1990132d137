"""The mesh's additions to transformers' continuous batching: seeded sampling per request, raw log probabilities, one
delivery per step, and a voice when the thread dies. Cache, scheduler and loop stay the library's.

transformers has no public hook for these, so this file overrides internals of its `continuous_batching` package, and is
the only one that does. Each override says which method it replaces; the contract tests notice when one moves.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchingManager,
    ContinuousBatchProcessor,
    OutputRouter,
)
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    GenerationOutput,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler

from node.engine import cpu_attention
from node.engine.sampling import MIN_TEMPERATURE, Needs, choose_tokens, logprobs_of


@dataclass(slots=True)
class Sampling:
    """How one request wants its tokens chosen; travels with the request through the library as a keyword argument."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    logprobs: bool = False
    num_cached: int | None = None  # written when the request is first scheduled: prompt tokens found in the cache

    @property
    def is_filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    def as_int32(self, position: int) -> tuple[int, ...]:
        """One column of `RequestColumns`."""
        temperature = max(self.temperature, MIN_TEMPERATURE) if self.temperature > 0 else 0.0
        packed = struct.pack("<qiffi", self.seed, position, temperature, self.top_p, self.top_k)
        return struct.unpack("<6i", packed)


class RequestColumns:
    """Takes the place of `ContinuousBatchingLogitsProcessorList`: carries each request's parameters to the device, one
    column a request, in the library's own int32 storage (so they reach CUDA graphs and asynchronous batches too).

    The rows: seed (low, high), position, temperature, top_p (as float bits), top_k.
    """

    tensors_required = 6
    do_processing = True

    def __init__(self) -> None:
        self.needs = Needs()

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Nothing to check: the engine builds them itself."""

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.copy_(torch.tensor(Sampling().as_int32(0), dtype=torch.int32).unsqueeze(1))

    def prepare_tensor_args(self, requests_in_batch: list[FutureRequestState], arg_storage: torch.Tensor) -> None:
        """Called once per step, after the step's tokens were counted in `position_offset`: that is the absolute
        position of the token about to be generated, whatever was cached, preempted or resumed before."""
        columns = []
        noise = filtering = logprobs = False
        for future in requests_in_batch:
            state = future.state
            sampling: Sampling = state.logit_processor_kwargs.get("sampling") or Sampling()  # none in a warm-up
            if sampling.num_cached is None:
                sampling.num_cached = state.position_offset - future.query_length
            if future.has_new_token:  # the others are in the middle of a long prompt
                columns.append(sampling.as_int32(state.position_offset))
                noise |= sampling.temperature > 0
                filtering |= sampling.temperature > 0 and sampling.is_filtered
                logprobs |= sampling.logprobs
        self.needs = Needs(noise, filtering, logprobs)
        if columns:
            arg_storage[:, : len(columns)] = torch.tensor(columns, dtype=torch.int32).T.to(arg_storage.device)


class SeededRunner(ModelRunner):  # type: ignore[misc]
    """Chooses tokens with `sampling.choose_tokens`. Replaces `_forward_process_and_sample`, which would take the log
    probabilities after the noise was added."""

    def __init__(self, *args: Any, distributed_helper: DistributedHelper, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._distributed_helper = distributed_helper

    def _forward_process_and_sample(
        self,
        model: torch.nn.Module,
        batch_data: dict[str, Any],
        carry_over_ids: torch.Tensor,
        prev_output_ids: torch.Tensor,
        output_ids: torch.Tensor,
    ) -> None:
        self.inputs_and_outputs.carry_over_tokens(batch_data["input_ids"], carry_over_ids, prev_output_ids)
        logits = model(**batch_data).logits[0]  # (B, V), or (tokens, V) from a model that cannot select them
        if "logits_to_keep" not in batch_data:
            logits = logits[batch_data["logits_indices"]]
        logits = logits.float()
        needs = Needs() if self.use_cuda_graph_varlen or self.use_cuda_graph_decode else self.logit_processor.needs
        rows = batch_data["logits_processor_args"][:, : logits.size(0)]
        seed_low, seed_high, positions, temperatures, top_ps, top_ks = rows
        tokens = choose_tokens(
            logits,
            temperatures=temperatures.view(torch.float32),
            top_ks=top_ks,
            top_ps=top_ps.view(torch.float32),
            seeds=(seed_high.long() << 32) | (seed_low.long() & 0xFFFFFFFF),
            positions=positions.long(),
            needs=needs,
        )
        chosen = output_ids[0, : tokens.size(0)]
        chosen.copy_(tokens)
        # Under tensor parallelism each rank has chosen, from logits that should be equal to the last bit. Should they
        # not be, ranks would go on with different sequences, and wait for each other for ever: rank 0 decides.
        self._distributed_helper.tp_broadcast_from_rank_0(chosen)
        if needs.logprobs:  # float bits in an int32 row: the library's own trick
            output_ids[1, : tokens.size(0)].copy_(logprobs_of(logits, tokens).view(torch.int32))


class StepRouter(OutputRouter):  # type: ignore[misc]
    """Hands over what a step produced in one call, on the thread that steps."""

    def __init__(self, deliver: Callable[[list[GenerationOutput]], None]) -> None:
        super().__init__()
        self._deliver = deliver
        self.is_muted = False

    def deliver(self, output: GenerationOutput) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        if not self.is_muted:
            self._deliver(outputs)


class CancelSafeScheduler(FIFOScheduler):  # type: ignore[misc]
    """The library's own order, with one trap closed. While one batch runs on a GPU the next is prepared, and a request
    cancelled in between gives back its cache; when the first batch then completes a block of that cache, the library
    looks it up and dies of a KeyError. It passes over finished requests, so a cancelled one is called finished."""

    def clear_cancelled_requests(self) -> list[RequestState]:
        states: list[RequestState] = super().clear_cancelled_requests()
        for state in states:
            state.status = RequestStatus.FINISHED
        return states


SCHEDULER = "phi3-mesh"
SCHEDULER_MAPPING[SCHEDULER] = CancelSafeScheduler


class SeededManager(ContinuousBatchingManager):  # type: ignore[misc]
    """transformers' manager with the parts above, a count of its steps, and a voice when its thread dies."""

    def __init__(
        self,
        *args: Any,
        deliver: Callable[[list[GenerationOutput]], None],
        on_death: Callable[[Exception], object],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.logit_processor = RequestColumns()
        self.output_router = StepRouter(deliver)
        self._on_death = on_death
        self.num_steps = 0
        self.busy_s = 0.0
        self.last_step_at = time.monotonic()

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        if model.config._attn_implementation != cpu_attention.NAME:  # ours needs no mask, which the library cannot know
            super().switch_to_cb_friendly_attn(model, auto_switch_to_flash)

    def build(self) -> ContinuousBatchProcessor:
        """Allocates cache and buffers now instead of in the thread, so that their sizes are known before `start`."""
        self.batch_processor = self._create_batch_processor()
        return self.batch_processor

    def limit_slots(self, slots: int) -> FIFOScheduler:
        """Sets how many sequences run together. The slots follow from the cache, and the cache is sized by the library:
        so they are set after `build`. Returns the scheduler, which outlives `stop` for those who watch it."""
        self.continuous_batching_config.max_requests_per_batch = slots
        self.batch_processor.scheduler.max_requests_per_batch = slots
        return self.batch_processor.scheduler

    def _create_batch_processor(self) -> ContinuousBatchProcessor:
        is_new = self.batch_processor is None
        processor = super()._create_batch_processor()
        if is_new:
            old = processor.model_runner
            processor.model_runner = SeededRunner(
                logit_processor=old.logit_processor,
                cb_config=old.cb_config,
                cache=old.cache,
                inputs_and_outputs=old.inputs_and_outputs,
                do_sample=old.do_sample,
                return_logprobs=old.return_logprobs,
                distributed_helper=self.distributed_helper,
            )
        return processor

    def _generation_loop_body(self, batch_processor: ContinuousBatchProcessor, bootstrapping: bool) -> bool:
        num_before, started = self.current_batch, time.monotonic()
        goes_on: bool = super()._generation_loop_body(batch_processor, bootstrapping)
        if self.current_batch != num_before:  # else it waited for work
            self.last_step_at = time.monotonic()
            self.busy_s += self.last_step_at - started
            self.num_steps += 1
        return goes_on

    def _handle_critical_error(self, error: Exception, batch_processor: ContinuousBatchProcessor | None) -> None:
        # The library answers every request with this error. They did nothing wrong: the worker dies and they are lost,
        # which their clients can repair; an answer would be final.
        self.output_router.is_muted = True
        self._on_death(error)  # first: the library goes on to tell the other ranks, which may be gone or never answer
        with suppress(RuntimeError):
            super()._handle_critical_error(error, batch_processor)
