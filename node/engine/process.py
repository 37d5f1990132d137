"""What every process of an engine does first: the worker, and the further ranks of a tensor-parallel one."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys


def prepare_process() -> None:
    """Tie this process to its parent, leave the terminal's signals to the agent, and log to stderr."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # these reach the whole group; the agent decides what they mean
        signal.signal(number, signal.SIG_IGN)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # torch's threads wait for each other by spinning, which on a CPU with one busy neighbour made a step 10 times as
    # long; sleeping costs nothing measurable when there is none. Read when torch is loaded, so it is set before.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s pid=%(process)d %(message)s"
    )


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent dies, even if the interpreter is stuck in native code.

    The trap: "parent" means the *thread* that started us, so the parent must start us from a thread that lives as long
    as it does. On other systems each process has to notice by itself that its parent is gone.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
