"""The report of a node that is asked directly: the same shape as a broker's, with one node in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh.report import ModelReport, NodeReport, StatusReport, facts_for_report

if TYPE_CHECKING:
    from node.agent import NodeAgent


def lone_node_report(agent: NodeAgent, now: float) -> StatusReport:
    """Everything that this node knows."""
    config, work = agent.config, agent.work
    facts = work.measured(now)
    model_reports = tuple(
        ModelReport(
            name=model.name,
            max_model_len=model.max_model_len,
            slots_total=model.slots_total,
            num_running=model.num_running - model.num_waiting,
            num_queued=model.num_waiting,
        )
        for model in work.models(b"")
    )
    num_running = len(work.requests) - work.pool.num_waiting
    is_full = work.state == "ready" and num_running >= work.pool.slots_total
    node = NodeReport(
        name=config.name,
        node_id=config.node_id,
        state="busy" if is_full else work.state,
        models=model_reports,
        slots_total=work.pool.slots_total,
        num_running=num_running,
        num_queued=work.pool.num_waiting,
        note=facts.note,
        **facts_for_report(facts),
    )
    return StatusReport(
        kind="node",
        name=config.name,
        node_id=config.node_id,
        version=facts.version,
        uptime_s=facts.uptime_s,
        num_clients=len(agent.requesters),
        num_in_flight=len(work.requests),
        nodes=(node,),
        models=model_reports,
        counters=dict(work.counters),
    )
