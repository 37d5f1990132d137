"""A NodeAgent without sockets: a fake clock, fake workers, and verbs for what happens to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mesh import bodies, messages
from mesh.bodies import TokenEntry
from mesh.codec import decode, encode
from mesh.errors import RequestError
from mesh.messages import Message, RequestHead
from mesh.security.keys import MEMBER
from node.agent import NodeAgent
from node.config import NodeConfig
from node.engine.base import EngineInfo, EngineRequest, EngineStats, StepOutput
from node.engine.synthetic_vocab import VOCAB_SIZE, expected_tokens
from node.prepare import Prepared
from node.requests import Route
from node.text.synthetic import SyntheticTextCodec

CLIENT: Route = (b"client",)
EPOCH = 77


@dataclass
class FakeWorker:
    """Remembers what it was told; the test decides what it answers."""

    name: str
    info: EngineInfo | None
    stats: EngineStats | None = None
    note: str = ""
    silence_s: float = 0.0
    num_starts: int = 1
    submitted: list[EngineRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)

    @property
    def step_age_s(self) -> float:
        return self.stats.last_step_age_s + self.silence_s if self.stats else 0.0

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        self.submitted.extend(requests)

    def cancel(self, engine_ids: Sequence[int]) -> None:
        self.cancelled.extend(engine_ids)


def engine_info(slots: int = 4, max_model_len: int = 1000, cache_tokens: int = 4000) -> EngineInfo:
    return EngineInfo("m", "", "synthetic", "none", VOCAB_SIZE, max_model_len, cache_tokens, slots, "asked for", 0.0)


class NodeHarness:
    """Everything crosses the real codec; `sent` holds what each route got."""

    def __init__(self, *, slots: Sequence[int] = (4,), ready: bool = True, **options: Any) -> None:
        self.now = 1000.0
        self.sent: list[tuple[Route, Message, list[bytes]]] = []
        self.unreachable: set[Route] = set()
        self.in_thread: list[tuple[Callable[[], Prepared], Callable[[Prepared | RequestError], None]]] = []
        self.workers = [FakeWorker(f"w{i}", engine_info(n) if ready else None) for i, n in enumerate(slots)]
        config = NodeConfig(
            **{"name": "n1", "node_id": "id-1", "model": "m", "engine": "synthetic", "home": Path("unused"), **options}
        )
        self.agent = NodeAgent(
            config,
            self.workers,
            epoch=EPOCH,
            send=self._send,
            in_thread=lambda work, then: self.in_thread.append((work, then)),
            now=self.now,
        )
        if ready:
            self.agent.work.worker_ready(SyntheticTextCodec(), self.now)

    def _send(self, route: Route, message: Message, parts: Sequence[bytes]) -> bool:
        if route in self.unreachable:
            return False
        self.sent.append((route, decode(encode(message)), list(parts)))
        return True

    # --- what happens -------------------------------------------------------------------------------------------------

    def receives(self, message: Message, *parts: bytes, route: Route = CLIENT, user: str = MEMBER) -> None:
        self.agent.receive(user, route, encode(message), list(parts), self.now)

    def hello(self, route: Route = CLIENT, mesh: str = "default", *, user: str = MEMBER, role: str = "client") -> None:
        self.receives(messages.Hello(role, "test", 1, mesh), route=route, user=user)

    def submits(self, request_id: int = 1, attempt: int = 1, *, route: Route = CLIENT, **body: Any) -> None:
        head = {k: body.pop(k) for k in ("model", "deadline_s", "stream") if k in body}
        body.setdefault("prompt", f"prompt {request_id}")
        self.receives(messages.Submit((RequestHead(request_id, attempt, **head),)), bodies.pack(body), route=route)

    def step(self, *engine_requests: EngineRequest, num_tokens: int = 1, after: int = 0) -> None:
        """One engine step that gives each of these its next tokens, as the synthetic engine would."""
        self.agent.work.take_outputs([self.output(r, num_tokens, after) for r in engine_requests], self.now)

    def output(self, request: EngineRequest, num_tokens: int = 1, after: int = 0) -> StepOutput:
        start = len(request.token_ids) - request.num_prompt + after
        story = expected_tokens(request.token_ids[: request.num_prompt], start + num_tokens, None, ())
        ended = after + num_tokens >= request.max_tokens
        return StepOutput(request.request_id, tuple(story[start:]), (), "length" if ended else None)

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.agent.tick(self.now)

    # --- what was said ------------------------------------------------------------------------------------------------

    def said(self, kind: type[Message], route: Route = CLIENT) -> list[Any]:
        return [message for to, message, _ in self.sent if to == route and type(message) is kind]

    def entries(self, route: Route = CLIENT) -> list[TokenEntry]:
        return [
            entry
            for to, message, parts in self.sent
            if to == route and type(message) is messages.Tokens
            for entry in bodies.unpack_entries(parts[0])
        ]
