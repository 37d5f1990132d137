"""What the broker says about itself: Welcome, Pong and the status report. To its clients it looks like one big node."""

from __future__ import annotations

from collections.abc import Iterable

from broker.book import Book
from broker.callers import client_reports
from broker.clients import Clients, Hop
from broker.health import judge
from broker.registry import AbsentNode, Model, Node, Registry
from mesh.bodies import CODECS
from mesh.messages import ModelLoad, NodeFacts, Pong, Welcome
from mesh.report import ModelReport, NodeReport, StatusReport, facts_for_report
from mesh.security.keys import MEMBER
from mesh.version import __version__

_CACHE_S = 0.05  # sums over all nodes are made this often at most, however many clients ping


class Reporter:
    """Reads the broker's state and changes nothing."""

    def __init__(
        self, book: Book, registry: Registry, clients: Clients, node_id: str, epoch: int, started_at: float
    ) -> None:
        self._book = book
        self._config = book.config
        self._registry = registry
        self._clients = clients
        self._node_id = node_id
        self._epoch = epoch
        self._started_at = started_at
        self.address = ""  # set by whoever binds
        self._summed_at = float("-inf")
        self._loads: tuple[ModelLoad, ...] = ()
        self._facts = NodeFacts()
        self._status_bodies: dict[bool, bytes] = {}

    def welcome(self, hop: Hop, now: float) -> Welcome:
        self._sum_up(now)
        config = self._config
        return Welcome(
            "broker", config.name, self._node_id, self._epoch, config.mesh, config.heartbeat_s, config.liveness,
            config.max_batch, config.max_body_bytes, CODECS, self._loads_for(hop),
        )  # fmt: skip

    def pong(self, sequence: int, hop: Hop, now: float) -> Pong:
        self._sum_up(now)
        state = "ready" if self._registry.num_ready else "joining"
        if self._book.admission.is_closed:
            state = "draining"
        # No step age: a node of ours that stalls is our affair, and its work is handed over from here.
        return Pong(sequence, self._epoch, state, self._book.num_tokens, 0.0, self._loads_for(hop), self._facts)

    def status_body(self, hop: Hop, now: float) -> bytes:
        """Made once in a turn: it costs a hundred times as much to write as to ask for. Who the others are is told to
        members only."""
        is_member = hop.user == MEMBER
        body = self._status_bodies.get(is_member)
        if body is None:
            report = self.status(now)
            body = (report if is_member else report.model_copy(update={"clients": ()})).to_body()
            self._status_bodies[is_member] = body
        return body

    def turn_over(self) -> None:
        """What was true in this turn may not be in the next."""
        self._status_bodies.clear()

    def status(self, now: float) -> StatusReport:
        book, config = self._book, self._config
        return StatusReport(
            kind="broker",
            name=config.name,
            node_id=self._node_id,
            address=self.address,
            version=__version__,
            policy=config.policy,
            uptime_s=now - self._started_at,
            num_clients=len(self._clients),
            num_queued=book.admission.num_queued,
            num_in_flight=book.num_in_flight,
            nodes=tuple(self._node_reports(now)),
            models=tuple(_model_report(_load(model)) for model in self._registry.models.values() if model.served),
            counters={**dict(sorted(book.counters.items())), "tokens": book.num_tokens},
            clients=client_reports(self._clients.hops.values()),
        )

    def _sum_up(self, now: float) -> None:
        if now - self._summed_at > _CACHE_S:
            self._summed_at = now
            self._loads = tuple([_load(model) for model in self._registry.models.values() if model.served])
            self._facts = self._sum_facts(now)

    def _loads_for(self, hop: Hop) -> tuple[ModelLoad, ...]:
        mine = hop.num_by_model
        if not mine:
            return self._loads
        return tuple([_with_yours(load, mine[load.name]) if load.name in mine else load for load in self._loads])

    def _sum_facts(self, now: float) -> NodeFacts:
        facts = [node.facts for node in self._registry if node.takes_work]
        return NodeFacts(
            engine="broker",
            device=f"{len(facts)} node{'' if len(facts) == 1 else 's'}",
            version=__version__,
            tokens_per_s=sum(f.tokens_per_s for f in facts),
            ttft_p50_s=max((f.ttft_p50_s for f in facts), default=0.0),
            ttft_p99_s=max((f.ttft_p99_s for f in facts), default=0.0),
            memory_used_bytes=sum(f.memory_used_bytes for f in facts),
            memory_total_bytes=sum(f.memory_total_bytes for f in facts),
            busy_fraction=sum(f.busy_fraction for f in facts) / len(facts) if facts else 0.0,
            uptime_s=now - self._started_at,
            note="" if facts else "no node is ready",
            itl_p50_s=max((f.itl_p50_s for f in facts), default=0.0),
            itl_p99_s=max((f.itl_p99_s for f in facts), default=0.0),
        )

    def _node_reports(self, now: float) -> Iterable[NodeReport]:
        reports = [_node_report(node, now) for node in self._registry]
        reports += [_absent_report(absent) for absent in self._registry.absent.values() if not self._is_back(absent)]
        return sorted(reports, key=lambda report: (not report.name, report.name, report.address))

    def _is_back(self, absent: AbsentNode) -> bool:
        """The node that was there has another address now."""
        return bool(absent.node_id) and bool(self._registry.by_id(absent.node_id))


def _load(model: Model) -> ModelLoad:
    """One model over all nodes that take work. What waits here counts as running and waiting, as it does at a node."""
    served = [s for s in model.served.values() if s.node.takes_work]
    num_queued = len(model.queue)
    return ModelLoad(
        name=model.name,
        max_model_len=min((s.max_model_len for s in served), default=0),  # what fits wherever it goes
        slots_total=sum(s.slots_total for s in served),
        num_running=num_queued + sum(s.num_mine + s.num_others for s in served),
        num_waiting=num_queued + sum(s.num_waiting for s in served),
    )


def _with_yours(load: ModelLoad, num_yours: int) -> ModelLoad:
    return load._replace(num_running=max(load.num_running, num_yours), num_yours=num_yours)


def _model_report(load: ModelLoad) -> ModelReport:
    return ModelReport(
        name=load.name,
        max_model_len=load.max_model_len,
        slots_total=load.slots_total,
        num_running=load.num_running - load.num_waiting if load.num_running > load.num_waiting else 0,
        num_queued=load.num_waiting,
    )


def _node_report(node: Node, now: float) -> NodeReport:
    state, note = judge(node, now)
    models = tuple(
        ModelReport(
            name=s.name,
            max_model_len=s.max_model_len,
            slots_total=s.slots_total,
            num_running=max(0, s.num_mine + s.num_others - s.num_waiting),
            num_queued=s.num_waiting,
        )
        for s in node.served.values()
    )
    return NodeReport(
        name=node.name,
        node_id=node.node_id,
        kind=node.welcome.kind if node.welcome else "node",
        address=node.address,
        found_by=node.found_by,
        state=state,
        note=note,
        models=models,
        slots_total=sum(model.slots_total for model in models),
        num_running=sum(model.num_running for model in models),
        num_queued=sum(model.num_queued for model in models),
        heartbeat_age_s=now - node.last_heard,
        **facts_for_report(node.facts),
    )


def _absent_report(absent: AbsentNode) -> NodeReport:
    return NodeReport(
        name=absent.name,
        node_id=absent.node_id,
        address=absent.address,
        found_by=absent.found_by,
        state=absent.state,
        note=absent.note,
    )
