"""The central queue of one model: fair between clients; within one by priority, what was interrupted, first come."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from broker.clients import Client
from broker.request import Request

_SLACK = 64  # dead entries that are not worth a rebuild


class _Flow:
    """What one client has waiting here. `tag` is the virtual time at which its next request may go."""

    __slots__ = ("heap", "num_dead", "tag", "turn")

    def __init__(self, tag: float) -> None:
        self.tag = tag
        self.turn = 0  # number of its valid entry in the order of turns; 0 = it has none
        self.heap: list[tuple[int, bool, int, Request]] = []
        self.num_dead = 0


class FairQueue:
    """Start-time fair queueing: the client that has been served the fewest tokens while it had work waiting goes next.

    A client with one request waits behind at most one request of each other client, however many those have. To
    add or take one costs O(log n). A removed request stays in its heap, empty, until it is reached or they are the
    majority.
    """

    def __init__(self) -> None:
        self._flows: dict[Client, _Flow] = {}
        self._turns: list[tuple[float, int, Client]] = []
        self._count = 0
        self._clock = 0.0  # virtual time: the tag of the request that went last
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, request: Request) -> None:
        flow = self._flows.get(request.client)
        if flow is None:
            flow = self._flows[request.client] = _Flow(self._clock)
        # Someone is looking at the text of a later attempt, which stands still.
        is_first_attempt = request.head.attempt == 1
        heapq.heappush(flow.heap, (-request.head.priority, is_first_attempt, request.sequence, request))
        self._length += 1
        if not flow.turn:
            flow.tag = max(flow.tag, self._clock)  # no credit for the time it had nothing to ask for
            self._take_turn(request.client, flow)

    def put_back(self, request: Request) -> None:
        """Undo a `pop`: the request is the first of its client again, and the client gets its turn back."""
        self.push(request)
        flow = self._flows[request.client]
        flow.tag -= request.cost
        self._take_turn(request.client, flow)

    def pop(self) -> Request:
        """The next request. There must be one."""
        while True:
            tag, turn, client = heapq.heappop(self._turns)
            flow = self._flows.get(client)
            if flow is None or flow.turn != turn:
                continue  # forgotten, or it has an earlier turn by now
            flow.turn = 0
            request = self._first_alive(flow)
            if request is None:
                continue
            self._clock = tag
            flow.tag = tag + request.cost
            if len(flow.heap) > flow.num_dead:
                self._take_turn(client, flow)
            self._one_less()
            return request

    def take_all(self) -> list[Request]:
        """Everything that waits, for when there is room for all of it, so that nobody's turn matters."""
        entries = sorted(self._alive())
        self._reset()
        return [entry[-1] for entry in entries]

    def remove(self, request: Request) -> None:
        """Take out a request that is waiting here. Its `is_over` must be set already."""
        flow = self._flows[request.client]
        flow.num_dead += 1
        if flow.num_dead > _SLACK and flow.num_dead * 2 > len(flow.heap):
            flow.heap = [entry for entry in flow.heap if not entry[-1].is_over]
            heapq.heapify(flow.heap)
            flow.num_dead = 0
        self._one_less()

    def forget(self, client: Client) -> None:
        """The client is gone and has nothing waiting."""
        if self._flows.pop(client, None) is not None and len(self._turns) > 2 * len(self._flows) + _SLACK:
            self._turns = [entry for entry in self._turns if self._is_valid(entry)]
            heapq.heapify(self._turns)

    def waiting(self) -> list[Request]:
        """Everything that waits, in no order."""
        return [entry[-1] for entry in self._alive()]

    def _alive(self) -> Iterator[tuple[int, bool, int, Request]]:
        return (entry for flow in self._flows.values() for entry in flow.heap if not entry[-1].is_over)

    def _take_turn(self, client: Client, flow: _Flow) -> None:
        self._count += 1
        flow.turn = self._count
        heapq.heappush(self._turns, (flow.tag, flow.turn, client))

    def _is_valid(self, entry: tuple[float, int, Client]) -> bool:
        flow = self._flows.get(entry[2])
        return flow is not None and flow.turn == entry[1]

    @staticmethod
    def _first_alive(flow: _Flow) -> Request | None:
        while flow.heap:
            request = heapq.heappop(flow.heap)[-1]
            if not request.is_over:
                return request
            flow.num_dead -= 1
        return None

    def _one_less(self) -> None:
        self._length -= 1
        if not self._length:
            self._reset()

    def _reset(self) -> None:
        """Nobody waits, so nobody is owed anything: start from nothing."""
        self._flows.clear()
        self._turns.clear()
        self._clock = 0.0
        self._length = 0
