"""Entry of `phi3-mesh`: picks the command, and turns what goes wrong into one message and an exit code."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from enum import IntEnum

from mesh.cli import terminal
from mesh.cli.parser import make_parser
from mesh.errors import ConfigError, InvalidRequest, MeshError, RequestError, TransportError

# Loaded when it is their turn: the client library costs a quarter of a second, `--help` should not.
_MODULES = {
    "generate": "mesh.cli.generate",
    "chat": "mesh.cli.chat.command",
    "batch": "mesh.cli.batch.command",
    "doctor": "mesh.cli.doctor.command",
}


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130
    TERMINATED = 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Never raises, but for SystemExit by argparse."""
    terminal.never_fail_on_characters()
    args = make_parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if args.debug else logging.ERROR, format="%(levelname)s %(name)s %(message)s"
    )
    try:
        return int(importlib.import_module(_MODULES[args.command]).run(args))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except asyncio.CancelledError:  # by SIGTERM, see running.py
        return Exit.TERMINATED
    except BrokenPipeError:
        # The reader has left, as `head` does. Python would complain when it flushes at exit: let it flush nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except OSError as error:  # such as a full disk
        terminal.write_error(str(error))
        return Exit.FAILED
    except MeshError as error:
        terminal.write_error(error.message if isinstance(error, RequestError) and not args.debug else str(error))
        return _exit_code(error)


def _exit_code(error: MeshError) -> Exit:
    if isinstance(error, ConfigError | InvalidRequest):
        return Exit.USAGE
    return Exit.UNREACHABLE if isinstance(error, TransportError) else Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
