"""Chooses tokens inside vLLM by the mesh's own rule, so that a request goes on the same wherever it moves.

vLLM draws from a generator that starts with the request: a request that was resumed elsewhere would get other tokens.
So to vLLM every request is greedy, and before it looks this logits processor has left one token possible in each row
that samples: the one that `sampling.choose_tokens` picks. vLLM takes log probabilities from the logits before that.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from node.engine.base import EngineRequest
from node.engine.process import die_with_parent
from node.engine.sampling import MIN_TEMPERATURE, Needs, choose_tokens

NAME = f"{__name__}:SeededSampling"  # how vLLM is told, because its tensor-parallel ranks import it by name
_KEY = "phi3_mesh"


def sampling_params(request: EngineRequest) -> SamplingParams:
    """The request in vLLM's words; what `SeededSampling` needs to know goes along as an extra argument."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=request.max_tokens,
        stop_token_ids=list(request.stop_token_ids),
        ignore_eos=True,  # the agent says which tokens end an answer
        logprobs=0 if request.logprobs else None,  # of the chosen token, and of 0 others
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={_KEY: replace(request, token_ids=())} if request.temperature > 0 else None,
        skip_clone=True,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One sequence that samples."""

    request: EngineRequest
    num_prompt: int
    generated: list[int]  # vLLM's own list, which grows

    @property
    def position(self) -> int:
        """Of the token that is chosen now. vLLM counts what it generated as `generated` even when the cache was full
        and the sequence had to be computed again."""
        return self.num_prompt + len(self.generated)


def _row(params: SamplingParams, prompt: list[int] | None, generated: list[int]) -> _Row | None:
    request = (params.extra_args or {}).get(_KEY)
    return None if request is None or prompt is None else _Row(request, len(prompt), generated)


class SeededSampling(LogitsProcessor):  # type: ignore[misc]
    """vLLM makes one for each process that runs the model, and tells it which request is in which row of the batch."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}
        if multiprocessing.parent_process() is not None:
            die_with_parent()  # a tensor-parallel rank: it must not keep a GPU when the worker was killed

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, _row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` is (B, V) in float32, and is changed in place."""
        if not self._rows:
            return logits
        indices = self._tensor(list(self._rows), torch.int64)
        rows = list(self._rows.values())
        requests = [row.request for row in rows]
        chosen = choose_tokens(
            logits[indices],
            temperatures=self._tensor([max(r.temperature, MIN_TEMPERATURE) for r in requests], torch.float32),
            top_ks=self._tensor([max(0, min(r.top_k, logits.size(1))) for r in requests], torch.int64),
            top_ps=self._tensor([r.top_p for r in requests], torch.float32),
            seeds=self._tensor([r.seed for r in requests], torch.int64),
            positions=self._tensor([row.position for row in rows], torch.int64),
            needs=Needs(filtering=any(r.top_k > 0 or r.top_p < 1 for r in requests), logprobs=False),
        )
        logits[indices] = float("-inf")
        logits[indices, chosen] = 0.0
        return logits

    def _tensor(self, values: list[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(self._device, non_blocking=True)
