"""One process of the mesh: started, hurt, and started again at the same address under the same name."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# Dies with the run, however that ends: a chaos run must leave no process behind.
_BOUND = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


class Member:
    """The process of now, if there is one. Its log is one file over all its lives."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        self.num_starts = 0
        self._command = [*_BOUND, *command]
        self._env = {**os.environ, **env}
        self._process: Process | None = None

    async def start(self, *, is_heard: bool = False) -> Process:
        """`is_heard`: its output comes through `stdout` and not into the log. A session of its own: Ctrl-C is for the
        run, which decides what it means."""
        self.num_starts += 1
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=DEVNULL,
                stdout=PIPE if is_heard else log,
                stderr=log if is_heard else STDOUT,
                env=self._env,
                start_new_session=True,
                limit=1 << 24,
            )
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def send_signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self, within_s: float) -> bool:
        """Whether it ended by itself; if not it is killed."""
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    def signal_workers(self, number: signal.Signals) -> list[int]:
        """To the engine workers of a node. Returns who got it."""
        pids = children_of(self._process.pid) if self.is_running and self._process is not None else []
        return [pid for pid in pids if _signal(pid, number)]

    @property
    def memory_bytes(self) -> int:
        return memory_of(self._process.pid) if self._process is not None else 0


def children_of(pid: int) -> list[int]:
    """Its child processes, whichever of its threads started them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def memory_of(pid: int) -> int:
    """Resident bytes now; 0 if it does not run."""
    with suppress(OSError):
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _signal(pid: int, number: signal.Signals) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
