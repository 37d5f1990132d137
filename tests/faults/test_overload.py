"""More work than the mesh can do: callers wait their turn, nobody starves, and memory does not grow."""

from __future__ import annotations

import threading
import time

import pytest
import zmq

from mesh import Client, DeadlineExceeded
from mesh.codec import encode
from mesh.link import new_socket
from mesh.messages import Hello, Ping
from scripts.chaostool import oracle
from scripts.chaostool.member import memory_of
from tests.faults.nodes import numbers, report_of
from tests.support.eventually import eventually
from tests.support.processes import Mesh, wait_for_nodes

SLOW = numbers(step_base_s=0.01, slots=16)


def test_ten_thousand_prompts_of_one_do_not_starve_a_single_one_of_another(mesh: Mesh) -> None:
    node = mesh.node("n", *SLOW)
    broker = mesh.broker("b", node)
    with Client(broker.address) as crowd, Client(broker.address) as single:
        wait_for_nodes(single, 1)
        with crowd.as_completed([f"prompt {i}" for i in range(10_000)], max_tokens=50, ignore_eos=True) as results:
            next(results)  # the mesh is busy with them
            began = time.monotonic()
            single.generate("just one", max_tokens=10)
            assert time.monotonic() - began < 3.0  # a free slot comes every 30 ms; the crowd needs five minutes


def test_over_its_bound_the_broker_says_overloaded_and_the_library_waits(mesh: Mesh) -> None:
    """Ten times what may queue: everything is answered, and what the broker holds stays within its bound."""
    broker = mesh.broker("b", mesh.node("n", *SLOW), options=("--max-queued", "50"))
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
        before = memory_of(broker.pid)
        params = {"max_tokens": 10, "ignore_eos": True}
        results = client.generate_batch([f"p{i}" for i in range(500)], **params)
        assert all(oracle.difference({"prompt": f"p{i}", **params}, r.choices[0]) == "" for i, r in enumerate(results))
        assert client.status().counters["rejected_overloaded"] > 0
        assert memory_of(broker.pid) - before < 20 << 20


def test_whoever_cannot_wait_that_long_is_told_at_his_own_deadline(mesh: Mesh) -> None:
    broker = mesh.broker("b", mesh.node("n", *SLOW), options=("--max-queued", "20"))
    with Client(broker.address) as client:
        wait_for_nodes(client, 1)
        results = client.generate_batch(["p"] * 300, max_tokens=100, ignore_eos=True, timeout_s=1.5, return_errors=True)
        assert any(isinstance(result, DeadlineExceeded) for result in results)
        assert all(isinstance(result, DeadlineExceeded) or result.token_ids for result in results)
        eventually(lambda: client.status().num_in_flight == 0)


def test_a_client_that_does_not_read_its_answers_is_shed_and_others_are_served(mesh: Mesh) -> None:
    broker = mesh.broker("b", mesh.node("n", "--insecure"), options=("--insecure",))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Client(broker.address, insecure=True) as client, context, new_socket(context, zmq.DEALER) as deaf:
        wait_for_nodes(client, 1)
        before = memory_of(broker.pid)
        deaf.rcvhwm = 1
        deaf.rcvbuf = 4096
        deaf.connect(broker.address)
        deaf.send_multipart([b"", encode(Hello("client", "deaf", 1, "default"))])

        def is_shed_after_some_more_questions() -> int:
            for number in range(2000):
                deaf.send_multipart([b"", encode(Ping(number))])
            return client.status().counters.get("clients_shed", 0)

        eventually(is_shed_after_some_more_questions, within_s=30)
        assert client.generate("hello", max_tokens=3, timeout_s=5).token_ids
        assert memory_of(broker.pid) - before < 50 << 20


@pytest.mark.timeout(60)
def test_two_brokers_together_do_not_oversubscribe_a_node(mesh: Mesh) -> None:
    """Each sees what the other has there. At the very worst both fill the same free places within one heartbeat."""
    node = mesh.node("n", *numbers(step_base_s=0.02, slots=8))
    brokers = [mesh.broker("b1", node), mesh.broker("b2", node)]
    clients = [Client(broker.address) for broker in brokers]
    with Client(node.address) as watcher, clients[0], clients[1]:
        for client in clients:
            wait_for_nodes(client, 1)
        params = {"max_tokens": 20, "ignore_eos": True}
        threads = [
            threading.Thread(target=client.generate_batch, args=([f"p{i}" for i in range(40)],), kwargs=params)
            for client in clients
        ]
        for thread in threads:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in threads):
            report = report_of(watcher, "n")
            most = max(most, report.num_running + report.num_queued)
        for thread in threads:
            thread.join()
    assert 8 <= most <= 2 * (8 + 1)
