"""The requests of a node, from admission to their endings: what is taken in, what the engine made of it, what is sent.

Knows nothing of connections and their messages; that is the agent's side. No socket, no clock of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from mesh import bodies, messages
from mesh.errors import RequestError
from mesh.messages import Message, ModelLoad, NodeFacts, RequestHead
from node.concurrency import Concurrency
from node.config import NodeConfig
from node.engine.base import StepOutput
from node.facts import Facts
from node.outbox import Outbox
from node.pool import Worker, WorkerPool
from node.prepare import Limits, Prepared, prepare_or_refuse
from node.requests import ActiveRequest, RequestTable, Route
from node.text.tokenizer import TextCodec

Send = Callable[[Route, Message, Sequence[bytes]], bool]
"""Puts a message on the wire; False when that route is gone or too slow."""

InThread = Callable[[Callable[[], Prepared | RequestError], Callable[[Prepared | RequestError], None]], None]
"""Runs the first function in a thread and calls the second with its result, back here."""


class Work:
    """One request at a time has one owner here: the request table. Every ending goes through `_end` or `_finish`.

    `on_unreachable(hop, now)` is called when something could not be sent; the owner then calls `drop_hop`.
    """

    def __init__(
        self,
        config: NodeConfig,
        workers: Sequence[Worker],
        *,
        send: Send,
        in_thread: InThread,
        on_unreachable: Callable[[bytes, float], None],
        now: float,
    ) -> None:
        self.config = config
        self.requests = RequestTable()
        self.concurrency = Concurrency(config.target_itl_s)
        self.pool = WorkerPool(workers, self.concurrency, batch_delay_s=config.batch_delay_s)
        self.outbox = Outbox()
        self.facts = Facts(started_at=now)
        self.counters: Counter[str] = Counter()
        self.codec: TextCodec | None = None
        self.limits: Limits | None = None
        self.is_draining = False
        self._send = send
        self._in_thread = in_thread
        self._on_unreachable = on_unreachable

    @property
    def state(self) -> str:
        if self.is_draining:
            return "draining"
        return "ready" if self.codec is not None and self.pool.ready else "joining"

    # --- admission ----------------------------------------------------------------------------------------------------

    def take_in(self, request: ActiveRequest, body: bytes, now: float, *, inline: bool, is_limited: bool) -> bool:
        """True if the request is this node's now; otherwise it has been answered.

        `inline` prepares it here and not in a thread. `is_limited` holds its connection to the limits of one client.
        """
        route, head = request.route, request.head
        old = self.requests.get(route, head.request_id)
        if old is not None:
            if old.head.attempt >= head.attempt:
                self.counters["stale_submit"] += 1
                return False
            self._end(old, "replaced")
        refusal = self._refusal(head, now) or self._lack_of_room(request, now, is_limited)
        if refusal is not None:
            self._reject(route, head, *refusal, now=now)
            return False
        self.requests.add(request)
        assert self.codec is not None
        assert self.limits is not None
        work = partial(prepare_or_refuse, body, self.codec, self.limits, self.config.max_body_bytes)
        if not inline:
            self._in_thread(work, partial(self._prepared, request))
            return True
        prepared = work()
        if isinstance(prepared, RequestError):
            self._fail_at_door(request, prepared, now)
            return False
        self._start(request, prepared, now)
        return True

    def _refusal(self, head: RequestHead, now: float) -> tuple[str, str, float] | None:
        """Why this request cannot be taken in, before looking at its body: code, text, retry after."""
        if self.is_draining:
            return "not_ready", f"{self.config.name} is draining", self.config.heartbeat_s
        if head.model not in ("", self.config.model_name):
            return "no_such_model", f"model {head.model!r} is not served here; served: {self.config.model_name}", 0.0
        if self.codec is None or not self.pool.ready:
            return "not_ready", f"{self.config.name} is not ready: {self.facts.note(self.pool.workers)}", 1.0
        return None

    def _lack_of_room(self, request: ActiveRequest, now: float, is_limited: bool) -> tuple[str, str, float] | None:
        """In the same form, why it is too much now, though it may come later."""
        config, held, hop = self.config, self.requests, request.hop
        more = request.num_bytes
        if more > config.max_body_bytes:
            return "invalid_request", f"body: {more} bytes, at most {config.max_body_bytes}", 0.0
        waiting = len(held) - self.pool.num_running  # those that are still being prepared are among them
        checks = [
            (waiting, config.max_waiting, f"requests waiting at {config.name}"),
            (held.num_bytes + more - 1, config.max_waiting_bytes, f"bytes held at {config.name}"),
        ]
        if is_limited:
            checks += [
                (held.count_of(hop), config.max_requests_per_client, "unfinished requests of this client"),
                (held.bytes_of(hop) + more - 1, config.max_bytes_per_client, "bytes held for this client"),
            ]
        for number, limit, what in checks:
            if number >= limit:
                return "overloaded", f"there are {number} {what}, at most {limit}", self._expected_wait_s(now)
        return None

    def _expected_wait_s(self, now: float) -> float:
        return self.facts.expected_wait_s(self.pool, now)

    def _prepared(self, request: ActiveRequest, result: Prepared | RequestError) -> None:
        """Back from the thread; the request may have been cancelled meanwhile."""
        if self.requests.by_engine_id(request.engine_id) is not request:
            return
        if isinstance(result, RequestError):
            self._fail_at_door(request, result, request.accepted_at)
        else:
            self._start(request, result, request.accepted_at)
            self.pool.feed(request.accepted_at)

    def _start(self, request: ActiveRequest, prepared: Prepared, now: float) -> None:
        request.start(prepared)
        self.requests.resize(request, prepared.num_bytes)
        if request.num_generated:
            self.counters["resumed_requests"] += 1
            self.counters["resumed_tokens"] += request.num_generated
        if request.ended_earlier:
            self._finish(request, "stop", now)
        else:
            self.pool.add(request)

    def _fail_at_door(self, request: ActiveRequest, error: RequestError, now: float) -> None:
        self._end(request, "rejected")
        self._reject(request.route, request.head, error.code, error.message, 0.0, now=now)

    def _reject(
        self, route: Route, head: RequestHead, code: str, text: str, retry_after_s: float, *, now: float
    ) -> None:
        self.counters[f"rejected_{code}"] += 1
        rejected = messages.Rejected(head.request_id, head.attempt, code, text, retry_after_s, self.config.name)
        self._say_the_last_word(route, rejected, now)

    def _say_the_last_word(self, route: Route, message: Message, now: float) -> None:
        """Whoever cannot hear how a request ended must not wait for it: dropped, it greets and asks again."""
        if not self._send(route, message, ()):
            self._on_unreachable(route[0], now)

    def _end(self, request: ActiveRequest, outcome: str) -> None:
        """The one way out: frees the slot, forgets the request, counts the outcome. Says nothing to the client."""
        self.outbox.take_request(request)
        self.requests.remove(request)
        if self.pool.remove(request) and request.worker is not None:
            request.worker.cancel([request.engine_id])
        self.counters[outcome] += 1

    def cancel(self, route: Route, request_ids: Iterable[int], now: float) -> None:
        """Those of this route; another's are not touched."""
        for request_id in request_ids:
            if (request := self.requests.get(route, request_id)) is not None:
                self._end(request, "cancelled")
        self.pool.feed(now)

    def drop_hop(self, hop: bytes, now: float) -> int:
        """A connection ended: cancel all it has. Returns how many that were."""
        cancelled = self.requests.of_hop(hop)
        for request in cancelled:
            self._end(request, "cancelled")
        self.outbox.forget(hop)
        self.pool.feed(now)
        return len(cancelled)

    # --- the engine ---------------------------------------------------------------------------------------------------

    def worker_ready(self, codec: TextCodec, now: float) -> None:
        """A worker has loaded its model: its tokenizer and its limits count from now on."""
        self.codec = codec
        self.limits = Limits.of([worker.info for worker in self.pool.workers if worker.info is not None])
        self.pool.feed(now)

    def worker_lost(self, worker: Worker, reason: str, now: float) -> None:
        """Its requests go back to their clients, with all they have so far."""
        self.counters["workers_lost"] += 1
        self.hand_over(self.requests.of_worker(worker), reason, now)

    def take_outputs(self, outputs: Iterable[StepOutput], now: float) -> None:
        """What one step of one engine produced."""
        gaps: Counter[float] = Counter()  # since the last token -> how many requests waited so long
        worker: Worker | None = None
        for output in outputs:
            request = self.requests.by_engine_id(output.request_id)
            if request is None:  # cancelled: its last step was under way
                continue
            worker = request.worker
            if request.first_token_at is not None and output.token_ids:
                gaps[now - request.last_token_at] += 1
            self._take_output(request, output, now)
        self.facts.inter_token(gaps, now)
        self.pool.feed(now)
        if worker is not None and self.concurrency.after_step(worker, gaps, self.pool, now):
            self.pool.feed(now)
        self.flush(now)

    def _first_token(self, request: ActiveRequest, num_cached: int, now: float) -> None:
        """Its prefill is done."""
        request.first_token_at = now
        self.facts.first_token(now - request.accepted_at, max(0.0, request.submitted_at - request.accepted_at))
        num_prompt, num_resumed = len(request.prompt_ids), request.num_generated
        self.counters["prompt_tokens"] += num_prompt
        self.counters["cached_tokens"] += num_cached
        if num_resumed:
            self.counters["recomputed_tokens"] += num_prompt + num_resumed - num_cached

    def _take_output(self, request: ActiveRequest, output: StepOutput, now: float) -> None:
        is_first = request.first_token_at is None and len(output.token_ids) > 0
        if is_first:
            self._first_token(request, output.num_cached, now)
        request.last_token_at = now
        num_before = request.num_generated
        stopped = request.take_output(output)
        self.counters["generated_tokens"] += request.num_generated - num_before
        reason = "stop" if stopped else output.finish_reason
        if reason in ("error", "cancelled"):
            # Nobody here cancelled it, or it would be gone from the table: the engine gave it up by itself.
            if request.unsent_ids:
                self._send_tokens(request.route, [request], now)
            self._end(request, "failed")
            text = output.error or "the engine gave the request up"
            failed = messages.Failed(
                request.head.request_id, request.head.attempt, "engine_failed", text, self.config.name
            )
            self._say_the_last_word(request.route, failed, now)
            return
        if reason is not None:
            if stopped and output.finish_reason is None and request.worker is not None:
                request.worker.cancel([request.engine_id])  # the engine does not know our stop strings
            self._finish(request, reason, now)
        else:
            self.outbox.add(request, now, urgent=is_first)

    def _finish(self, request: ActiveRequest, reason: str, now: float) -> None:
        """The good ending: said with the last tokens."""
        request.finish(reason, node=self.config.name, model=self.config.model_name)
        self.requests.remove(request)
        self.pool.remove(request)
        self.counters["finished"] += 1
        self.facts.finished(now)
        self.outbox.add(request, now, urgent=True)

    # --- sending ------------------------------------------------------------------------------------------------------

    def flush(self, now: float) -> None:
        """Send what is due."""
        for route, requests in self.outbox.take_due(now):
            self._send_tokens(route, requests, now)

    def _send_tokens(self, route: Route, requests: Sequence[ActiveRequest], now: float) -> None:
        entries = [request.take_entry() for request in requests]
        finished = tuple((e.request_id, e.attempt) for e in entries if e.end is not None)
        num_tokens = sum(len(e.token_ids) for e in entries)
        self.facts.tokens(num_tokens, now)
        body = bodies.pack_entries(entries, codec=requests[0].codec)
        if not self._send(route, messages.Tokens(finished, num_tokens), (body,)):
            self._on_unreachable(route[0], now)

    def hand_over(self, requests: Sequence[ActiveRequest], reason: str, now: float) -> None:
        by_route: dict[Route, list[ActiveRequest]] = {}
        for request in requests:
            by_route.setdefault(request.route, []).append(request)
        for route, group in by_route.items():
            if unsent := [request for request in group if request.unsent_ids]:
                self._send_tokens(route, unsent, now)
            for request in group:
                if self.requests.get(*request.key) is request:  # not if sending found the route gone
                    self._end(request, "handed_over")
            ids = tuple((request.head.request_id, request.head.attempt) for request in group)
            self._say_the_last_word(route, messages.Lost(ids, self.config.name, reason), now)

    def measured(self, now: float) -> NodeFacts:
        """What a Pong and a report say of this node beside its load."""
        workers = self.pool.workers
        note = self.concurrency.note(workers)
        return self.facts.snapshot(workers, self.config, now, counters=self.counters, concurrency_note=note)

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_due(self) -> float:
        """When `tick` has something to do beside the heartbeat's rhythm."""
        return min(self.outbox.next_due(), self.pool.next_due())

    def tick(self, now: float) -> None:
        """Let time pass: deadlines, and output that has waited long enough."""
        for request in self.requests:
            if request.deadline <= now:
                self._expire(request, now)
        self.pool.feed(now)
        self.flush(now)

    def _expire(self, request: ActiveRequest, now: float) -> None:
        had_tokens = bool(request.num_generated)
        self._end(request, "deadline_exceeded")
        text = f"deadline of {request.head.deadline_s:.3g} s passed after {request.num_generated} tokens"
        head = request.head
        if had_tokens:
            failed = messages.Failed(head.request_id, head.attempt, "deadline_exceeded", text, self.config.name)
            self._say_the_last_word(request.route, failed, now)
        else:
            self._reject(request.route, head, "deadline_exceeded", text, 0.0, now=now)

    def models(self, hop: bytes) -> tuple[ModelLoad, ...]:
        """What is served and held; `num_yours` is this connection's share."""
        if self.limits is None:
            return ()
        return (
            ModelLoad(
                name=self.config.model_name,
                max_model_len=self.limits.max_model_len,
                slots_total=self.pool.slots_total,
                num_running=len(self.requests),
                num_waiting=self.pool.num_waiting,
                num_yours=self.requests.count_of(hop),
            ),
        )
