"""The processes of a tensor-parallel engine: rank 0 lives in the worker, and starts and holds the others.

They meet through a file in a private folder and talk over loopback (gloo) or NVLink and the like (NCCL). No rank
outlives rank 0, and rank 0 gives up when another is gone: the worker as a whole dies, and its supervisor starts it
again. Importing this file loads no torch: a rank is told what to do before it is slow.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from node.engine import ipc
from node.engine.base import EngineOptions

STOP_TIMEOUT_S = 1.0
LAST_WORDS_S = 2.0  # how long a rank that lost touch with another waits to hear why

log = logging.getLogger(__name__)


def join(options: EngineOptions, rank: int, meeting_place: Path) -> None:
    """Makes this process one rank of its group; returns when all are there. Before CUDA is touched.

    `options.device` names one device for each rank, or "cpu".
    """
    import torch
    import torch.distributed

    num_ranks = options.tensor_parallel
    is_cpu = options.device == "cpu"
    if is_cpu:  # the library takes the accelerator of the process, whatever it is asked for
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.set_num_threads(max(1, torch.get_num_threads() // num_ranks))
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    # One host, so nothing may go out of it, and nobody from outside may come in.
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    os.environ.setdefault("NCCL_GRAPH_MIXING_SUPPORT", "0")  # what the batching manager asks for, before it exists
    torch.distributed.init_process_group(
        "gloo" if is_cpu else "nccl",
        init_method=f"file://{meeting_place}",
        rank=rank,
        world_size=num_ranks,
        device_id=None if is_cpu else torch.device("cuda", rank),
    )


def leave() -> None:
    """Undoes `join`, as far as torch is concerned."""
    import torch.distributed

    torch.distributed.destroy_process_group()


class Ranks:
    """Ranks 1 to N-1, as rank 0 holds them. `on_lost(reason)` is called once, from a thread, when one ends.

    `scratch` is a folder that somebody else removes should this process be killed; None: the system's.
    """

    def __init__(self, options: EngineOptions, scratch: Path | None, on_lost: Callable[[str], None]) -> None:
        self._options = options
        self._on_lost = on_lost
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-", dir=scratch)
        self.meeting_place = Path(self._folder.name) / "meeting-place"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._is_lost = threading.Event()
        self.loss = ""

    def start(self) -> None:
        """Starts them; they then wait in `join` for rank 0."""
        for rank in range(1, self._options.tensor_parallel):
            thread = threading.Thread(target=self._hold, args=(rank,), name=f"rank-{rank}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait_for_loss(self) -> str:
        """Why a rank was lost, or "" if none is within LAST_WORDS_S. What rank 0 itself sees of it is a broken line."""
        self._is_lost.wait(LAST_WORDS_S)
        return self.loss

    def stop(self) -> None:
        """Ends them: each leaves when its input is closed, or is killed."""
        with self._lock:
            self._is_over = True
            processes = list(self._processes)
        for process in processes:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for thread in self._threads:
            thread.join()
        self._folder.cleanup()

    def _hold(self, rank: int) -> None:
        """A thread of its own, which lives as long as the rank does: the rank dies with the thread that started it."""
        with self._lock:
            if self._is_over:
                return
            process = subprocess.Popen(
                [sys.executable, "-m", "node.engine.tensor_parallel_rank", str(rank), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # it died at once: that is told below
            write_start(process.stdin.fileno(), self._options, self.meeting_place)
        with process.stdout:
            last_words = process.stdout.read().decode(errors="replace").strip()
        code = process.wait()
        with self._lock:
            if self._is_over or self._is_lost.is_set():
                return
            how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
            self.loss = f"rank {rank} of {self._options.tensor_parallel}: {last_words or how}"
            self._is_lost.set()
        log.warning("rank_lost rank=%d pid=%d code=%d", rank, process.pid, code)
        self._on_lost(self.loss)


def write_start(fd: int, options: EngineOptions, meeting_place: Path) -> None:
    """What a rank is told, on its standard input: 4 bytes of length, then the message that the agent sends workers."""
    frame = ipc.encode(ipc.Start(options, str(meeting_place)))
    os.write(fd, len(frame).to_bytes(4, "big") + frame)


def read_start(fd: int) -> tuple[EngineOptions, Path]:
    """The other end of `write_start`. Raises EOFError when rank 0 is gone."""
    size = int.from_bytes(_read_exactly(fd, 4), "big")
    message = ipc.decode(_read_exactly(fd, size))
    if not isinstance(message, ipc.Start):
        raise ipc.BadFrame(f"expected Start, not {type(message).__name__}")
    return message.options, Path(message.home)


def _read_exactly(fd: int, size: int) -> bytes:
    read = b""
    while len(read) < size:
        part = os.read(fd, size - len(read))
        if not part:
            raise EOFError("rank 0 is gone")
        read += part
    return read
