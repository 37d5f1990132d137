"""`zmq.proxy`, ZeroMQ's own forwarder in C, between a ROUTER for clients and a DEALER to nodes: the least that anything
in the broker's place can cost.

    python -m scripts.benchmarks.trivial_proxy --node tcp://127.0.0.1:5611 …
"""

from __future__ import annotations

import argparse
import signal

import zmq


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", action="append", required=True)
    given = parser.parse_args()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket in (front, back):
        socket.sndhwm = socket.rcvhwm = 100_000
    front.bind("tcp://127.0.0.1:*")
    for address in given.node:
        back.connect(address)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the proxy never comes back to Python to hear of a signal
    print(f"address={bytes(front.getsockopt(zmq.LAST_ENDPOINT)).decode()}", flush=True)
    zmq.proxy(front, back)


if __name__ == "__main__":
    main()
