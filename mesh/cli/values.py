"""What the command line says, in the client library's words."""

from __future__ import annotations

import argparse
from typing import Any

from mesh import AsyncClient

_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "model")


def sampling_values(args: argparse.Namespace) -> dict[str, Any]:
    """Only what was given: every default is the library's."""
    values = {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
    return values if args.timeout is None else values | {"timeout_s": args.timeout}


def new_client(args: argparse.Namespace) -> AsyncClient:
    """Not connected yet. Raises ConfigError."""
    return AsyncClient(args.broker, mesh=args.mesh)


def opening(system: str | None) -> list[dict[str, str]]:
    """The messages before the first of the user."""
    return [] if system is None else [{"role": "system", "content": system}]
