"""From facts to the state of a node. Alive, ready and progressing are three different things."""

from __future__ import annotations

from broker.registry import Node
from broker.states import NodeState

SUSPECT_AFTER = 1.5  # heartbeats without a word: one was missed, and the next is not due yet


def judge(node: Node, now: float) -> tuple[NodeState, str]:
    """The state, and in words why, where that is not obvious."""
    if node.welcome is None:
        return NodeState.JOINING, "waiting for its answer to Hello"
    if node.is_drained:
        return NodeState.DRAINING, "drained by an operator"
    if node.reported_state == "draining":
        return NodeState.DRAINING, node.facts.note or "it is leaving"
    if node.reported_state != "ready" or not node.served:
        return NodeState.JOINING, node.facts.note or "no model is loaded yet"
    if node.is_stalled:
        return NodeState.STALLED, f"has work and made no step for {node.step_age_s:.0f} s"
    if now - node.last_heard > SUSPECT_AFTER * node.heartbeat_s:
        return NodeState.SUSPECT, "missed a heartbeat"
    if all(served.is_full for served in node.served.values()):
        return NodeState.BUSY, node.facts.note
    return NodeState.READY, node.facts.note


def next_check(node: Node, now: float, lease_s: float) -> float:
    """When a heartbeat is due, or silence begins to mean something."""
    times = [node.pinged_at + node.heartbeat_s, node.last_heard + lease_s]
    suspect_at = node.last_heard + SUSPECT_AFTER * node.heartbeat_s
    if suspect_at > now:
        times.append(suspect_at + 1e-6)  # judge() asks for more than, not for as much as
    return max(now + 1e-3, min(times))
