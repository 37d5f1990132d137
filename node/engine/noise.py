"""Gumbel noise that is a pure function of (seed, position, vocabulary index).

Adding it to log probabilities and taking the arg-max draws from their distribution (the Gumbel-max trick). Nothing is
drawn from a generator with a state, so a token does not depend on what else is in the batch, on the steps before it, or
on the device: the bits are integer arithmetic, and the two logarithms are taken in double precision and rounded once.
"""

from __future__ import annotations

import torch

# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): the n-th number of
# the generator with state s is mix(s + n * GAMMA), so any number can be computed without the ones before it.
# torch has no unsigned 64-bit arithmetic: products wrap in two's complement, which is the same bits, and a right shift
# is made logical by masking the copies of the sign.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Noise in float32, shape (B, vocab_size), for int64 `seeds` and `positions` of shape (B,)."""
    # The position goes through the mixer on its own: (seed + 1, position) and (seed, position + 1) are unrelated.
    row_keys = _mix(seeds ^ _mix(positions * _GAMMA)).unsqueeze(1)  # (B, 1)
    index = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=seeds.device)
    bits = _mix(row_keys + index * _GAMMA)  # (B, V)
    return _gumbel(bits)


def _gumbel(bits: torch.Tensor) -> torch.Tensor:
    """-log(-log(1 - u)), with u uniform on the open interval (0, 1) from the upper 52 bits.

    Written with 1 - u because the large values, which decide the arg-max, are those near u = 0, where floating point is
    finest: they reach 36, and neither logarithm ever sees a zero. The smallest value is -3.6.
    """
    uniform = _shift_right(bits, 12).double().add_(0.5).mul_(2.0**-52)
    return uniform.neg_().log1p_().neg_().log_().neg_().float()


def _mix(state: torch.Tensor) -> torch.Tensor:
    """SplitMix64's output function on a fresh tensor, which it overwrites."""
    state = (state ^ _shift_right(state, 30)).mul_(_MIX_1)
    state ^= _shift_right(state, 27)
    state *= _MIX_2
    state ^= _shift_right(state, 31)
    return state


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical shift of int64."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)
