"""Every request the broker holds: taken in, queued, placed, freed. Each leaves this book exactly once."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

from broker.admission import Admission, Refusal
from broker.clients import Client, Clients
from broker.config import BrokerConfig
from broker.dispatch import POLICIES
from broker.outbox import Outbox
from broker.registry import Model, Node, Registry, ServedModel
from broker.request import Request
from broker.timers import Timers
from broker.times import Times
from mesh.messages import Failed, Lost, Rejected, RequestHead, Submit

_MAX_BOUNCES = 8  # a node that turns work away does no harm, but a request must not go round for ever
_MIN_HOLD_S = 0.05
_ORPHAN_RETRY_S = 1.0


class Book:
    """The life of requests between the two sides of the broker.

    A key is a client and its request id. `outcomes` counts how requests left.
    """

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        clients: Clients,
        outbox: Outbox,
        timers: Timers,
        rng: random.Random,
    ) -> None:
        self.config = config
        self._registry = registry
        self._clients = clients
        self._outbox = outbox
        self._timers = timers
        self._rng = rng
        self._policy = POLICIES[config.policy]
        self._sequence = 0
        self._to_place: dict[str, Model] = {}  # models with work that may find room now
        self.admission = Admission(config, registry)
        self.counters: Counter[str] = Counter()
        self.times = Times()
        self.num_in_flight = 0
        self.num_tokens = 0  # relayed since the start

    # --- in ---

    def submit(self, client: Client, heads: Sequence[RequestHead], bodies: Sequence[bytes], now: float) -> None:
        """Take requests in or say why not; one body for each head."""
        taken = [
            request
            for head, body in zip(heads, bodies, strict=True)
            if (request := self._take_in(client, head, body, now)) is not None
        ]
        if taken:
            self.counters["accepted"] += len(taken)
            if client.hop.role != "broker":  # a broker has told its clients already
                self._outbox.accept(client, taken)

    def _take_in(self, client: Client, head: RequestHead, body: bytes, now: float) -> Request | None:
        """The same id again replaces the request that had it."""
        old = client.requests.get(head.request_id)
        if old is not None:
            self._withdraw(old, "replaced")
            client.hop.clients[client.route] = client  # it may have been dropped as idle just now
        model = self.admission.admit(client, head, body)
        if isinstance(model, Refusal) and model.code == "overloaded" and self._to_place:
            self.place(now)  # what came in this turn is not waiting if nodes have room for it
            model = self.admission.admit(client, head, body)
        if isinstance(model, Refusal):
            self.reject(client, head, model.code, model.text, model.retry_after_s)
            return None
        self._sequence += 1
        request = Request(client, head, body, model, self._sequence, now)
        client.requests[head.request_id] = request
        client.account.num_requests += 1
        client.hop.num_by_model[model.name] += 1
        if head.deadline_s > 0:
            request.timer = self._timers.at(now + head.deadline_s, partial(self._expire, request))
        self.admission.entered(request)
        model.queue.push(request)
        self._to_place[model.name] = model
        return request

    def reject(self, client: Client, head: RequestHead, code: str, text: str, retry_after_s: float = 0.0) -> None:
        """Say no at the door."""
        self.counters[f"rejected_{code}"] += 1
        self._outbox.to_client(client.route, Rejected(head.request_id, head.attempt, code, text, retry_after_s))

    # --- placing ---

    def reconsider(self, model: Model) -> None:
        """There may be room for it now."""
        if model.queue:
            self._to_place[model.name] = model

    def place(self, now: float) -> None:
        """Send what waits to nodes with room; what one node gets of one client leaves as one message."""
        self._outbox.flush_cancels()
        if not self._to_place:
            return
        models, self._to_place = self._to_place, {}
        batches: dict[tuple[int, Client], list[Request]] = defaultdict(list)
        for model in models.values():
            self._place_model(model, batches, now)
        for (peer, client), requests in batches.items():
            self._send(self._registry.nodes[peer], client, requests, now)

    def _place_model(self, model: Model, batches: dict[tuple[int, Client], list[Request]], now: float) -> None:
        queue = model.queue
        with_room = [s for s in model.served.values() if s.room > 0 and s.node.takes_work and s.node.hold_until <= now]
        if sum([served.room for served in with_room]) >= len(queue):
            for request in queue.take_all():
                self._assign(request, with_room, batches, now)
        else:
            while with_room:
                self._assign(queue.pop(), with_room, batches, now)

    def _assign(
        self,
        request: Request,
        with_room: list[ServedModel],
        batches: dict[tuple[int, Client], list[Request]],
        now: float,
    ) -> None:
        chosen = self._policy(with_room, request, self._rng)
        self.admission.left(request)
        self.num_in_flight += 1
        self._sequence += 1
        chosen.put(request, self._sequence)
        request.dispatched_at = now
        self.times.queue.add(now - request.accepted_at)
        batches[chosen.node.peer, request.client].append(request)
        if chosen.room <= 0:
            with_room.remove(chosen)

    def _send(self, node: Node, client: Client, requests: list[Request], now: float) -> None:
        max_batch = max(1, node.welcome.max_batch) if node.welcome else 1
        for start in range(0, len(requests), max_batch):
            batch = requests[start : start + max_batch]
            heads = tuple([self._head_for(request, node, now) for request in batch])
            self._outbox.to_node(
                node.peer, Submit(heads, client.codecs), client.route, [request.body for request in batch]
            )

    @staticmethod
    def _head_for(request: Request, node: Node, now: float) -> RequestHead:
        """The head as the node must see it: with the time that is left, and with the model if it has a choice."""
        head = request.head
        if not head.deadline_s and (head.model or len(node.served) == 1):
            return head
        left_s = max(1e-3, head.deadline_s + request.accepted_at - now) if head.deadline_s else 0.0
        return RequestHead(
            head.request_id,
            head.attempt,
            request.model.name,
            head.prompt_tokens,
            head.max_tokens,
            head.affinity,
            head.priority,
            left_s,
            head.stream,
        )

    # --- out ---

    def find(self, client: Client, key: tuple[int, int], node: Node) -> Request | None:
        """The request with this id and attempt that is in flight at this node."""
        request = client.requests.get(key[0])
        if request is None or request.head.attempt != key[1]:
            return None
        served = request.served
        return request if served is not None and served.node is node else None

    def end(self, request: Request, outcome: str, now: float) -> None:
        """The node said its last word on it."""
        self.times.duration.add(now - request.accepted_at)
        self.admission.num_done += 1
        self._remove(request, outcome)

    def bounce(self, request: Request, retry_after_s: float, now: float) -> bool:
        """A node has no room for it after all: back to the head of the queue. False when that happened too often, or
        when it is late already."""
        served = request.served
        if served is None or request.num_bounces >= _MAX_BOUNCES:
            return False
        request.num_bounces += 1
        self.counters["bounced"] += 1
        served.node.hold_until = now + max(_MIN_HOLD_S, retry_after_s)
        self._timers.at(served.node.hold_until, partial(self._hold_over, served.node))
        served.take(request)
        self.num_in_flight -= 1
        self.admission.entered(request)
        request.model.queue.put_back(request)
        self.reconsider(request.model)
        self.check_orphans(request.model, now)
        return True

    def cancel(self, client: Client, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            request = client.requests.get(request_id)
            if request is not None:
                self._withdraw(request, "cancelled")

    def drop_client(self, client: Client, outcome: str) -> None:
        """It is gone: nothing of it goes on running anywhere."""
        for request in list(client.requests.values()):
            self._withdraw(request, outcome)
        client.hop.clients.pop(client.route, None)
        self._forget(client)

    def lose(self, requests: Iterable[Request], node: str, reason: str, *, cancel: bool = False) -> None:
        """Tell each client at once, so that it goes on elsewhere. With `cancel` the node is told as well."""
        by_client: dict[Client, list[Request]] = defaultdict(list)
        for request in requests:
            by_client[request.client].append(request)
        for client, lost in by_client.items():
            self._outbox.to_client(client.route, Lost(tuple([request.key for request in lost]), node, reason))
            for request in lost:
                if cancel:
                    self._withdraw(request, "lost")
                else:
                    self._remove(request, "lost")

    def lose_all(self, reason: str, *, cancel: bool) -> None:
        """The broker itself hands over everything it has."""
        requests = [request for client in self._clients for request in client.requests.values()]
        self.lose(requests, self.config.name, reason, cancel=cancel)

    def check_orphans(self, model: Model, now: float) -> None:
        """Work whose last node has gone waits a little for another one, and not for ever."""
        if model.queue and not model.is_servable:
            if model.orphan_timer is None:
                due = now + self.config.orphan_grace_s
                model.orphan_timer = self._timers.at(due, partial(self._give_up_orphans, model))
        else:
            self._stop_orphan_timer(model)

    def _stop_orphan_timer(self, model: Model) -> None:
        if model.orphan_timer is not None:
            self._timers.cancel(model.orphan_timer)
            model.orphan_timer = None

    def _give_up_orphans(self, model: Model, now: float) -> None:
        model.orphan_timer = None
        if model.is_servable:
            return
        text = f"no node that serves {model.name} is left"
        for request in model.queue.waiting():
            self.reject(request.client, request.head, "not_ready", text, _ORPHAN_RETRY_S)
            self._remove(request, "orphaned")

    def _expire(self, request: Request, now: float) -> None:
        client, head, served = request.client, request.head, request.served
        waited = f"its deadline of {head.deadline_s:.3g} s passed"
        if served is None:
            self.reject(client, head, "deadline_exceeded", f"{waited} in the queue")
        else:
            text = f"{waited} while it ran"
            failed = Failed(head.request_id, head.attempt, "deadline_exceeded", text, served.node.label)
            self._outbox.to_client(client.route, failed)
        self._withdraw(request, "expired")

    def _hold_over(self, node: Node, now: float) -> None:
        for served in node.served.values():
            self.reconsider(self._registry.models[served.name])

    def _withdraw(self, request: Request, outcome: str) -> None:
        """Nobody wants it any more; if a node has it, the node must know."""
        if request.served is not None:
            self._outbox.cancel(request.served.node.peer, request.client.route, request.head.request_id)
        self._remove(request, outcome)

    def _remove(self, request: Request, outcome: str) -> None:
        client, model, served = request.client, request.model, request.served
        request.is_over = True
        if served is not None:
            served.take(request)
            self.num_in_flight -= 1
            self.reconsider(model)
        else:
            self.admission.left(request)
            model.queue.remove(request)
            if not model.queue:
                self._stop_orphan_timer(model)
                self._registry.drop_if_unused(model)
        if request.timer is not None:
            self._timers.cancel(request.timer)
        del client.requests[request.head.request_id]
        client.account.num_requests -= 1
        counts = client.hop.num_by_model
        counts[model.name] -= 1
        if not counts[model.name]:
            del counts[model.name]
        self.counters[outcome] += 1
        if not client.requests and self._clients.drop_if_idle(client):
            self._forget(client)

    def _forget(self, client: Client) -> None:
        for model in self._registry.models.values():
            model.queue.forget(client)
