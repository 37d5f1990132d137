"""What must always hold in a broker, checked the slow way, for tests."""

from __future__ import annotations

from collections import Counter, defaultdict

from broker.book import Book
from broker.clients import Account, Clients
from broker.registry import Registry
from broker.request import Request


def check(book: Book, registry: Registry, clients: Clients) -> None:
    """Raises AssertionError naming the first thing that does not add up."""
    held = [request for client in clients for request in client.requests.values()]
    queued = [request for request in held if request.served is None]
    in_flight = [request for request in held if request.served is not None]
    _check_totals(book, queued, in_flight)
    _check_clients(clients)
    _check_nodes(registry, in_flight)
    _check_queues(registry, queued)


def _check_totals(book: Book, queued: list[Request], in_flight: list[Request]) -> None:
    admission = book.admission
    assert admission.num_queued == len(queued), (admission.num_queued, len(queued))
    assert admission.queued_bytes == sum(len(request.body) for request in queued)
    assert book.num_in_flight == len(in_flight), (book.num_in_flight, len(in_flight))
    assert not any(request.is_over for request in queued + in_flight)


def _check_clients(clients: Clients) -> None:
    held: dict[Account, list[Request]] = defaultdict(list)
    connections = Counter(hop.account for hop in clients.hops.values())
    for route_id, hop in clients.hops.items():
        yours: Counter[str] = Counter()
        for route, client in hop.clients.items():
            assert route == client.route
            assert route[0] == route_id
            assert client.hop is hop
            assert len(route) == 1 or client.requests, "a client behind a broker outlived its requests"
            held[client.account].extend(client.requests.values())
            yours.update(request.model.name for request in client.requests.values())
        assert yours == hop.num_by_model, (yours, hop.num_by_model)
        assert hop.account.num_connections == connections[hop.account]
    for account, requests in held.items():
        queued = [request for request in requests if request.served is None]
        assert account.num_requests == len(requests)
        assert account.num_queued == len(queued)
        assert account.queued_bytes == sum(len(request.body) for request in queued)


def _check_nodes(registry: Registry, in_flight: list[Request]) -> None:
    placed: set[Request] = set()
    for node in registry:
        for name, served in node.served.items():
            assert registry.models[name].served[node.peer] is served
            assert served.num_mine == len(served.in_flight) >= 0
            assert served.tokens_mine == sum(request.cost for request in served.in_flight)
            assert all(request.served is served for request in served.in_flight)
            placed |= served.in_flight.keys()
    assert placed == set(in_flight), "in flight at no node, or at a node for no client"
    for model in registry.models.values():
        assert model.served or model.queue, f"model {model.name} outlived its nodes and its work"
        assert all(peer in registry.nodes for peer in model.served)


def _check_queues(registry: Registry, queued: list[Request]) -> None:
    waiting = [request for model in registry.models.values() for request in model.queue.waiting()]
    assert len(waiting) == sum(len(model.queue) for model in registry.models.values())
    assert set(waiting) == set(queued), "queued and in no queue, or the other way round"
    for model in registry.models.values():
        if model.queue and not model.is_servable:
            assert model.orphan_timer is not None, f"work for {model.name} waits for ever"
