"""The central queue by itself: whose request is next."""

from __future__ import annotations

import random
import time

from broker.clients import Client, Hop
from broker.registry import Model
from broker.request import Request
from mesh.messages import Hello, RequestHead


class Queue:
    """A FairQueue with clients that are names and requests that are numbers."""

    def __init__(self) -> None:
        self.model = Model("phi3")
        self.queue = self.model.queue
        self.clients: dict[str, Client] = {}
        self.count = 0

    def client(self, name: str) -> Client:
        if name not in self.clients:
            route = name.encode()
            self.clients[name] = Client((route,), Hop(route, "member", Hello("client", name, 1, "default"), 0.0))
        return self.clients[name]

    def push(self, name: str, cost: int = 10, priority: int = 0, attempt: int = 1) -> Request:
        self.count += 1
        head = RequestHead(self.count, attempt, "phi3", cost, 0, priority=priority)
        request = Request(self.client(name), head, b"", self.model, self.count, 0.0)
        self.queue.push(request)
        return request

    def remove(self, request: Request) -> None:
        request.is_over = True
        self.queue.remove(request)

    def pop_all(self) -> list[Request]:
        return [self.queue.pop() for _ in range(len(self.queue))]

    def names(self) -> list[str]:
        return [request.client.hop.name for request in self.pop_all()]


def test_one_client_is_served_in_order() -> None:
    queue = Queue()
    requests = [queue.push("a") for _ in range(50)]

    assert queue.pop_all() == requests


def test_higher_priority_goes_first_within_a_client() -> None:
    queue = Queue()
    low, high, later = queue.push("a"), queue.push("a", priority=5), queue.push("a", priority=5)

    assert queue.pop_all() == [high, later, low]


def test_what_was_interrupted_does_not_line_up_behind_what_has_not_begun() -> None:
    """A stream whose node died waited behind the thousands of prompts that its own client had sent after it."""
    queue = Queue()
    waiting = [queue.push("a") for _ in range(3)]
    resumed, urgent = queue.push("a", attempt=2), queue.push("a", priority=1)

    assert queue.pop_all() == [urgent, resumed, *waiting]


def test_priority_is_no_way_to_get_ahead_of_other_clients() -> None:
    queue = Queue()
    for _ in range(10):
        queue.push("pushy", priority=2**31 - 1)
    queue.push("modest")

    assert "modest" in queue.names()[:2]


def test_a_single_request_waits_behind_at_most_one_of_a_crowd() -> None:
    queue = Queue()
    for _ in range(10_000):
        queue.push("crowd")
    for _ in range(5):
        queue.queue.pop()
    queue.push("single")

    assert "single" in [queue.queue.pop().client.hop.name for _ in range(2)]


def test_clients_share_by_tokens_and_not_by_requests() -> None:
    queue = Queue()
    for _ in range(200):
        queue.push("long", cost=400)
        queue.push("short", cost=100)
    served = [queue.queue.pop().client.hop.name for _ in range(100)]

    assert 3.5 < served.count("short") / served.count("long") < 4.5


def test_who_had_nothing_to_ask_for_gets_no_credit_for_it() -> None:
    queue = Queue()
    queue.push("b")
    for _ in range(100):
        queue.push("a")
    for _ in range(60):
        queue.queue.pop()
    for _ in range(40):
        queue.push("b")

    served = [queue.queue.pop().client.hop.name for _ in range(20)]
    assert abs(served.count("a") - served.count("b")) <= 2


def test_what_is_put_back_is_the_first_of_its_client_again_and_costs_no_turn() -> None:
    queue = Queue()
    for _ in range(3):
        queue.push("a")
        queue.push("b")
    first = queue.queue.pop()
    queue.queue.put_back(first)

    assert first in [queue.queue.pop(), queue.queue.pop()]
    assert sorted(queue.names()) == ["a", "a", "b", "b"]


def test_removed_requests_are_skipped_and_do_not_pile_up() -> None:
    queue = Queue()
    keep = queue.push("a")
    for _ in range(5000):
        queue.remove(queue.push("a"))
        queue.remove(queue.push("b"))

    assert sum(len(flow.heap) for flow in queue.queue._flows.values()) < 500
    assert len(queue.queue._turns) < 500
    assert queue.pop_all() == [keep]


def test_an_empty_queue_remembers_nobody() -> None:
    queue = Queue()
    for index in range(100):
        queue.push(f"client-{index}")
    queue.pop_all()

    assert not queue.queue._flows
    assert not queue.queue._turns


def test_forgotten_clients_leave_nothing_behind_while_others_wait() -> None:
    queue = Queue()
    queue.push("stays")
    for index in range(1000):
        name = f"client-{index}"
        queue.remove(queue.push(name))
        queue.queue.forget(queue.client(name))

    assert len(queue.queue._flows) == 1
    assert len(queue.queue._turns) < 200


def test_random_use_loses_and_doubles_nothing() -> None:
    rng = random.Random(5)
    queue = Queue()
    waiting: set[Request] = set()
    for _ in range(3000):
        action = rng.random()
        if action < 0.5 or not waiting:
            waiting.add(queue.push(rng.choice("abcdef"), rng.randint(1, 500), rng.randint(-2, 2)))
        elif action < 0.7:
            request = rng.choice(sorted(waiting, key=lambda one: one.sequence))
            waiting.remove(request)
            queue.remove(request)
        else:
            request = queue.queue.pop()
            waiting.remove(request)
            if rng.random() < 0.2:
                queue.queue.put_back(request)
                waiting.add(request)
        assert len(queue.queue) == len(waiting)
        assert set(queue.queue.waiting()) == waiting


def test_the_cost_of_an_operation_does_not_grow_with_the_queue() -> None:
    """A generous bound: it fails for anything that looks at all that wait."""
    queue = Queue()
    for index in range(50_000):
        queue.push(f"client-{index % 500}")
    start = time.process_time()
    for _ in range(1000):
        queue.queue.push(queue.queue.pop())

    assert time.process_time() - start < 0.5
