"""Gathers what one turn of the loop submits and cancels, to send it in as few messages as the limits allow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from mesh import bodies, codec
from mesh.bodies import CODECS
from mesh.client.tracker import State, Tracker
from mesh.discovery.addresses import is_loopback
from mesh.errors import BadMessage, PromptTooLong
from mesh.messages import Cancel, Message, Rejected, RequestHead, Submit, Welcome

_SAFE_KEY_CHARS = codec.MAX_HEADER_BYTES // 8  # at most 4 bytes a character; the other half is for the numbers

_MAX_BATCH_BYTES = 1 << 20  # of bodies in one message: until it is there as a whole, the server hears nothing of us

_Submission = tuple[RequestHead, bytes]


class Send(Protocol):
    def __call__(self, message: Message, *body: bytes) -> None: ...


class Outbox:
    """Sends one batch in each turn, so that heartbeats and answers get theirs while very many prompts leave."""

    def __init__(self, send: Send, reject: Callable[[Rejected], None], welcome: Welcome, address: str) -> None:
        self._send = send
        self._reject = reject
        self._max_batch = min(welcome.max_batch, codec.MAX_ITEMS)
        self._max_body_bytes = min(welcome.max_body_bytes, bodies.MAX_BODY_BYTES)
        is_far = not is_loopback(address)
        self._codec = "zstd" if is_far and "zstd" in welcome.codecs else ""
        self._accepted_codecs = CODECS if is_far else ()
        self._loop = asyncio.get_running_loop()
        self._trackers: deque[Tracker] = deque()
        self._cancelled: list[int] = []
        self._soon: asyncio.Handle | None = None

    def submit(self, tracker: Tracker) -> None:
        self._trackers.append(tracker)
        self._wake()

    def cancel(self, request_id: int) -> None:
        self._cancelled.append(request_id)
        self._wake()

    def flush_cancels(self) -> None:
        """Now, not soon."""
        while self._cancelled:
            ids, self._cancelled = self._cancelled[: self._max_batch], self._cancelled[self._max_batch :]
            self._send(Cancel(tuple(ids)))

    def close(self) -> None:
        """What has not left stays where it is: with its tracker, WAITING."""
        self._trackers.clear()
        self._cancelled.clear()
        if self._soon is not None:
            self._soon.cancel()

    def _wake(self) -> None:
        if self._soon is None:
            self._soon = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._soon = None
        self.flush_cancels()
        batch: list[_Submission] = []
        num_bytes = 0
        now = self._loop.time()
        while self._trackers and len(batch) < self._max_batch and num_bytes < _MAX_BATCH_BYTES:
            tracker = self._trackers.popleft()
            if tracker.state is State.WAITING:  # not cancelled meanwhile
                num_bytes += self._add(batch, tracker, now)
        if self._trackers:
            self._wake()
        if batch:
            self._send_batch(batch)

    def _add(self, batch: list[_Submission], tracker: Tracker, now: float) -> int:
        """Returns the bytes of its body."""
        head, body = tracker.submit(now)
        try:
            packed = bodies.pack(body, codec=self._codec, max_bytes=self._max_body_bytes)
        except BadMessage as error:
            self._reject(Rejected(head.request_id, head.attempt, PromptTooLong.code, f"prompt: {error.reason}"))
            return 0
        batch.append((head, packed))
        return len(packed)

    def _send_batch(self, batch: list[_Submission]) -> None:
        header = Submit(tuple(head for head, _ in batch), self._accepted_codecs)
        # Long affinity keys in a large batch could make a header that no peer accepts.
        if len(batch) > 1 and sum(len(head.model) + len(head.affinity) for head, _ in batch) > _SAFE_KEY_CHARS:
            middle = len(batch) // 2
            self._send_batch(batch[:middle])
            self._send_batch(batch[middle:])
            return
        self._send(header, *(body for _, body in batch))
