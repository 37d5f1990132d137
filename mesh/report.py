"""The answer to Query "status": what `phi3-broker status` shows and `--json` prints. Keys are stable; new ones may be
added."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mesh import bodies
from mesh.errors import BadMessage
from mesh.messages import NodeFacts


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ModelReport(_Part):
    """One served model, summed over the nodes that serve it."""

    name: str
    max_model_len: int = 0
    slots_total: int = 0
    num_running: int = 0
    num_queued: int = 0


class DeviceReport(_Part):
    """One device of a node: `mesh.messages.DeviceFacts`."""

    name: str
    utilisation: float = 0.0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    temperature_c: float = 0.0
    power_w: float = 0.0


class NodeReport(_Part):
    """One node, or one broker that this broker uses as a node."""

    name: str
    node_id: str = ""
    kind: str = "node"
    address: str = ""
    found_by: str = ""  # "mdns", "static", "dns"
    state: str = "joining"  # joining, ready, busy, suspect, stalled, draining, lost
    note: str = ""  # why it is in this state, in words
    models: tuple[ModelReport, ...] = ()
    engine: str = ""
    device: str = ""
    dtype: str = ""
    slots_total: int = 0
    num_running: int = 0
    num_queued: int = 0  # taken in by the node, not yet in a slot
    tokens_per_s: float = 0.0
    ttft_p50_s: float = 0.0
    ttft_p99_s: float = 0.0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    busy_fraction: float = 0.0
    heartbeat_age_s: float = 0.0
    uptime_s: float = 0.0
    version: str = ""
    itl_p50_s: float = 0.0  # time between tokens
    itl_p99_s: float = 0.0
    target_itl_s: float = 0.0  # of adaptive concurrency; 0: off
    devices: tuple[DeviceReport, ...] = ()
    counters: dict[str, int] = {}  # of the node, since its start


class ClientReport(_Part):
    """One caller: a client with a key of its own, or all connections of members that give the same name."""

    name: str  # of its key, or what it calls itself
    kind: str = "client"  # or "broker", for all that come through it
    has_own_key: bool = False
    num_connections: int = 0
    num_queued: int = 0  # waiting here for a node
    num_in_flight: int = 0
    num_tokens: int = 0  # given to it, over the connections it has now


def facts_for_report(facts: NodeFacts) -> dict[str, Any]:
    """What a NodeReport says of itself in the words of a Pong. The note is left to whoever judges the node."""
    values = dataclasses.asdict(facts)
    del values["note"]
    return {**values, "counters": dict(facts.counters)}


class StatusReport(_Part):
    """One broker (or one lone node) and all it knows."""

    kind: str
    name: str
    node_id: str
    address: str = ""
    version: str = ""
    policy: str = ""
    uptime_s: float = 0.0
    num_clients: int = 0
    num_queued: int = 0  # waiting here for a node
    num_in_flight: int = 0
    nodes: tuple[NodeReport, ...] = ()
    models: tuple[ModelReport, ...] = ()
    counters: dict[str, int] = {}  # since start: requests by outcome, failovers, malformed messages, …
    clients: tuple[ClientReport, ...] = ()  # those with the most work; only a member is told

    @property
    def num_ready(self) -> int:
        """Nodes that can take work now or as soon as a slot is free."""
        return sum(1 for node in self.nodes if node.state in ("ready", "busy"))

    def to_body(self) -> bytes:
        """The body frame of a Report message."""
        return bodies.pack(self.model_dump())

    @classmethod
    def from_body(cls, frame: bytes) -> StatusReport:
        """Raises BadMessage."""
        values: Any = bodies.unpack(frame)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise BadMessage("report", str(error.errors(include_url=False, include_input=False)[0]["msg"])) from None
