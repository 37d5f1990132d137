"""What CURVE costs: the same echo in plain text and encrypted, over loopback, in turns within one run."""

from __future__ import annotations

import argparse
import threading
import time

import zmq

from mesh.security.keys import Credentials, KeyPair
from mesh.security.sockets import secure_client, secure_server
from scripts.benchmarks.table import Row, median

NUM_ROUNDS = 5
CASES = {"96-byte messages": (96, 20_000, 200), "1 MB messages": (1_000_000, 400, 8)}  # bytes, messages, in flight


def run(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for name, (num_bytes, num_messages, window) in CASES.items():
        plain, closed = [], []
        for _ in range(NUM_ROUNDS):
            plain.append(_seconds(num_bytes, num_messages, window, encrypted=False))
            closed.append(_seconds(num_bytes, num_messages, window, encrypted=True))
        rows.append(
            {
                "echo of": name,
                "plain us": 1e6 * median(plain) / num_messages,
                "CURVE us": 1e6 * median(closed) / num_messages,
                "CURVE over plain": median([c / p for c, p in zip(closed, plain, strict=True)]),
            }
        )
    return rows


def _seconds(num_bytes: int, num_messages: int, window: int, *, encrypted: bool) -> float:
    """One client keeps `window` messages in flight until so many came back."""
    member = Credentials.of_member(KeyPair.new())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    if encrypted:
        secure_server(server, member)
        server.zap_enforce_domain = False  # nobody is turned away here; what is measured is the cipher
        secure_client(member)(client)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    echo = threading.Thread(target=_echo, args=(server, num_messages))
    echo.start()
    client.connect(f"tcp://127.0.0.1:{port}")
    message = b"x" * num_bytes
    began = time.perf_counter()
    for _ in range(window):
        client.send(message)
    for number in range(num_messages):
        client.recv()
        if number + window < num_messages:
            client.send(message)
    took = time.perf_counter() - began
    echo.join()
    context.destroy(linger=0)
    return took


def _echo(server: zmq.Socket[bytes], num_messages: int) -> None:
    for _ in range(num_messages):
        server.send_multipart(server.recv_multipart(copy=False), copy=False)
