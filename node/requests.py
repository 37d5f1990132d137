"""The requests a node holds: who asked, what has been generated, what is not sent yet."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mesh.bodies import End, TokenEntry
from mesh.messages import RequestHead
from mesh.request import WireRequest
from node.engine.base import EngineRequest, StepOutput
from node.prepare import Prepared
from node.text.stream import TextStream

if TYPE_CHECKING:
    from node.pool import Worker

Route = tuple[bytes, ...]
Key = tuple[Route, int]


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """One attempt at one request, from its arrival to its ending."""

    route: Route
    head: RequestHead
    engine_id: int  # what the workers know it by; new for each attempt
    accepted_at: float
    codec: str  # what its client accepts in answers: "" or "zstd"
    request: WireRequest | None = None  # None until it is prepared
    prompt_ids: array[int] = field(default_factory=lambda: array("I"))
    stop_token_ids: tuple[int, ...] = ()
    text: TextStream | None = None
    wants_logprobs: bool = False
    worker: Worker | None = None  # None while it waits for a slot
    submitted_at: float = 0.0  # to its worker; 0 while it waits
    first_token_at: float | None = None
    last_token_at: float = 0.0
    num_generated: int = 0  # over all attempts
    num_cached: int = 0
    # Generated and not sent yet:
    unsent_ids: list[int] = field(default_factory=list)
    unsent_text: list[str] = field(default_factory=list)
    unsent_logprobs: list[float] = field(default_factory=list)
    unsent_pieces: list[bytes] = field(default_factory=list)  # only beside logprobs
    end: End | None = None
    num_bytes: int = 0  # what is held for it; `RequestTable.resize` changes it

    @property
    def key(self) -> Key:
        return (self.route, self.head.request_id)

    @property
    def hop(self) -> bytes:
        """The connection it came over."""
        return self.route[0]

    @property
    def deadline(self) -> float:
        """On this host's monotonic clock; infinite without one."""
        return self.accepted_at + self.head.deadline_s if self.head.deadline_s else float("inf")

    def start(self, prepared: Prepared) -> None:
        """It can run. What earlier attempts generated counts; the client has its text already."""
        self.request = prepared.request
        self.prompt_ids = prepared.prompt_ids
        self.stop_token_ids = prepared.stop_token_ids
        self.text = prepared.text
        self.wants_logprobs = prepared.request.logprobs
        self.num_generated = len(prepared.request.resume)

    @property
    def ended_earlier(self) -> bool:
        """Whether an earlier attempt generated the last token already, and only its ending was lost."""
        assert self.request is not None
        assert self.text is not None
        resume = self.request.resume
        return self.text.is_stopped or (bool(resume) and resume[-1] in self.stop_token_ids)

    def to_engine(self) -> EngineRequest:
        """What a worker is asked to do."""
        request = self.request
        assert request is not None
        return EngineRequest(
            request_id=self.engine_id,
            token_ids=self.prompt_ids + array("I", request.resume),
            max_tokens=request.max_tokens - len(request.resume),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed or 0,
            stop_token_ids=self.stop_token_ids,
            logprobs=request.logprobs,
            num_prompt=len(self.prompt_ids),
        )

    def take_output(self, output: StepOutput) -> bool:
        """Add what a step produced. True when a stop string ended the text, so the engine must be told to stop."""
        assert self.text is not None
        pieces = self.text.pieces(output.token_ids) if self.wants_logprobs else ()
        delta = self.text.push(output.token_ids)
        self.num_generated += delta.num_tokens
        self.num_cached = max(self.num_cached, output.num_cached)
        self.unsent_ids.extend(output.token_ids[: delta.num_tokens])
        if self.wants_logprobs:
            self.unsent_logprobs.extend(output.logprobs[: delta.num_tokens])
            self.unsent_pieces.extend(pieces[: delta.num_tokens])
        if delta.text:
            self.unsent_text.append(delta.text)
        return delta.stopped

    def finish(self, reason: str, *, node: str, model: str) -> None:
        """Write the ending; what text was held back is certain now."""
        assert self.text is not None
        self.unsent_text.append(self.text.finish())
        stop_string = self.text.stop_string
        self.end = End(
            finish_reason="stop" if stop_string else reason,
            prompt_tokens=len(self.prompt_ids),
            completion_tokens=self.num_generated,
            cached_tokens=self.num_cached,
            node=node,
            model=model,
            engine_ttft_s=(self.first_token_at or self.accepted_at) - self.accepted_at,
            stop_string=stop_string,
        )

    def take_entry(self) -> TokenEntry:
        """Everything unsent, as one entry of a Tokens message."""
        ids, self.unsent_ids = self.unsent_ids, []
        text, self.unsent_text = "".join(self.unsent_text), []
        logprobs = pieces = None
        if self.wants_logprobs:
            logprobs, self.unsent_logprobs = self.unsent_logprobs, []
            pieces, self.unsent_pieces = self.unsent_pieces, []
        return TokenEntry(
            request_id=self.head.request_id,
            attempt=self.head.attempt,
            index=self.num_generated - len(ids),
            token_ids=ids,
            text=text,
            logprobs=logprobs,
            end=self.end,
            pieces=pieces,
        )


class RequestTable:
    """All requests of this node, by every name they have. Adding and removing keep the indexes together."""

    def __init__(self) -> None:
        self._by_key: dict[Key, ActiveRequest] = {}
        self._by_engine_id: dict[int, ActiveRequest] = {}
        self._per_hop: Counter[bytes] = Counter()
        self._bytes_per_hop: Counter[bytes] = Counter()
        self.num_bytes = 0
        self._last_engine_id = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[ActiveRequest]:
        return iter(list(self._by_key.values()))

    def new_engine_id(self) -> int:
        self._last_engine_id += 1
        return self._last_engine_id

    def add(self, request: ActiveRequest) -> None:
        assert request.key not in self._by_key
        self._by_key[request.key] = request
        self._by_engine_id[request.engine_id] = request
        self._per_hop[request.hop] += 1
        self._count_bytes(request, request.num_bytes)

    def resize(self, request: ActiveRequest, num_bytes: int) -> None:
        """It takes so much from now on."""
        self._count_bytes(request, num_bytes - request.num_bytes)
        request.num_bytes = num_bytes

    def get(self, route: Route, request_id: int) -> ActiveRequest | None:
        return self._by_key.get((route, request_id))

    def by_engine_id(self, engine_id: int) -> ActiveRequest | None:
        return self._by_engine_id.get(engine_id)

    def remove(self, request: ActiveRequest) -> None:
        if self._by_key.get(request.key) is not request:
            return
        del self._by_key[request.key]
        del self._by_engine_id[request.engine_id]
        self._count_bytes(request, -request.num_bytes)
        self._per_hop[request.hop] -= 1
        if not self._per_hop[request.hop]:
            del self._per_hop[request.hop], self._bytes_per_hop[request.hop]

    def of_hop(self, hop: bytes) -> list[ActiveRequest]:
        """A scan: only for a connection that ends."""
        return [r for r in self._by_key.values() if r.hop == hop] if self._per_hop[hop] else []

    def of_worker(self, worker: Worker) -> list[ActiveRequest]:
        """A scan: only for a worker that died."""
        return [r for r in self._by_key.values() if r.worker is worker]

    def count_of(self, hop: bytes) -> int:
        return self._per_hop[hop]

    def bytes_of(self, hop: bytes) -> int:
        return self._bytes_per_hop[hop]

    def _count_bytes(self, request: ActiveRequest, more: int) -> None:
        self.num_bytes += more
        self._bytes_per_hop[request.hop] += more
