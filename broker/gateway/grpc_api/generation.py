"""Generations for one call: admission, its deadline, the books. A call that is cancelled cancels what runs for it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from broker.gateway.door import Ticket
from broker.gateway.gateway import Gateway
from broker.gateway.grpc_api.entrance import Rpc
from mesh import Completion

Values = Mapping[str, Any]  # parameters of the client library, the prompt among them


class Generation:
    """Made after the message has been understood. `values` say all of each answer but the deadline of the call."""

    def __init__(self, gateway: Gateway, rpc: Rpc, values: Sequence[Values]) -> None:
        self._gateway = gateway
        self._rpc = rpc
        limit = {} if rpc.timeout_s is None else {"timeout_s": rpc.timeout_s}
        user = values[0].get("affinity", "") if values else ""  # the same in all of one call
        self._share = gateway.fair_share(rpc.share, user)
        self._items = [gateway.completed(rpc.share, _sooner(item, limit)) for item in values]
        rpc.tally.is_own_deadline = any("timeout_s" in item for item in values) or bool(limit)

    async def complete_all(self) -> list[Completion]:
        """The whole answers. Raises Problem or MeshError; then none of them goes on."""
        async with self._admitted() as ticket:
            completions = await self._gateway.clients.of(self._share).generate_batch(self._items)
            ticket.first_token(time.monotonic())
        if completions:
            self._rpc.tally.on_whole(completions)
        return completions

    async def texts(self) -> AsyncGenerator[str, None]:
        """The one answer as it comes, in as few pieces as the reader is slow. Raises Problem or MeshError."""
        (values,) = self._items
        async with self._admitted() as ticket, self._gateway.clients.of(self._share).stream(**values) as stream:
            while chunks := await stream.take():
                now = time.monotonic()
                ticket.first_token(now)
                self._rpc.tally.on_tokens(now)
                if text := "".join([chunk.text for chunk in chunks]):
                    yield text
            self._rpc.tally.on_finished(stream.result)

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[Ticket]:
        await self._gateway.watch.require_ready()
        ticket = self._gateway.door.enter(self._share, len(self._items), time.monotonic())
        try:
            yield ticket
        finally:
            ticket.leave()


def _sooner(values: Values, limit: Mapping[str, float]) -> Values:
    """The call's deadline, unless the message has an earlier one."""
    if "timeout_s" in values and limit:
        return {**values, "timeout_s": min(values["timeout_s"], limit["timeout_s"])}
    return {**limit, **values}
