"""Attention for a batch of sequences on a CPU, one sequence at a time.

The library lays all sequences of a step end to end and, without flash attention, attends over the whole of that with a
block-diagonal mask: the work grows with the square of the batch. Here each sequence attends to itself alone: it grows
with the batch, and what a sequence computes does not depend on who else is in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "mesh_cpu"


def register() -> str:
    """Makes the function known to transformers; returns its name, for `attn_implementation=`."""
    AttentionInterface.register(NAME, attend)
    return NAME


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # (1, heads, total of query lengths, dim)
    key: torch.Tensor,  # (1, kv heads, total of key lengths, dim): cached and new keys, sequence after sequence
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor | dict[str, torch.Tensor],
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Has the signature that transformers calls. The result is (1, total of query lengths, heads, dim)."""
    if isinstance(cu_seq_lens_k, dict):
        cu_seq_lens_k = cu_seq_lens_k["full_attention"]
    query_ends, key_ends = cu_seq_lens_q.tolist(), cu_seq_lens_k.tolist()
    groups = query.size(1) // key.size(1)
    outputs = []
    for i in range(len(query_ends) - 1):
        q = query[:, :, query_ends[i] : query_ends[i + 1]]
        k = key[:, :, key_ends[i] : key_ends[i + 1]]
        v = value[:, :, key_ends[i] : key_ends[i + 1]]
        outputs.append((_decode if q.size(2) == 1 else _prefill)(q, k, v, groups, scaling))
    return torch.cat(outputs, dim=1), None


def _decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: int, scaling: float) -> torch.Tensor:
    # The heads that share a key head are laid out as if they were positions: no copy of the keys is needed.
    _, heads, _, dim = q.shape
    grouped = q.reshape(1, heads // groups, groups, dim)
    output = scaled_dot_product_attention(grouped, k, v, scale=scaling)
    return output.reshape(1, 1, heads, dim)


def _prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: int, scaling: float) -> torch.Tensor:
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    num_past = k.size(2) - q.size(2)
    if num_past == 0:
        output = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
    else:  # a later part of a long prompt: is_causal would align the triangle to the wrong corner
        mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(num_past)
        output = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    return output.transpose(1, 2)
