"""The sampler draws from the right distribution, from bits that depend on nothing but seed, position and index."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from node.engine import sampling  # noqa: E402
from node.engine.noise import gumbel_noise  # noqa: E402
from node.engine.sampling import Needs, choose_tokens, logprobs_of  # noqa: E402

pytestmark = pytest.mark.model

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 1.5, -0.5])
CHI_SQUARE_7_AT_1E_6 = 40.5  # 7 degrees of freedom; the draws are fixed, so this passes always or never


def draw(logits: torch.Tensor, num: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """`num` tokens of one sequence, at positions 0 to num - 1."""
    return choose_tokens(
        logits.expand(num, -1),
        temperatures=torch.full((num,), temperature),
        top_ks=torch.full((num,), top_k, dtype=torch.int32),
        top_ps=torch.full((num,), top_p),
        seeds=torch.full((num,), 2**63 - 1),
        positions=torch.arange(num),
        needs=Needs(),
    )


def chi_square(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities * len(tokens)
    return float(((tokens.bincount(minlength=len(expected)) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_softmax(temperature: float) -> None:
    tokens = draw(LOGITS, 100_000, temperature)
    assert chi_square(tokens, (LOGITS / temperature).softmax(0)) < CHI_SQUARE_7_AT_1E_6


def test_tokens_follow_the_softmax_from_one_seed_to_the_next() -> None:
    num = 100_000
    noise = gumbel_noise(torch.arange(num), torch.full((num,), 7), len(LOGITS))
    assert chi_square((LOGITS + noise).argmax(1), LOGITS.softmax(0)) < CHI_SQUARE_7_AT_1E_6


def test_a_token_says_nothing_about_the_next() -> None:
    tokens = draw(LOGITS[:3], 90_000)
    pairs = tokens[:-1] * 3 + tokens[1:]
    probabilities = LOGITS[:3].softmax(0)
    assert chi_square(pairs, torch.outer(probabilities, probabilities).flatten()) < CHI_SQUARE_7_AT_1E_6


def test_top_k_keeps_the_k_best() -> None:
    tokens = draw(LOGITS, 50_000, top_k=3)
    kept = LOGITS[[0, 1, 6]].softmax(0)
    assert set(tokens.tolist()) == {0, 1, 6}
    assert tokens.bincount(minlength=8)[[0, 1, 6]] / len(tokens) == pytest.approx(kept, abs=0.01)


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    probabilities = LOGITS.softmax(0)
    two_best = float(probabilities[0] + probabilities[6])
    assert set(draw(LOGITS, 20_000, top_p=two_best - 0.01).tolist()) == {0, 6}
    assert set(draw(LOGITS, 20_000, top_p=two_best + 0.01).tolist()) == {0, 1, 6}
    assert set(draw(LOGITS, 1_000, top_p=1e-9).tolist()) == {0}


def test_top_p_is_taken_of_what_top_k_left() -> None:
    best_of_three = float(LOGITS[[0, 1, 6]].softmax(0)[0])
    assert set(draw(LOGITS, 5_000, top_k=3, top_p=best_of_three - 0.01).tolist()) == {0}


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])  # almost flat: the few are not enough; steep: they are
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.9), (40, 1.0), (40, 0.5), (600, 0.9), (0, 1.0)])
def test_ranking_a_few_gives_what_ranking_all_gives(
    spread: float, top_k: int, top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = spread * torch.randn(5_000, generator=torch.Generator().manual_seed(2))
    few = draw(logits, 50, top_k=top_k, top_p=top_p)
    monkeypatch.setattr(sampling, "FEW", 10**9)
    assert draw(logits, 50, top_k=top_k, top_p=top_p).tolist() == few.tolist()


def test_greedy_rows_are_untouched_by_sampled_neighbours() -> None:
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    is_greedy = torch.arange(64) % 2 == 0
    tokens = choose_tokens(
        logits,
        temperatures=torch.where(is_greedy, 0.0, 1.5),
        top_ks=torch.full((64,), 50),
        top_ps=torch.full((64,), 0.9),
        seeds=torch.arange(64),
        positions=torch.arange(64),
        needs=Needs(),
    )
    assert tokens[is_greedy].tolist() == logits.argmax(1)[is_greedy].tolist()
    assert tokens[~is_greedy].tolist() != logits.argmax(1)[~is_greedy].tolist()


@pytest.mark.parametrize("skipped", [Needs(filtering=False), Needs(logprobs=False), Needs(False, False, False)])
def test_work_that_no_row_asks_for_can_be_skipped(skipped: Needs) -> None:
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(1))
    temperatures = torch.full((8,), 0.7 if skipped.noise else 0.0)
    arguments = (temperatures, torch.zeros(8), torch.ones(8), torch.arange(8), torch.arange(8))
    assert choose_tokens(logits, *arguments, skipped).tolist() == choose_tokens(logits, *arguments, Needs()).tolist()


def test_noise_does_not_depend_on_the_shape_of_the_batch() -> None:
    seeds, positions = torch.arange(37) * 2**57, torch.arange(37) + 4000
    together = gumbel_noise(seeds, positions, 1003)
    for row in (0, 17, 36):
        assert torch.equal(gumbel_noise(seeds[row : row + 1], positions[row : row + 1], 1003)[0], together[row])
    assert torch.equal(gumbel_noise(seeds, positions, 11), together[:, :11])


def test_noise_is_pinned() -> None:
    """A change of these numbers changes every sampled answer, and breaks a failover between two versions."""
    noise = gumbel_noise(torch.tensor([0, 2**63 - 1]), torch.tensor([0, 32_000]), 3)
    assert noise.tolist() == [
        [-0.764649510383606, 0.571277916431427, 3.619748115539551],
        [1.6067873239517212, 4.152466297149658, -0.5693508386611938],
    ]


def test_noise_has_the_moments_and_the_tail_of_gumbel() -> None:
    noise = gumbel_noise(torch.arange(200), torch.arange(200), 20_000)
    assert torch.isfinite(noise).all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.003)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.01)
    assert float((noise > 10).float().mean()) == pytest.approx(math.exp(-10), rel=0.2)


def test_logprobs_are_those_of_the_raw_logits() -> None:
    tokens = torch.tensor([0, 5])
    assert logprobs_of(LOGITS.expand(2, -1), tokens).tolist() == pytest.approx(LOGITS.log_softmax(0)[tokens].tolist())
