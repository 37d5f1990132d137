"""The nodes: who they are, what they serve and what they hold. Facts only; `broker.health` draws the conclusions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.dispatch import Candidate
from broker.queueing import FairQueue
from broker.request import Request
from broker.states import NodeState
from broker.timers import Timer
from mesh.messages import ModelLoad, NodeFacts, Welcome

_PREFETCH_DIVISOR = 8  # one request ready for every eight slots: enough that a freed slot never idles for a round trip
_MAX_KNOWN_MODELS = 1000  # names come from nodes, and what they invent must not fill the memory
_SPEED_LEARNS = 0.2  # weight of a new measurement of a busy node


@dataclass(slots=True, eq=False)
class ServedModel(Candidate):
    """One model on one node. What this broker has there is counted here, one by one, and never taken from a report."""

    node: Node = field(kw_only=True)
    name: str = field(kw_only=True)
    max_model_len: int = 0
    prefetch: int = 1
    num_waiting: int = 0  # taken in by the node and not in a slot, from all requesters
    in_flight: dict[Request, None] = field(default_factory=dict)  # a dict for its order
    num_blanks: int = 0  # Pongs in a row that deny having anything of ours
    room: int = field(init=False, default=0)  # how many more it may get now

    def recount(self) -> None:
        Candidate.recount(self)
        self.room = self.slots_total + self.prefetch - self.num_mine - self.num_others

    @property
    def is_full(self) -> bool:
        """No free slot; there may still be room for prefetch."""
        return self.num_mine + self.num_others >= self.slots_total

    def put(self, request: Request, pick: int) -> None:
        self.in_flight[request] = None
        self.num_mine += 1
        self.tokens_mine += request.cost
        self.recount()
        self.last_pick = pick
        request.served = self

    def take(self, request: Request) -> None:
        del self.in_flight[request]
        self.num_mine -= 1
        self.tokens_mine -= request.cost
        self.recount()
        request.served = None


@dataclass(slots=True, eq=False)
class Node:
    """One connection to a node, or to a broker that is used as one."""

    peer: int  # of the connection, never used again
    address: str
    found_by: str
    connected_at: float
    heartbeat_s: float  # how often it is pinged: ours, or its own if that is shorter
    last_heard: float
    welcome: Welcome | None = None
    state: NodeState = NodeState.JOINING
    takes_work: bool = False  # follows from the state; asked for each request
    reported_state: str = "joining"  # what it says of itself
    is_drained: bool = False  # by an operator, through this broker
    is_stalled: bool = False
    facts: NodeFacts = field(default_factory=NodeFacts)
    served: dict[str, ServedModel] = field(default_factory=dict)
    ping_sequence: int = 0
    pinged_at: float = 0.0
    step_age_s: float = 0.0
    num_admins: int = 0  # sent to it and not answered
    hold_until: float = 0.0  # it turned a request away: nothing before this time
    timer: Timer | None = None

    @property
    def name(self) -> str:
        return self.welcome.name if self.welcome else ""

    @property
    def node_id(self) -> str:
        return self.welcome.node_id if self.welcome else ""

    @property
    def label(self) -> str:
        """What to call it in a message to a person."""
        return self.name or self.address

    def enter(self, state: NodeState) -> None:
        self.state = state
        self.takes_work = state in (NodeState.READY, NodeState.BUSY)

    @property
    def num_in_flight(self) -> int:
        return sum(served.num_mine for served in self.served.values())


@dataclass(slots=True)
class Model:
    """A model that some node serves, or that work is waiting for."""

    name: str
    queue: FairQueue = field(default_factory=FairQueue)
    served: dict[int, ServedModel] = field(default_factory=dict)  # by peer
    orphan_timer: Timer | None = None  # runs while there is work and no node for it

    @property
    def is_servable(self) -> bool:
        """Some node will take work for it, now or in a moment."""
        for served in self.served.values():  # noqa: SIM110  # asked for each request: a generator costs more
            if served.node.takes_work or served.node.state is NodeState.SUSPECT:
                return True
        return False


@dataclass(frozen=True, slots=True)
class AbsentNode:
    """An address that should lead to a node and does not, for the status report."""

    address: str
    found_by: str
    state: NodeState
    note: str
    name: str = ""  # and id: of the node that was there before
    node_id: str = ""
    lost_because: str = ""  # of a node that was there: its end, which says more than why it cannot be reached since


class Registry:
    """Nodes by connection, models by name. A process has one connection at a time; an id may be that of several."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.models: dict[str, Model] = {}
        self.absent: dict[str, AbsentNode] = {}
        self._known_models: dict[str, None] = {}  # served at some time, newest last

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    @property
    def num_ready(self) -> int:
        return sum(1 for node in self if node.takes_work)

    @property
    def only_model(self) -> Model | None:
        """The model that is served, if it is one."""
        served = [model for model in self.models.values() if model.served]
        return served[0] if len(served) == 1 else None

    @property
    def served_names(self) -> list[str]:
        return sorted(name for name, model in self.models.items() if model.served)

    def add(self, node: Node) -> None:
        self.nodes[node.peer] = node
        self.absent.pop(node.address, None)

    def by_id(self, node_id: str) -> list[Node]:
        """A scan, for handshakes and reports. More than one: processes that share an id by mistake."""
        return [node for node in self if node.welcome and node.node_id == node_id]

    def named(self, target: str) -> list[Node]:
        """Nodes whose address, id or name it is; the more exact wins."""
        at_address = [node for node in self if node.welcome and target == node.address]
        return at_address or self.by_id(target) or [node for node in self if node.welcome and node.name == target]

    def has_served(self, name: str) -> bool:
        """Whether some node serves this model, or did."""
        return name in self._known_models

    def register(self, node: Node, welcome: Welcome) -> None:
        node.welcome = welcome

    def remove(self, node: Node) -> None:
        """Its requests must have been taken away already."""
        del self.nodes[node.peer]
        for name in list(node.served):
            self._unserve(node, name)

    def update_models(self, node: Node, loads: tuple[ModelLoad, ...], prefetch: int) -> list[ServedModel]:
        """Take in what a Pong or Welcome says of each model. Returns models that are no longer served: whatever
        is in flight there is lost."""
        for load in loads:
            served = node.served.get(load.name)
            if served is None:
                served = node.served[load.name] = ServedModel(
                    node_id=node.node_id, slots_total=load.slots_total, node=node, name=load.name
                )
                self.model(load.name).served[node.peer] = served
                self._remember(load.name)
            served.max_model_len = load.max_model_len
            served.slots_total = load.slots_total
            served.prefetch = prefetch or max(1, load.slots_total // _PREFETCH_DIVISOR)
            served.num_others = max(0, load.num_running - load.num_yours)
            served.num_waiting = load.num_waiting
            served.recount()
        gone = node.served.keys() - {load.name for load in loads}
        return [self._unserve(node, name) for name in gone]

    def update_facts(self, node: Node, facts: NodeFacts) -> None:
        node.facts = facts
        fraction = facts.memory_used_bytes / facts.memory_total_bytes if facts.memory_total_bytes else 1.0
        for served in node.served.values():
            served.memory_fraction = fraction
            if facts.tokens_per_s > served.tokens_per_s:
                served.tokens_per_s = facts.tokens_per_s
            elif served.is_full:  # an idle node is not a slow one: only what a full one does says how fast it is
                served.tokens_per_s += _SPEED_LEARNS * (facts.tokens_per_s - served.tokens_per_s)

    def model(self, name: str) -> Model:
        if name not in self.models:
            self.models[name] = Model(name)
        return self.models[name]

    def drop_if_unused(self, model: Model) -> None:
        if not model.served and not model.queue:
            self.models.pop(model.name, None)

    def _remember(self, name: str) -> None:
        self._known_models.pop(name, None)
        self._known_models[name] = None
        while len(self._known_models) > _MAX_KNOWN_MODELS:
            del self._known_models[next(iter(self._known_models))]

    def _unserve(self, node: Node, name: str) -> ServedModel:
        model = self.models[name]
        del model.served[node.peer]
        self.drop_if_unused(model)
        return node.served.pop(name)
