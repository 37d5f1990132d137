"""Nodes that faults are tried on, and how to look into them."""

from __future__ import annotations

import os
import signal

from mesh import Client
from mesh.report import NodeReport
from scripts.chaostool.member import children_of
from tests.support.eventually import eventually
from tests.support.processes import Member

LEASE_S = 1.5  # liveness × heartbeat, by default
MARGIN_S = 1.0  # for a busy machine; scripts/chaos measures what it really takes


def numbers(**values: float) -> tuple[str, ...]:
    """Options that set numbers of the synthetic engine."""
    return tuple(word for name, value in values.items() for word in ("--synthetic", f"{name}={value:g}"))


STEADY = ("--stall", "1", *numbers(step_base_s=0.02))  # 50 tokens a second for each stream


def signal_workers(node: Member, number: signal.Signals) -> None:
    pids = children_of(node.pid)
    assert pids, "the node has no worker"
    for pid in pids:
        os.kill(pid, number)


def report_of(client: Client, name: str) -> NodeReport:
    return next(node for node in client.status().nodes if node.name == name)


def are_idle(*members: Member, within_s: float = 5.0) -> None:
    """Until none of them holds a request."""
    for member in members:
        with Client(member.address) as client:
            eventually(lambda client=client: client.status().num_in_flight == 0, within_s)
