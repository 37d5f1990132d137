"""A node with a member's key that answers heartbeats as it should and says everything else as it should not."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import zmq

from mesh import messages as m
from mesh.codec import decode, encode
from mesh.errors import ProtocolError
from mesh.link import Context, Frames, new_socket
from mesh.security.gatekeeper import Gatekeeper
from mesh.security.identified import server_link
from mesh.security.keys import Credentials
from scripts.fuzztool.inputs import NodeInputs

_PER_HEARTBEAT = 400
_EPOCH = 99


class HostileNode:
    """Runs in a thread of its own until `close`. It serves a model that nobody asks for, so that it gets no work."""

    def __init__(self, credentials: Credentials, mesh: str, seed: int) -> None:
        self.sent: Counter[str] = Counter()
        self.address = ""
        self._credentials, self._mesh = credentials, mesh
        self._rng = random.Random(seed)
        self._inputs = NodeInputs(seed)
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="hostile-node", daemon=True)
        self._thread.start()
        self._is_ready.wait(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)

    async def _run(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        context: Context = zmq.Context()
        gate = Gatekeeper(context, self._credentials)
        socket = new_socket(context, zmq.ROUTER)
        gate.guard(socket)
        socket.bind("tcp://127.0.0.1:*")
        self.address = bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).decode()
        self._link = server_link(socket, gate, self._on_frames)
        self._is_ready.set()
        await self._is_over.wait()
        self._link.close()
        gate.close()
        context.term()

    def _on_frames(self, user: str, frames: Frames) -> None:
        try:
            message = decode(frames[frames.index(b"") + 1])
        except (ProtocolError, ValueError, IndexError):
            return
        models = (m.ModelLoad("evil", 4096, self._rng.choice((0, 1, 2**62)), self._rng.choice((0, 2**62))),)
        if isinstance(message, m.Hello):
            welcome = m.Welcome("node", "evil", "evil", _EPOCH, self._mesh, 0.5, 3, 256, 1 << 20, models=models)
            self._say(frames[0], [b"", encode(welcome)])
        elif isinstance(message, m.Ping):
            facts = m.NodeFacts("evil\nforged", tokens_per_s=1e17, memory_total_bytes=2**62, memory_used_bytes=2**62)
            pong = m.Pong(message.sequence, _EPOCH, self._rng.choice(("ready", "joining", "?")), 1, 0.0, models, facts)
            self._say(frames[0], [b"", encode(pong)])
            for _ in range(_PER_HEARTBEAT):
                self._say(frames[0], self._inputs.well_formed())
            self.sent["node: well-formed lies"] += _PER_HEARTBEAT
            if self._rng.random() < 0.05:  # the broker hangs up on this, and comes back after a while
                self._say(frames[0], self._inputs.garbage())
                self.sent["node: garbage"] += 1

    def _say(self, hop: bytes, frames: list[bytes]) -> None:
        try:
            self._link.send([hop, *frames])
        except zmq.ZMQError:
            self.sent["node: not sent"] += 1
