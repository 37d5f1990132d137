"""The counters that a member keeps anyway, as metrics: nothing is counted twice, and a new one shows up by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from mesh.metrics.samples import Row, counter, counters

MAX_EVENTS = 64
REASONS = (
    "invalid_request", "no_such_model", "prompt_too_long", "forbidden", "deadline_exceeded", "overloaded", "not_ready",
)  # fmt: skip
REFUSALS = (
    "bad_message",
    "forbidden",
    "no_hello",
    "revoked_key",
    "too_many_connections",
    "version_mismatch",
    "wrong_mesh",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the counters of one kind of member mean. Those that are named here exist from the start, with 0: a rate of
    something that has never happened is 0 then, and not unknown."""

    outcomes: Sequence[str]  # how a request leaves
    named: Mapping[str, tuple[str, str]]  # to the name of the metric, and its help


BROKER = Plan(
    outcomes=("finished", "failed", "lost", "cancelled", "expired", "orphaned", "abandoned", "replaced"),
    named={
        "accepted": ("accepted_requests", "Requests taken in."),
        "tokens": ("tokens", "Tokens relayed."),
        "nodes_lost": ("nodes_lost", "Nodes that died, fell silent or restarted."),
        "bounced": ("bounced_requests", "Requests that a node turned away and that went back into the queue."),
        "late_frames": ("late_messages", "Messages about requests that had ended: duplicates, dropped."),
        "malformed": ("malformed_messages", "Messages that are not in the protocol."),
        "clients_gone": ("clients_gone", "Clients that left or fell silent."),
        "clients_shed": ("clients_shed", "Of these, the ones cut off because they did not read."),
    },
)
NODE = Plan(
    outcomes=("finished", "failed", "handed_over", "cancelled", "deadline_exceeded", "replaced", "rejected"),
    named={
        "prompt_tokens": ("prompt_tokens", "Tokens of the prompts of requests that were started."),
        "cached_tokens": ("cached_tokens", "Of these, the ones found in the prefix cache."),
        "generated_tokens": ("generated_tokens", "Tokens generated."),
        "resumed_requests": ("resumed_requests", "Requests begun elsewhere and continued here."),
        "resumed_tokens": ("resumed_tokens", "Tokens of theirs that were generated elsewhere."),
        "recomputed_tokens": ("recomputed_tokens", "Tokens computed again to continue them, the prompts included."),
        "workers_lost": ("workers_lost", "Engine workers that died or hung while they served."),
        "stale_submit": ("stale_submissions", "Attempts older than the one at hand: duplicates, dropped."),
        "malformed": ("malformed_messages", "Messages that are not in the protocol."),
        "slow_reader": ("unsent_messages", "Messages dropped because their receiver did not read."),
        "unreachable": ("unreachable_messages", "Messages whose receiver had gone."),
    },
)


def counter_families(prefix: str, plan: Plan, counted: Mapping[str, int]) -> Iterator[Metric]:
    """Outcomes, rejections and refusals by reason, each counter of the plan by its name, the rest as events."""
    rest = dict(counted)
    yield counters(
        f"{prefix}_requests", "Requests that have left, by outcome.", ["outcome"],
        [([outcome], rest.pop(outcome, 0)) for outcome in plan.outcomes],
    )  # fmt: skip
    rejected = dict.fromkeys(REASONS, 0) | _take(rest, "rejected_")
    yield counters(f"{prefix}_rejections", "Requests that were told no, by reason.", ["reason"], _rows(rejected))
    refused = dict.fromkeys(REFUSALS, 0) | _take(rest, "refused_")
    yield counters(f"{prefix}_refusals", "Connections and messages refused, by reason.", ["reason"], _rows(refused))
    for key, (name, text) in plan.named.items():
        yield counter(f"{prefix}_{name}", text, rest.pop(key, 0))
    yield counters(f"{prefix}_events", "Whatever else was counted, by its own name.", ["event"], _rows(rest))


def _take(rest: dict[str, int], prefix: str) -> dict[str, int]:
    return {key.removeprefix(prefix): rest.pop(key) for key in list(rest) if key.startswith(prefix)}


def _rows(counted: Mapping[str, int]) -> list[Row]:
    return [([key], count) for key, count in sorted(counted.items())[:MAX_EVENTS]]
