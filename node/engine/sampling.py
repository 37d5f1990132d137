"""Chooses the next token of every sequence in a batch, each by its own parameters.

Temperature, then top-k, then top-p, then seeded Gumbel noise, then one arg-max: greedy is the same with no noise. No
step of a row looks at another row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from node.engine.noise import gumbel_noise

FEW = 256  # tokens ranked at first, on a CPU
MIN_TEMPERATURE = 1e-4  # below this, dividing by it leaves the range of float32


@dataclass(frozen=True, slots=True)
class Needs:
    """Which work any row of a batch asks for, known on the host. Inside a CUDA graph nothing can be skipped, because
    the graph is replayed for other batches: there everything is needed."""

    noise: bool = True
    filtering: bool = True  # top-k or top-p: a sort of the whole vocabulary
    logprobs: bool = True


def choose_tokens(
    logits: torch.Tensor,  # (B, V) float32, as the model made them
    temperatures: torch.Tensor,  # (B,) float32, 0 = greedy
    top_ks: torch.Tensor,  # (B,) int, 0 = off
    top_ps: torch.Tensor,  # (B,) float32, 1 = off
    seeds: torch.Tensor,  # (B,) int64
    positions: torch.Tensor,  # (B,) int64, index in its sequence of the token that is chosen now
    needs: Needs,
) -> torch.Tensor:
    """The chosen token ids, shape (B,)."""
    if not needs.noise:
        return logits.argmax(dim=-1)
    is_sampled = (temperatures > 0).unsqueeze(1)  # (B, 1)
    scores = logits / temperatures.unsqueeze(1).where(is_sampled, 1.0)
    if needs.filtering:
        scores = scores.masked_fill(scores < _thresholds(scores, top_ks, top_ps), float("-inf"))
    noise = gumbel_noise(seeds, positions, logits.size(1))
    # A greedy row is chosen from its untouched logits: nothing may move a tie.
    return (scores + noise).where(is_sampled, logits).argmax(dim=-1)


def logprobs_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log probability under the model, before any sampling parameter, of the chosen tokens. Shape (B,)."""
    return logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - logits.logsumexp(dim=-1)


def _thresholds(scores: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """The smallest score that each row keeps, shape (B, 1): one ranking serves top-k and top-p.

    top-p keeps the fewest tokens whose probability, among those that top-k left, reaches p; at least one. Tokens that
    tie with the last one kept are kept too.
    """
    vocab_size = scores.size(1)
    best = scores.amax(dim=-1, keepdim=True)
    top_ks = top_ks.long().clamp(max=vocab_size).unsqueeze(1)  # (B, 1)
    # With p = 1 rounding could cut the tail: 1 means off, so ask for more than there is.
    top_ps = top_ps.unsqueeze(1).where(top_ps.unsqueeze(1) < 1, 2.0)
    mass = (scores - best).exp().sum(dim=-1, keepdim=True)

    def from_ranking(ranked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The thresholds by the best (B, n) scores, and which rows need no more than these to be right."""
        weights = (ranked - best).exp()
        running = weights.cumsum(dim=-1)  # a prefix of it is the same for any n, and so is the answer
        depth = top_ks.where(top_ks > 0, vocab_size).clamp(max=ranked.size(1))
        wanted = top_ps * running.gather(1, depth - 1).where(top_ks > 0, mass)
        num_within = (running - weights < wanted).sum(dim=-1, keepdim=True)  # the better tokens do not reach p yet
        last = torch.minimum(num_within, depth).clamp(min=1) - 1
        is_k_seen = (top_ks > 0) & (top_ks <= ranked.size(1))
        is_p_seen = (top_ks == 0) & (running[:, -1:] >= wanted)
        return ranked.gather(1, last), is_k_seen | is_p_seen

    # Ranking a few is ten times as fast as ranking all, and nearly always enough. To ask whether it was is a
    # round trip to a GPU, where the sort is cheap anyway.
    if scores.device.type == "cpu" and vocab_size > FEW:
        thresholds, is_enough = from_ranking(scores.topk(FEW, dim=-1).values)
        is_off = (top_ks == 0) & (top_ps > 1)
        if bool((is_enough | is_off).all()):
            return thresholds.masked_fill(is_off, float("-inf"))
    return from_ranking(scores.sort(dim=-1, descending=True).values)[0]
