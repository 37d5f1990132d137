"""CPU time of another process, and which core it may use: what a busy machine blurs least."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_SCHED = 2  # CPUCLOCK_SCHED: the clock of a process counts all of its threads, those that have ended included


def cpu_s(pid: int) -> float:
    """User and system seconds of all threads so far, I/O threads included. To the nanosecond where Linux lets one read
    another process's clock (clock_getcpuclockid(3)), elsewhere to the tick of the system's own accounting."""
    try:
        return time.clock_gettime((~pid << 3) | _SCHED)
    except (AttributeError, OSError):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)


def main_thread_s(pid: int) -> float:
    """Of these, what the main thread took: where Python runs. 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@contextmanager
def only_on(cores: set[int] | None) -> Iterator[None]:
    """Processes that are started in here run on these cores. None: anywhere."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def split_cores() -> tuple[set[int] | None, set[int] | None]:
    """(for what is measured, for all the others): one core for the one, so that load and answers cannot take it from
    it. None and None where there is nothing to split."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    cores = sorted(os.sched_getaffinity(0))
    return ({cores[0]}, set(cores[1:])) if len(cores) > 1 else (None, None)
