"""An event loop in a daemon thread, for callers without one (or with one of their own, such as a notebook)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mesh.errors import ConfigError

T = TypeVar("T")

_STOP_TIMEOUT_S = 2.0
_LAST_TURN_S = 0.2


class LoopThread:
    """Started by the first `run`. A daemon: it never keeps the interpreter from leaving."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._new_loop = _loop_factory()

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine. KeyboardInterrupt while waiting cancels it.

        Raises: ConfigError after `stop`; in a forked child, which has no such thread; and on the thread itself, which
        would wait for itself.
        """
        if os.getpid() != self._pid:
            raise ConfigError("this client was made before fork(): threads do not survive it, make one in the child")
        if threading.current_thread() is self._thread:
            raise ConfigError("the blocking client was called on its own event loop: use AsyncClient there")
        loop = self._started()
        future = asyncio.run_coroutine_threadsafe(call(), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # of no effect unless it was the waiting that was interrupted
            raise

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run `last`, end the loop and wait for the thread, two seconds at most. Does nothing in a forked child."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._is_stopped = True
        if loop is None or thread is None or os.getpid() != self._pid or not thread.is_alive():
            return

        async def finish() -> None:
            try:
                if last is not None:
                    await last()
            finally:
                loop.stop()

        asyncio.run_coroutine_threadsafe(finish(), loop)
        if threading.current_thread() is not thread:  # garbage collection may run anywhere
            thread.join(_STOP_TIMEOUT_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_stopped:
                raise ConfigError("this client is closed")
            if self._loop is None:
                self._loop = self._new_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The loop is our own here, so it may be the fast one: a sixth less CPU for a single call. It is imported when a
    client is made: sooner, every `import mesh` would wait for it; later, the interpreter may be on its way out."""
    if sys.platform == "win32":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_end_tasks(asyncio.all_tasks(loop)))
    finally:
        loop.close()


async def _end_tasks(tasks: set[asyncio.Task[Any]]) -> None:
    """First let them see what the closing did to them: their callers should get its error, not a CancelledError."""
    if tasks:
        await asyncio.wait(tasks, timeout=_LAST_TURN_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
