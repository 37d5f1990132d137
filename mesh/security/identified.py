"""The frames of a server together with who sent them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import zmq

from mesh.link import Frames, Link, Socket
from mesh.security.gatekeeper import Gatekeeper
from mesh.security.keys import MEMBER, UserId

OnFramesFrom = Callable[[UserId, Frames], None]


class IdentifiedLink(Link):
    """A Link of a guarded ROUTER. libzmq keeps what the Gatekeeper said with each message, on its first frame; a caller
    cannot write it, not even with metadata of the same name, because the Gatekeeper's word comes first."""

    def __init__(
        self, socket: Socket, on_frames_from: OnFramesFrom, on_drained: Callable[[], None] | None = None
    ) -> None:
        super().__init__(socket, partial(on_frames_from, ""), on_drained, looks_late=True)
        self._on_frames_from = on_frames_from

    def _deliver(self, first: zmq.Frame, frames: Frames) -> None:
        self._on_frames_from(str(first.get("User-Id")), frames)


def server_link(
    socket: Socket,
    gatekeeper: Gatekeeper | None,
    on_frames_from: OnFramesFrom,
    on_drained: Callable[[], None] | None = None,
) -> Link:
    """The Link of a server. Without a gatekeeper, which is --insecure, everyone on this machine is a member."""
    if gatekeeper is None:
        return Link(socket, partial(on_frames_from, MEMBER), on_drained, looks_late=True)
    return IdentifiedLink(socket, on_frames_from, on_drained)
