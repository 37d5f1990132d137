"""What the routes share: who may call, the clients, admission, the last status report, the metrics."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request

from broker.gateway.clients import OWN, Clients, share_of_user
from broker.gateway.config import GatewayConfig
from broker.gateway.door import Door
from broker.gateway.keys import KeyRing
from broker.gateway.mesh_metrics import MeshCollector
from broker.gateway.metrics import Metrics
from broker.gateway.page.feed import Feed
from broker.gateway.problems import Problem
from broker.gateway.watch import Watch
from mesh import AsyncClient

_RELOAD_EVERY_S = 0.5
_MAX_AFFINITY = 200  # the header of a message is kept small; longer keys are hashed
_CONTEXT_SHARE = 4  # of the context goes to an answer whose caller sets no limit, so that the prompt still fits


class Gateway:
    """Lives on one event loop, from `running` on."""

    def __init__(self, config: GatewayConfig) -> None:
        """Raises ConfigError when the keys cannot be read."""
        self.config = config
        self.keys = KeyRing(config.api_key_file) if config.api_key_file is not None else None
        self.clients = Clients(self._client)
        self.door = Door(config.max_waiting)
        self.watch = Watch(lambda: self.clients.of(OWN).status())
        self.feed = Feed(self.watch, mesh=config.mesh)
        self.metrics = Metrics()
        self.metrics.registry.register(MeshCollector(self.watch))
        self.metrics.in_flight.set_function(lambda: self.door.num_inside)
        self.metrics.waiting.set_function(lambda: self.door.num_waiting)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watches the mesh and the key file meanwhile; then ends what is left."""
        running = (self.watch.run(), self.feed.run(), self._reload_keys())
        tasks = [asyncio.create_task(each) for each in running]
        self.metrics.lag.start()
        try:
            yield
        finally:
            self.metrics.lag.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.clients.close()

    def share_of(self, request: Request) -> str:
        """Whose request it is, by its key. Raises Problem 401."""
        if self.keys is None:
            return OWN
        headers = request.headers
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not key:
            raise Problem(401, "no API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`", code="no_api_key")
        name = self.keys.name_of(key)
        if name is None:
            raise Problem(401, "this API key is not known here", code="invalid_api_key")
        return name

    def fair_share(self, share: str, user: str) -> str:
        """Whose turn a request takes: its key's, or its user's where there are no keys."""
        return share if self.keys is not None else share_of_user(user)

    def completed(self, share: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with what the caller left to us. An affinity key holds within one share only."""
        values = {**values, "affinity": _affinity(share, values.get("affinity", ""))}
        if "max_tokens" not in values:
            model = self.watch.model(values.get("model", ""))
            room = model.max_model_len // _CONTEXT_SHARE if model is not None else 0
            values["max_tokens"] = min(self.config.default_max_tokens, room or self.config.default_max_tokens)
        if self.config.timeout_s and "timeout_s" not in values:
            values["timeout_s"] = self.config.timeout_s
        return values

    def model_name(self, asked: str) -> str:
        """What a stream calls its model, before the node that runs it has said."""
        model = self.watch.model(asked)
        return model.name if model is not None else asked

    def _client(self, share: str) -> AsyncClient:
        name = f"{self.config.name}:{share}" if share else self.config.name
        address = self.config.broker or None
        return AsyncClient(
            address,
            mesh=self.config.mesh,
            name=name,
            patience_s=self.config.patience_s,
            overload_patience_s=self.config.overload_patience_s,
        )

    async def _reload_keys(self) -> None:
        while self.keys is not None:
            await asyncio.sleep(_RELOAD_EVERY_S)
            if self.keys.reload():
                self.clients.retain(self.keys.names)


def _affinity(share: str, key: str) -> str:
    if not key:
        return ""
    key = f"{share}/{key}"
    return key if len(key) <= _MAX_AFFINITY else hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
