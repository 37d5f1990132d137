"""The client. Everything it does is here or below; mesh.client.blocking only waits for it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Literal, Self, Unpack, cast, overload

from mesh.client.call import Call, Outcome
from mesh.client.core import Core
from mesh.client.gathering import Gathering, OnProgress
from mesh.client.iterators import Results, Stream
from mesh.client.options import ClientOptions, addresses_from
from mesh.client.params import Item, Message, Parameters, asks_of, values_of
from mesh.client.results import Completion
from mesh.client.retry import RetryPolicy
from mesh.errors import Rejected
from mesh.messages import Admin, Done, Query
from mesh.report import ModelReport, StatusReport
from mesh.security.caller_access import caller_access


class AsyncClient:
    """Completions from a mesh, on the running event loop. Connects at the first call; `async with` closes it.

    No caller sees a node or a broker die: unfinished requests go on elsewhere, at the token they had reached.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        mesh: str = "default",
        insecure: bool | None = None,
        name: str | None = None,
        connect_timeout_s: float = 3.0,
        reconnect_timeout_s: float = 30.0,
        max_attempts: int = 8,
        patience_s: float = 60.0,
        overload_patience_s: float | None = None,
    ) -> None:
        """
        address: of a broker or a lone node, `host:port`; several (a list, or commas) are tried in turn. None takes
            PHI3_MESH_BROKER from the environment, or else looks for one on the network.
        token: the line that `phi3-broker token --client NAME` printed. None takes PHI3_MESH_TOKEN, or the file that
            PHI3_MESH_TOKEN_FILE names, or else the key of the mesh that runs on this host.
        mesh: its name, if it has one.
        insecure: plain text, for a mesh on this machine that was started so. None: what PHI3_MESH_INSECURE says.
        name: shown to operators; host name and process id if None.
        connect_timeout_s: after it the first call raises BrokerUnreachable.
        reconnect_timeout_s: how long requests in flight outlive the loss of every broker.
        max_attempts: how many nodes may die under one request.
        patience_s: how long a request without timeout_s waits for a mesh in which nothing is ready.
        overload_patience_s: how long a request that has not begun is tried again while the mesh says that it is
            overloaded; then Overloaded is raised, which says when to come back. None waits until timeout_s; 0 raises at
            once.

        Raises: ConfigError, also when there is no key.
        """
        self._options = ClientOptions(
            addresses=addresses_from(address),
            access=caller_access(mesh, token, insecure),
            name=name or "",
            connect_timeout_s=connect_timeout_s,
            reconnect_timeout_s=reconnect_timeout_s,
            retry=RetryPolicy(
                max_attempts=max_attempts, patience_s=patience_s, overload_patience_s=overload_patience_s
            ),
        )
        self._core: Core | None = None

    async def generate(self, prompt: str, **params: Unpack[Parameters]) -> Completion:
        """The completion of a prompt. Cancelling this call cancels the request."""
        return await Call(self._started(), [asks_of({**params, "prompt": prompt})]).only()

    async def chat(self, messages: Sequence[Message], **params: Unpack[Parameters]) -> Completion:
        """The next turn of a chat: ChatMessage or {"role": …, "content": …} each, put in the model's own form."""
        return await Call(self._started(), [asks_of({**params, "messages": tuple(messages)})]).only()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **params: Unpack[Parameters],
    ) -> Stream:
        """The same, token by token: an async iterator of Chunk, whose `result` is the Completion after the end.

        Leaving it early (`break`, `aclose`, `async with`) cancels the request.
        """
        given = {"prompt": prompt, "messages": None if messages is None else tuple(messages)}
        return Stream(Call(self._started(), [asks_of({**params, **given})], wants_chunks=True))

    @overload
    async def generate_batch(
        self,
        prompts: Iterable[Item],
        *,
        on_progress: OnProgress | None = None,
        return_errors: Literal[False] = False,
        **params: Unpack[Parameters],
    ) -> list[Completion]: ...

    @overload
    async def generate_batch(
        self,
        prompts: Iterable[Item],
        *,
        on_progress: OnProgress | None = None,
        return_errors: bool,
        **params: Unpack[Parameters],
    ) -> list[Outcome]: ...

    async def generate_batch(
        self,
        prompts: Iterable[Item],
        *,
        on_progress: OnProgress | None = None,
        return_errors: bool = False,
        **params: Unpack[Parameters],
    ) -> list[Completion] | list[Outcome]:
        """The completions of many prompts, in their order. Each is text, a list of messages, or a dict of parameters
        that win over `params`.

        on_progress(done, total) is called after each. The first error is raised and cancels the rest, unless
        return_errors: then errors stand in the list.
        """
        items = list(prompts)
        gathering = Gathering(len(items), on_progress, return_errors=return_errors)
        async with aclosing(self.as_completed(items, **params)) as results:
            async for index, outcome in results:
                gathering.add(index, outcome)
        return gathering.outcomes()

    def as_completed(self, prompts: Iterable[Item], **params: Unpack[Parameters]) -> Results:
        """`(index, Completion or error)` for each prompt, as soon as it is there. Nothing is raised for one prompt's
        sake. Leaving it early cancels the rest."""
        return Results(Call(self._started(), [asks_of(values_of(item, params)) for item in prompts]))

    async def models(self) -> list[ModelReport]:
        """What is served."""
        return list((await self.status()).models)

    async def status(self) -> StatusReport:
        """What the broker (or lone node) knows of itself and its nodes."""
        return cast(StatusReport, await self._started().ask(lambda query_id: Query(query_id)))

    async def drain(self, target: str) -> str:
        """Let a node (name or id) finish or hand over its work and take no more. Raises Rejected with the reason."""
        return await self._admin("drain", target)

    async def undrain(self, target: str) -> str:
        """Let it take work again. Raises Rejected with the reason."""
        return await self._admin("undrain", target)

    async def close(self) -> None:
        """End what is unfinished with Cancelled and free the sockets."""
        if self._core is not None:
            await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _admin(self, action: str, target: str) -> str:
        done = cast(Done, await self._started().ask(lambda query_id: Admin(query_id, action, target)))
        if not done.ok:
            raise Rejected(done.text or f"{action} {target}: refused without a reason")
        return done.text

    def _started(self) -> Core:
        """The core, made on the loop of the first call. Raises ConfigError where it cannot be used."""
        if self._core is None:
            self._core = Core(self._options)
            weakref.finalize(self, self._core.dispose)  # also at exit, for those who forget close()
        self._core.check_usable()
        return self._core
