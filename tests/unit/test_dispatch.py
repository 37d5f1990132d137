"""Which node gets a request: each policy on tables of candidates."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from broker.dispatch import DEFAULT_POLICY, POLICIES, Candidate


@dataclass
class Ask:
    cost: int = 100
    affinity_key: bytes = b"someone"


def pick(policy: str, *candidates: Candidate, ask: Ask | None = None, seed: int = 1) -> str:
    return POLICIES[policy](candidates, ask or Ask(), random.Random(seed)).node_id


def share(policy: str, *candidates: Candidate, draws: int = 2000) -> Counter[str]:
    rng = random.Random(1)
    return Counter(POLICIES[policy](candidates, Ask(), rng).node_id for _ in range(draws))


def node(node_id: str, slots: int = 4, mine: int = 0, **facts: float) -> Candidate:
    return Candidate(node_id, slots, mine, **facts)  # type: ignore[arg-type]  # a table of numbers


@pytest.mark.parametrize(
    ("policy", "candidates", "expected"),
    [
        ("least-connections", [node("a", 4, 2), node("b", 4, 1)], "b"),
        ("least-connections", [node("a", 4, 2), node("b", 16, 4)], "b"),
        ("least-connections", [node("small", 1), node("big", 16)], "big"),
        ("least-connections", [node("a", 4, 0, num_others=3), node("b", 4, 2)], "b"),
        ("least-work", [node("a", tokens_mine=90, tokens_per_s=90), node("b", tokens_mine=50, tokens_per_s=5)], "a"),
        ("least-work", [node("new", 8), node("b", 8, tokens_mine=900, tokens_per_s=50)], "new"),
        ("least-work", [node("new", 1), node("b", 8, tokens_per_s=800)], "b"),
        ("least-work", [node("a", num_others=4, tokens_per_s=10), node("b", tokens_mine=10, tokens_per_s=10)], "b"),
        ("round-robin", [node("a", last_pick=7), node("b", last_pick=3), node("c", last_pick=9)], "b"),
        ("least-memory", [node("a", memory_fraction=0.9), node("b", memory_fraction=0.4)], "b"),
        ("least-memory", [node("unknown"), node("b", memory_fraction=0.8)], "b"),
        ("least-memory", [node("a", 4, 3, memory_fraction=0.5), node("b", 4, 0, memory_fraction=0.502)], "b"),
        ("power-of-two", [node("a", 4, 3), node("b", 4, 0)], "b"),
    ],
)  # fmt: skip
def test_a_policy_picks(policy: str, candidates: list[Candidate], expected: str) -> None:
    assert {pick(policy, *candidates, seed=seed) for seed in range(20)} == {expected}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_content_with_a_single_candidate_that_knows_nothing(policy: str) -> None:
    assert pick(policy, Candidate("only", 0)) == "only"


@pytest.mark.parametrize("policy", ["least-connections", "least-work", "round-robin", "least-memory", "power-of-two"])
def test_ties_are_broken_evenly(policy: str) -> None:
    counts = share(policy, node("a"), node("b"), node("c"))

    assert set(counts) == {"a", "b", "c"}
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_random_follows_capacity() -> None:
    counts = share("random", node("small", 4), node("big", 12))

    assert 2.5 < counts["big"] / counts["small"] < 3.5


def test_least_connections_fills_nodes_in_proportion_to_their_slots() -> None:
    small, big = node("small", 4), node("big", 16)
    for _ in range(15):
        chosen = POLICIES[DEFAULT_POLICY]([small, big], Ask(), random.Random(1))
        chosen.num_mine += 1
        chosen.recount()

    assert (small.num_mine, big.num_mine) == (3, 12)


def test_round_robin_takes_turns() -> None:
    nodes = [node("a"), node("b"), node("c")]
    order = []
    for turn in range(1, 7):
        chosen = POLICIES["round-robin"](nodes, Ask(), random.Random(turn))
        chosen.last_pick = turn
        order.append(chosen.node_id)

    assert order[:3] == order[3:]
    assert sorted(order[:3]) == ["a", "b", "c"]


def placed(nodes: list[Candidate], keys: int = 600) -> dict[int, str]:
    return {key: pick("hash", *nodes, ask=Ask(affinity_key=f"key-{key}".encode())) for key in range(keys)}


def test_hash_sends_a_key_to_the_same_node_whatever_the_load_and_the_order() -> None:
    nodes = [node("a", 4), node("b", 4), node("c", 4)]
    before = placed(nodes)
    nodes[0].num_mine = 3

    assert placed(nodes[::-1]) == before
    assert max(Counter(before.values()).values()) < 1.4 * min(Counter(before.values()).values())


def test_hash_moves_only_the_keys_of_the_node_that_left_or_is_full() -> None:
    nodes = [node("a"), node("b"), node("c"), node("d")]
    before, after = placed(nodes), placed(nodes[:3])

    assert {before[key] for key in before if before[key] != after[key]} == {"d"}
    assert {after[key] for key in before if before[key] == "d"} == {"a", "b", "c"}


def test_hash_gives_keys_by_capacity() -> None:
    counts = Counter(placed([node("small", 4), node("big", 12)]).values())

    assert 2.2 < counts["big"] / counts["small"] < 4.2
