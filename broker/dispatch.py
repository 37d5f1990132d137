"""Dispatch policies: which of the nodes with room gets a request.

Each is a pure function of candidates, request and random numbers. Only nodes that serve the model and have room are
candidates, so a policy never has to say no. Weights follow capacity: load is always relative to slots.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol, TypeVar

GUESSED_TOKENS = 256  # of a request that nothing is known about, such as another broker's


@dataclass(slots=True, eq=False)
class Candidate:
    """One model on one node, as a policy sees it."""

    node_id: str
    slots_total: int
    num_mine: int = 0  # requests this broker has there: exact
    num_others: int = 0  # requests other brokers have there, as of the last Pong
    tokens_mine: int = 0  # estimated tokens of `num_mine`
    tokens_per_s: float = 0.0  # what it does when busy; 0 = not known yet
    memory_fraction: float = 1.0  # of the device's memory in use; 1 when unknown, so that known ones go first
    last_pick: int = 0  # grows with each request it gets; the smallest has waited longest
    load: float = field(init=False, default=0.0)  # follows from the others: every policy asks for it, for every request

    def __post_init__(self) -> None:
        self.recount()

    def recount(self) -> None:
        """Call when slots or requests have changed. Load is requests per slot if it got one more: counting the new one
        makes an idle big node win over an idle small one, so that shares follow capacity from the first request on."""
        self.load = (self.num_mine + self.num_others + 1) / (self.slots_total or 1)


class Placeable(Protocol):
    """What a policy may know of a request."""

    @property
    def cost(self) -> int:
        """Estimated tokens, prompt and answer."""

    @property
    def affinity_key(self) -> bytes:
        """Requests with the same key like the same node."""


C = TypeVar("C", bound=Candidate)


class Policy(Protocol):
    def __call__(self, candidates: Sequence[C], request: Placeable, rng: random.Random) -> C: ...


def least_connections(candidates: Sequence[C], request: Placeable, rng: random.Random) -> C:
    """The fewest requests per slot."""
    return _least(candidates, _LOAD, rng)


def least_work(candidates: Sequence[C], request: Placeable, rng: random.Random) -> C:
    """Done soonest: outstanding tokens over measured speed. A node not measured yet counts as average per slot."""
    known = [c for c in candidates if c.tokens_per_s > 0]
    per_slot = sum(c.tokens_per_s for c in known) / max(1, sum(c.slots_total for c in known)) if known else 1.0

    def seconds(candidate: C) -> float:
        speed = candidate.tokens_per_s or per_slot * max(1, candidate.slots_total)
        tokens = candidate.tokens_mine + candidate.num_others * GUESSED_TOKENS + request.cost
        return tokens / speed

    return _least(candidates, seconds, rng)


def round_robin(candidates: Sequence[C], request: Placeable, rng: random.Random) -> C:
    """In turn: the one whose last request is longest ago."""
    return _least(candidates, _LAST_PICK, rng)


def random_choice(candidates: Sequence[C], request: Placeable, rng: random.Random) -> C:
    """Any, in proportion to slots."""
    return rng.choices(candidates, [max(1, candidate.slots_total) for candidate in candidates])[0]


def power_of_two(candidates: Sequence[C], request: Placeable, rng: random.Random) -> C:
    """The less loaded of two drawn at random: close to least connections, and many brokers with stale views do not all
    run to the same node."""
    return least_connections(rng.sample(candidates, min(2, len(candidates))), request, rng)


def least_memory(candidates: Sequence[C], request: Placeable, rng: random.Random) -> C:
    """The smallest share of device memory in use. Reported once a heartbeat, so load decides between near equals."""
    return _least(candidates, lambda candidate: (round(candidate.memory_fraction, 2), candidate.load), rng)


def hash_affinity(candidates: Sequence[C], request: Placeable, rng: random.Random) -> C:
    """The same key to the same node: rendezvous hashing weighted by slots.

    A node that leaves or is full moves only its own keys, each to the next node in that key's own order; when it is
    back they return.
    """
    key = request.affinity_key

    def score(candidate: C) -> float:
        digest = hashlib.blake2b(key + b"\0" + candidate.node_id.encode(), digest_size=7).digest()
        uniform = (int.from_bytes(digest) + 1) / (1 << 56)  # in (0, 1]: the logarithm below needs it
        return -math.log(uniform) / max(1, candidate.slots_total)  # exponential race: the smallest wins by weight

    return _least(candidates, score, rng)


_LOAD: Callable[[Candidate], float] = attrgetter("load")
_LAST_PICK: Callable[[Candidate], int] = attrgetter("last_pick")


def _least(candidates: Sequence[C], measure: Callable[[C], Any], rng: random.Random) -> C:
    """The candidate with the smallest measure; ties are broken at random, or the first node would get them all."""
    best, lowest, num_ties = candidates[0], measure(candidates[0]), 1
    for candidate in candidates[1:]:
        value = measure(candidate)
        if value < lowest:
            best, lowest, num_ties = candidate, value, 1
        elif value == lowest:
            num_ties += 1
            if rng.random() * num_ties < 1:  # each of n equals stays with a chance of 1/n
                best = candidate
    return best


DEFAULT_POLICY = "least-connections"
POLICIES: dict[str, Policy] = {
    DEFAULT_POLICY: least_connections,
    "least-work": least_work,
    "round-robin": round_robin,
    "random": random_choice,
    "power-of-two": power_of_two,
    "least-memory": least_memory,
    "hash": hash_affinity,
}
