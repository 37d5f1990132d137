"""Many streamed answers at once, through the mesh or over HTTP, measured while all of them run.

CPU time counts from the moment when every stream has had some tokens until the first one ends, so that neither what it
costs to place a request nor what it costs to end one is in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import zmq

from mesh.messages import Tokens
from scripts.benchmarks.cpu import cpu_s, main_thread_s
from scripts.benchmarks.load import LoadClient
from scripts.benchmarks.peers.http_load import HttpLoad

_SETTLED = 3  # tokens of each stream, before anything is counted
_STANDSTILL_MS = 30_000


@dataclass
class Take:
    """What one run came to, in the time that was measured."""

    tokens: int = 0  # of HTTP: events
    seconds: float = 0.0
    cpu_s: float = 0.0
    main_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)  # between two pieces of one stream
    longest_gap_s: float = 0.0  # of all streams from their first to their last piece, whenever it was

    @property
    def us_per_token(self) -> float:
        return 1e6 * self.cpu_s / self.tokens


class Meter:
    """Counts what comes and decides when the measured time begins and ends. `pids`: whose CPU time it is."""

    def __init__(self, num_streams: int, pids: Sequence[int]) -> None:
        self._num_streams, self._pids = num_streams, pids
        self._before = (0.0, 0.0, 0.0, 0)
        self._last_at: dict[object, float] = {}
        self._is_on = self._is_over = False
        self.num_tokens = self.num_finished = 0
        self.take = Take()

    def on_tokens(self, stream: object, num_tokens: int, num_finished: int) -> None:
        """So many tokens of one stream and of others, which came at the same moment; so many of these ended."""
        now = time.perf_counter()
        if num_finished and self._is_on:
            self._end(now)
        self.num_tokens += num_tokens
        self.num_finished += num_finished
        gap = now - self._last_at.get(stream, now)
        self._last_at[stream] = now
        self.take.longest_gap_s = max(self.take.longest_gap_s, gap)
        if gap and self._is_on:
            self.take.gaps_s.append(gap)
        if not self._is_on and not self._is_over and self.num_tokens >= _SETTLED * self._num_streams:
            self._is_on = True
            self._before = (now, *self._cpu(), self.num_tokens)

    def _end(self, now: float) -> None:
        self._is_on, self._is_over = False, True
        began, cpu, main, tokens = self._before
        now_cpu, now_main = self._cpu()
        self.take.tokens, self.take.seconds = self.num_tokens - tokens, now - began
        self.take.cpu_s, self.take.main_s = now_cpu - cpu, now_main - main

    def _cpu(self) -> tuple[float, float]:
        return sum(map(cpu_s, self._pids)), sum(map(main_thread_s, self._pids))


def run_mesh(
    addresses: Sequence[str],
    mesh: str,
    home: Path | None,
    *,
    num_streams: int,
    num_clients: int,
    num_tokens: int,
    pids: Sequence[int] = (),
) -> Take:
    """Clients with an equal share of the streams each, connected to these addresses by turns. Raises RuntimeError when
    not every token of every stream comes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    clients = [
        LoadClient(addresses[number % len(addresses)], mesh, home=home, context=context)
        for number in range(num_clients)
    ]
    meter = Meter(num_streams, pids)
    poller = zmq.Poller()
    by_socket = {client.socket: client for client in clients}
    for client in clients:
        poller.register(client.socket, zmq.POLLIN)
        client.submit(num_streams // num_clients, num_tokens)
    while meter.num_finished < num_streams:
        ready = poller.poll(_STANDSTILL_MS)
        if not ready:
            raise TimeoutError(f"{num_streams - meter.num_finished} of {num_streams} streams stand still")
        for socket, _ in ready:
            client = by_socket[socket]
            while (message := client.receive(0)) is not None:
                if type(message) is Tokens:
                    stream = (id(client), _first_id(client.bodies[0]))
                    meter.on_tokens(stream, message.num_tokens, len(message.finished))
    for client in clients:
        client.close()
    context.term()
    if meter.num_tokens != num_streams * num_tokens:
        raise RuntimeError(f"{meter.num_tokens} tokens came of {num_streams * num_tokens}")
    return meter.take


def run_http(load: HttpLoad, num_streams: int, pids: Sequence[int]) -> Take:
    """One connection for each stream."""
    meter = Meter(num_streams, pids)
    load.streams(num_streams, lambda stream, events, is_done: meter.on_tokens(stream, events, int(is_done)))
    return meter.take


def _first_id(body: bytes) -> int:
    unpacker = msgpack.Unpacker()
    unpacker.feed(body[1:])
    unpacker.read_array_header()
    return int(unpacker.unpack()[0])
