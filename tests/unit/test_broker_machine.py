"""Anything may happen in any order: the books agree after each step, and no request gets two endings or none."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from mesh.messages import Bye, Failed, Lost, Rejected, Tokens
from tests.support.broker_harness import Asked, BrokerHarness

NODES = st.sampled_from("abc")
CLIENTS = st.sampled_from(["alice", "bob", "zone/carol", "zone/dave"])
SLOTS = {"a": 1, "b": 3, "c": 8}
PREFETCH = 1


class Broker(RuleBasedStateMachine):
    """Each attempt ends at most once. What was cancelled, replaced or abandoned may end or not; all else must."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.broker = BrokerHarness(max_queued=30)
        self.epochs = 100  # those of the clients are smaller
        self.asked: set[Asked] = set()
        self.is_excused: set[Asked] = set()  # nobody waits for these any more
        self.latest: dict[tuple[str, int], Asked] = {}
        for client in ("alice", "bob"):
            self.broker.greets(client)
        self.broker.greets("zone", role="broker")
        for name in ("a", "b"):
            self.a_node_joins(name)

    # --- what may happen ---

    @rule(name=NODES)
    def a_node_joins(self, name: str) -> None:
        if name in self.broker.nodes and self.broker.nodes[name].peer not in self.broker.hung_up:
            return
        self.epochs += 1
        self.broker.joins(name, SLOTS[name], epoch=self.epochs)

    @rule(name=NODES)
    def a_node_dies(self, name: str) -> None:
        if name in self.broker.nodes:
            self.broker.dies(name)

    @rule(name=NODES, is_silent=st.booleans())
    def a_node_stops_or_starts_answering(self, name: str, is_silent: bool) -> None:
        if name in self.broker.nodes:
            self.broker.nodes[name].is_silent = is_silent

    @rule(name=NODES, step_age_s=st.sampled_from([0.0, 100.0]))
    def an_engine_hangs_or_recovers(self, name: str, step_age_s: float) -> None:
        if name in self.broker.nodes:
            self.broker.nodes[name].step_age_s = step_age_s

    @rule(name=NODES, state=st.sampled_from(["joining", "ready", "draining"]))
    def a_node_changes_its_state(self, name: str, state: str) -> None:
        if name in self.broker.nodes:
            self.broker.nodes[name].state = state

    @rule(name=NODES, others=st.integers(0, 10))
    def another_broker_uses_a_node(self, name: str, others: int) -> None:
        if name in self.broker.nodes:
            self.broker.nodes[name].others["phi3"] = others

    @rule(
        target=requests,
        client=CLIENTS,
        count=st.integers(1, 8),
        priority=st.integers(-1, 1),
        deadline_s=st.sampled_from([0.0, 0.0, 1.0]),
    )
    def a_client_submits(self, client: str, count: int, priority: int, deadline_s: float) -> object:
        self._greet_again(client)
        asked = self.broker.submits(client, count, priority=priority, deadline_s=deadline_s)
        self._note(asked)
        return multiple(*asked)

    @rule(target=requests, asked=consumes(requests))
    def a_client_submits_again(self, asked: Asked) -> Asked:
        self._greet_again(asked.client)
        self.is_excused.add(asked)
        again = asked.again()
        self.broker.resubmits(again)
        self._note([again])
        return again

    @rule(asked=consumes(requests))
    def a_client_cancels(self, asked: Asked) -> None:
        self.is_excused.add(asked)
        self._greet_again(asked.client)
        self.broker.cancels(asked)

    @rule(client=st.sampled_from(["alice", "bob", "zone"]), how=st.sampled_from(["bye", "lost", "slow"]))
    def a_client_leaves(self, client: str, how: str) -> None:
        self.is_excused |= {asked for asked in self.asked if asked.client.split("/")[0] == client}
        if how == "bye":
            self.broker.from_client(client, Bye())
        elif how == "lost":
            self.broker.core.client_unreachable(client.encode())
        else:
            self.broker.core.client_slow(client.encode())
        self.broker.settle()

    @rule(asked=requests, what=st.sampled_from(["tokens", "end", "fail", "lose", "reject", "bounce"]), where=NODES)
    def a_node_speaks_of_a_request(self, asked: Asked, what: str, where: str) -> None:
        """Of one that it has, or of any other: late and confused words are part of life. Tokens the broker relays in
        any case, because it cannot know what is in the body; the client drops what is old."""
        holder = self.broker.where_is(asked)
        name = holder if holder in self.broker.nodes else where
        if name not in self.broker.nodes or (name != holder and what == "end"):
            return
        if what in ("tokens", "end"):
            self.broker.hears_tokens(name, asked, done=what == "end")
        elif what == "fail":
            self.broker.hears_failed(name, asked)
        elif what == "lose":
            self.broker.hears_lost(name, asked)
        else:
            self.broker.hears_rejected(name, asked, "overloaded" if what == "bounce" else "invalid_request", 0.1)

    @rule(seconds=st.sampled_from([0.05, 0.3, 0.6, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.broker.time_passes(seconds)

    # --- what must hold ---

    @invariant()
    def no_node_is_overfilled(self) -> None:
        for node in self.broker.core._registry:
            for served in node.served.values():
                assert 0 <= served.num_mine <= served.slots_total + PREFETCH

    @invariant()
    def nothing_waits_while_a_node_has_room(self) -> None:
        now = self.broker.now
        for model in self.broker.core._registry.models.values():
            idle = [s for s in model.served.values() if s.room > 0 and s.node.takes_work and s.node.hold_until <= now]
            assert not (model.queue and idle)

    @invariant()
    def each_attempt_ends_at_most_once(self) -> None:
        for asked, endings in self._endings().items():
            if asked not in self.is_excused:
                assert endings <= 1, (asked, endings)

    @invariant()
    def no_attempt_is_forgotten(self) -> None:
        endings = self._endings()
        for asked in self.asked - self.is_excused:
            held = self._is_held(asked)
            assert held == (endings[asked] == 0), (asked, held, endings[asked])

    def teardown(self) -> None:
        """Live nodes finish all there is; then nothing is left of it."""
        broker = self.broker
        for name in list(broker.nodes):
            broker.dies(name)
        self.epochs += 1
        broker.joins("a", 8, epoch=self.epochs)
        for _ in range(200):
            held = [asked for asked in self.asked if broker.where_is(asked) == "a"]
            for asked in held:
                broker.hears_tokens("a", asked, done=True)
            broker.time_passes(0.05)
            if not held and not broker.core.status(broker.now).num_in_flight:
                break
        self.no_attempt_is_forgotten()
        assert not any(self._is_held(asked) for asked in self.asked)
        core = broker.core
        assert (core._book.admission.num_queued, core._book.num_in_flight) == (0, 0)
        assert all(not model.queue._flows for model in core._registry.models.values())

    # --- helpers ---

    def _note(self, asked: list[Asked]) -> None:
        for one in asked:
            self.asked.add(one)
            self.latest[one.client, one.request_id] = one

    def _is_held(self, asked: Asked) -> bool:
        """As the broker's own books have it."""
        return any(
            request.head.request_id == asked.request_id
            and request.head.attempt == asked.attempt
            and "/".join(frame.decode() for frame in client.route) == asked.client
            for client in self.broker.core._clients
            for request in client.requests.values()
        )

    def _endings(self) -> dict[Asked, int]:
        counts: dict[Asked, int] = defaultdict(int)
        for client, messages in self.broker.clients.items():
            for message, _ in messages:
                keys: tuple[tuple[int, int], ...] = ()
                if isinstance(message, Tokens):
                    keys = message.finished
                elif isinstance(message, Lost):
                    keys = message.requests
                elif isinstance(message, Rejected | Failed):
                    keys = ((message.request_id, message.attempt),)
                for request_id, attempt in keys:
                    counts[Asked(client, request_id, attempt)] += 1
        return counts

    def _greet_again(self, client: str) -> None:
        hop = client.split("/")[0]
        if hop.encode() not in self.broker.core._clients.hops:
            self.broker.greets(hop, role="broker" if hop == "zone" else "client")


TestBroker = Broker.TestCase
TestBroker.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
