"""One further rank of a tensor-parallel engine: `python -m node.engine.tensor_parallel_rank RANK PARENT_PID`.

It loads its share of the weights and runs the same batching manager as rank 0, which alone is heard. It is told what to
do on its standard input and says on its standard output why it dies.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from node.engine.model_files import ModelFiles
from node.engine.process import prepare_process
from node.engine.tensor_parallel_group import join, read_start

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> NoReturn:
    """Ends with the process: status 0 when rank 0 closes the pipe, 1 when this rank can go on no longer."""
    rank, parent_pid = int(argv[0]), int(argv[1])
    last_words = os.dup(1)
    os.dup2(2, 1)  # what a library prints is not mistaken for a reason

    def die(error: Exception) -> NoReturn:
        log.error("rank_failed rank=%d error=%r", rank, error)
        os.write(last_words, f"{type(error).__name__}: {error}".encode())
        os._exit(1)  # not sys.exit: a thread that hangs in a collective operation would keep the interpreter

    prepare_process()
    if os.getppid() != parent_pid:  # it was gone before it could take us along
        os._exit(0)
    try:
        _serve(rank, die)
    except EOFError:
        os._exit(0)
    except Exception as error:  # whatever went wrong, rank 0 must hear it
        die(error)
    os._exit(0)


def _serve(rank: int, die: Callable[[Exception], NoReturn]) -> None:
    options, meeting_place = read_start(0)
    from node.engine.loading import Loader, silence_transformers

    silence_transformers()
    join(options, rank, meeting_place)
    loader = Loader(options, ModelFiles(Path(options.model), ""), lambda line: None, rank=rank)
    loader.bring_up(deliver=lambda outputs: None, on_death=die)
    sys.stdin.buffer.read()  # until rank 0 closes it, or is gone


if __name__ == "__main__":
    main(sys.argv[1:])
