"""The door: which requests are taken in, and what is said to the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from broker.clients import Client
from broker.config import BrokerConfig
from broker.registry import Model, Registry
from broker.request import Request
from mesh.messages import RequestHead

_CLIENT_SHARE = 4  # a client may have this many times the free places: alone it can fill four fifths of the queue
_RATE_WINDOW_S, _RATE_EVERY_S = 5.0, 0.5
_MIN_RETRY_S, _MAX_RETRY_S = 0.2, 30.0
_NOT_READY_RETRY_S = 1.0
_MAX_NAMES = 20  # of models, in an error text


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a Rejected will say."""

    code: str
    text: str
    retry_after_s: float = 0.0


class Admission:
    """Counts what waits, by number and bytes, against the limits. The last places are kept for clients that have few: a
    job of ten thousand prompts does not lock the door for everybody else."""

    def __init__(self, config: BrokerConfig, registry: Registry) -> None:
        self._config = config
        self._registry = registry
        self.num_queued = 0
        self.queued_bytes = 0
        self.is_closed = False  # the broker is leaving
        self.num_done = 0  # requests that nodes have ended since the pace was last taken
        self._rate = 0.0  # of these per second, lately
        self._rated_at = 0.0
        self._had_work = False  # something has waited since the pace was last taken

    def admit(self, client: Client, head: RequestHead, body: bytes) -> Model | Refusal:
        """The model of a request that may come in, or why it may not."""
        refusal = self._check_size(head, body)
        if refusal is not None:
            return refusal
        model = self._model_for(head)
        if isinstance(model, Refusal):
            return model
        return self._check_room(client, body) or model

    def _model_for(self, head: RequestHead) -> Model | Refusal:
        """Only a model that some node will take work for now or in a moment."""
        if self.is_closed:
            return Refusal("not_ready", "this broker is leaving: ask another one", _NOT_READY_RETRY_S)
        model = self._registry.models.get(head.model) if head.model else self._registry.only_model
        if model is not None and model.is_servable:
            return model
        name = model.name if model is not None else head.model
        # A model that was there comes back with its node: for a later attempt it was, perhaps before this broker was.
        is_known = head.attempt > 1 or self._registry.has_served(name)
        if model is None and self._registry.num_ready and not is_known:
            return self._no_such_model(head.model)
        return Refusal("not_ready", self._why_not_ready(name), _NOT_READY_RETRY_S)

    def _check_size(self, head: RequestHead, body: bytes) -> Refusal | None:
        if len(body) > self._config.max_body_bytes:
            return Refusal("invalid_request", f"{len(body)} bytes; at most {self._config.max_body_bytes}")
        if head.deadline_s < 0:
            return Refusal("deadline_exceeded", "the deadline had passed when the request came")
        return None

    def _check_room(self, client: Client, body: bytes) -> Refusal | None:
        config, account = self._config, client.account
        if account.num_requests >= config.max_requests_per_client:
            text = f"{account.num_requests} requests of this client are unfinished; at most "
            return Refusal("overloaded", f"{text}{config.max_requests_per_client}", self.retry_after_s())
        if account.queued_bytes + len(body) > config.max_bytes_per_client:
            text = f"{account.queued_bytes} bytes of this client are waiting already; at most "
            return Refusal("overloaded", f"{text}{config.max_bytes_per_client}", self.retry_after_s())
        free = self._config.max_queued - self.num_queued
        if account.num_queued >= _CLIENT_SHARE * free:
            return Refusal("overloaded", f"{self.num_queued} requests are waiting already", self.retry_after_s())
        if self.queued_bytes + len(body) > self._config.max_queued_bytes:
            return Refusal("overloaded", f"{self.queued_bytes} bytes are waiting already", self.retry_after_s())
        return None

    def retry_after_s(self) -> float:
        """When a quarter of what waits will have left, at the present pace."""
        if self._rate <= 0:
            return _MAX_RETRY_S / 10
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, self.num_queued / 4 / self._rate))

    def entered(self, request: Request) -> None:
        self.num_queued += 1
        self._had_work = True
        self.queued_bytes += len(request.body)
        request.client.account.num_queued += 1
        request.client.account.queued_bytes += len(request.body)

    def left(self, request: Request) -> None:
        self.num_queued -= 1
        self.queued_bytes -= len(request.body)
        request.client.account.num_queued -= 1
        request.client.account.queued_bytes -= len(request.body)

    def measure(self, now: float) -> None:
        """Take the pace, once in a while. Times without work say nothing about it."""
        elapsed = now - self._rated_at
        if elapsed < _RATE_EVERY_S:
            return
        if self._had_work:
            weight = 1 - math.exp(-elapsed / _RATE_WINDOW_S)
            self._rate += weight * (self.num_done / elapsed - self._rate)
        self._had_work = self.num_queued > 0
        self._rated_at = now
        self.num_done = 0

    def _no_such_model(self, asked: str) -> Refusal:
        names = self._registry.served_names
        listed = ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
        if asked:
            return Refusal("no_such_model", f"no node serves {asked[:200]!r}; served: {listed}")
        return Refusal("no_such_model", f"several models are served, so name one of them: {listed}")

    def _why_not_ready(self, name: str) -> str:
        nodes = list(self._registry)
        if not nodes:
            return "this broker knows no node yet"
        states = ", ".join(f"{node.label} is {node.state}" for node in nodes[:_MAX_NAMES])
        return f"no node can take {name[:200] or 'a request'} now: {states}"
