"""Runs a command's coroutine so that both ways to stop a program end it tidily: requests cancelled, files closed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine


def run_until_told(command: Coroutine[object, object, int]) -> int:
    """Raises KeyboardInterrupt after SIGINT and CancelledError after SIGTERM, once the coroutine has cleaned up."""

    async def stoppable() -> int:
        task = asyncio.current_task()
        assert task is not None  # there is one inside a coroutine
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await command

    return asyncio.run(stoppable())
