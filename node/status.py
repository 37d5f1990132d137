"""The report of a node that is asked directly: the same shape as a broker's, with one node in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mesh.messages import ModelLoad
from mesh.report import ModelReport, NodeReport, StatusReport

if TYPE_CHECKING:
    from node.agent import NodeAgent


def lone_node_report(models: Sequence[ModelLoad], agent: NodeAgent, now: float) -> StatusReport:
    """`models` as a Pong shows them."""
    config = agent.config
    facts = agent.facts.snapshot(agent.pool.workers, config, now)
    model_reports = tuple(
        ModelReport(
            name=model.name,
            max_model_len=model.max_model_len,
            slots_total=model.slots_total,
            num_running=model.num_running - model.num_waiting,
            num_queued=model.num_waiting,
        )
        for model in models
    )
    num_running = len(agent.requests) - agent.pool.num_waiting
    is_full = agent.state == "ready" and num_running >= agent.pool.slots_total
    node = NodeReport(
        name=config.name,
        node_id=config.node_id,
        state="busy" if is_full else agent.state,
        models=model_reports,
        slots_total=agent.pool.slots_total,
        num_running=num_running,
        num_queued=agent.pool.num_waiting,
        **dataclasses.asdict(facts),
    )
    return StatusReport(
        kind="node",
        name=config.name,
        node_id=config.node_id,
        version=facts.version,
        uptime_s=facts.uptime_s,
        num_clients=len(agent.requesters),
        num_in_flight=len(agent.requests),
        nodes=(node,),
        models=model_reports,
        counters=dict(agent.counters),
    )
