"""What the core has decided to send, gathered over one turn so that it leaves in few messages."""

from __future__ import annotations

from broker.actions import Action, HangUp, Redial, Route, ToClient, ToNode
from broker.clients import Client
from broker.request import Request
from mesh.codec import encode
from mesh.messages import Accepted, Cancel, Message


class Outbox:
    """Actions in order. One Accepted for each client and turn, of what has found no place in it, goes before everything
    else, so that no ending overtakes it; one Cancel for each node and client goes before any Submit of the turn, so
    that it cannot hit a later one."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._accepted: dict[Client, list[Request]] = {}
        self._cancels: dict[tuple[int, Route], list[int]] = {}

    def to_client(self, route: Route, message: Message, *bodies: bytes) -> None:
        self._actions.append(ToClient([*route, b"", encode(message), *bodies]))

    def relay(self, frames: list[bytes]) -> None:
        """Pass on a node's message as it is: its frames already begin with the client's route."""
        self._actions.append(ToClient(frames))

    def to_node(
        self, peer: int, message: Message, route: Route = (), bodies: tuple[bytes, ...] | list[bytes] = ()
    ) -> None:
        self._actions.append(ToNode(peer, [*route, b"", encode(message), *bodies]))

    def hang_up(self, peer: int, reason: str, redial: Redial) -> None:
        self._actions.append(HangUp(peer, reason, redial))

    def accept(self, client: Client, requests: list[Request]) -> None:
        """Say so at the end of the turn, if they wait then: who is at a node already, its tokens speak for."""
        self._accepted.setdefault(client, []).extend(requests)

    def cancel(self, peer: int, route: Route, request_id: int) -> None:
        self._cancels.setdefault((peer, route), []).append(request_id)

    def flush_cancels(self) -> None:
        """Call before the turn's Submits are added."""
        for (peer, route), request_ids in self._cancels.items():
            self.to_node(peer, Cancel(tuple(request_ids)), route)
        self._cancels.clear()

    def take(self) -> list[Action]:
        """Everything, and start anew."""
        actions, self._actions = self._actions, []
        if self._accepted:
            actions = self._take_accepted() + actions
        return actions

    def _take_accepted(self) -> list[Action]:
        accepted, self._accepted = self._accepted, {}
        told: list[Action] = []
        for client, requests in accepted.items():
            waiting = tuple([r.head.request_id for r in requests if r.served is None and not r.is_over])
            if waiting:
                told.append(ToClient([*client.route, b"", encode(Accepted(waiting))]))
        return told
