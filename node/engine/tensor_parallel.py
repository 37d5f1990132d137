"""Keeps the processes of a tensor-parallel engine in step.

Each rank runs the whole batching manager over its share of the weights. They stay in step because all decide the same
from the same facts: the library lets rank 0 broadcast new requests and cancels before each step, and this file says how
they travel; and rank 0 has the last word on every token, so that a rounding error can never lead two ranks apart.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import astuple
from functools import partial
from typing import Any

import msgpack
import torch
import torch.distributed
from transformers.generation.continuous_batching.requests import RequestState

from node.engine.batching import Sampling, SeededManager

Commands = tuple[list[RequestState], list[str]]
"""What rank 0 was told since the last step: new requests, and the ids of cancelled ones, each in order."""


def check_plan(config: Any, num_ranks: int) -> None:
    """Raises ValueError when transformers' plan for this model cannot share it out to so many ranks. Weights need not
    divide evenly, but attention heads that are shared out must."""
    plan: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    if not plan:
        raise ValueError(
            f"--tensor-parallel: transformers has no plan for models of type {config.model_type}: use --parallel auto"
        )
    shares_heads = any(style == "colwise" and name.endswith(_HEADS) for name, style in plan.items())
    for field in ("num_attention_heads", "num_key_value_heads"):
        num_heads = getattr(config, field, None) or config.num_attention_heads
        if shares_heads and num_heads % num_ranks:
            raise ValueError(
                f"--tensor-parallel {num_ranks}: this model has {num_heads} {field.removeprefix('num_')}, which "
                f"{num_ranks} processes cannot share evenly: choose a number that divides them"
            )


_HEADS = ("q_proj", "k_proj", "qkv_proj", "query_key_value")


def keep_in_step(manager: SeededManager) -> None:
    """Sets a manager up as one rank of its group. Does nothing without tensor parallelism. Raises RuntimeError when the
    ranks are not alike: one may have found an attention kernel on the hub that another could not fetch."""
    helper = manager.distributed_helper
    if helper.tp_size == 1:
        return
    attention, batching = manager.model.config._attn_implementation, manager.continuous_batching_config
    found = (attention, batching.use_cuda_graph, batching.use_async_batching, batching.max_blocks_per_request)
    number = zlib.crc32(repr(found).encode())
    least, least_negated = helper.tp_all_reduce_min(torch.tensor([number, -number]), on_cpu=True).tolist()
    if least != -least_negated:
        raise RuntimeError(f"the ranks of this engine differ in what they found; this one has {attention} attention")
    # The library would broadcast pickles. These are opened in every rank, and gloo's sockets are open to whoever has an
    # account on this host: plain data can only be wrong, not run.
    helper.tp_broadcast_object_from_rank_0 = partial(broadcast_commands, helper)
    if not manager.is_tp_driver:
        manager._wake_up_loop = _NoNaps()


def broadcast_commands(helper: Any, commands: Commands) -> Commands:
    """Takes the place of `DistributedHelper.tp_broadcast_object_from_rank_0`: the same commands on every rank."""
    told = encode_commands(commands) if helper.is_tp_driver else b""
    size = torch.tensor([len(told)])
    _broadcast(helper, size)
    frame = torch.frombuffer(bytearray(told), dtype=torch.uint8) if told else torch.empty(int(size), dtype=torch.uint8)
    _broadcast(helper, frame)
    return commands if helper.is_tp_driver else decode_commands(frame.numpy().tobytes())


def _broadcast(helper: Any, tensor: torch.Tensor) -> None:
    torch.distributed.broadcast(tensor, src=helper.tp_root_global_rank, group=helper.cpu_comm_group)


def encode_commands(commands: Commands) -> bytes:
    """Only what `TransformersEngine` sets: all else in a fresh request is the library's default."""
    requests, cancelled = commands
    rows = [
        (
            state.request_id,
            state.initial_tokens,
            state.max_new_tokens,
            state.eos_token_id,
            astuple(state.logit_processor_kwargs["sampling"]),
        )
        for state in requests
    ]
    return bytes(msgpack.packb((rows, cancelled)))


def decode_commands(frame: bytes) -> Commands:
    rows, cancelled = msgpack.unpackb(frame)
    requests = [
        RequestState(
            request_id=request_id,
            initial_tokens=tokens,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_ids,
            streaming=True,
            logit_processor_kwargs={"sampling": Sampling(*sampling)},
        )
        for request_id, tokens, max_new_tokens, eos_token_ids, sampling in rows
    ]
    return requests, cancelled


class _NoNaps(threading.Event):
    """The idle loop of a rank other than 0 must not sleep: it waits in the broadcast of rank 0, which sleeps, and a new
    request would find it asleep for up to a tenth of a second."""

    def wait(self, timeout: float | None = None) -> bool:
        return True
