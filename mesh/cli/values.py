"""What the command line says, in the client library's words."""

from __future__ import annotations

import argparse
from typing import Any

from mesh import AsyncClient
from mesh.security.loading import token_argument

_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "model")


def sampling_values(args: argparse.Namespace) -> dict[str, Any]:
    """Only what was given: every default is the library's."""
    values = {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
    return values if args.timeout is None else values | {"timeout_s": args.timeout}


def new_client(args: argparse.Namespace) -> AsyncClient:
    """Not connected yet. Raises ConfigError."""
    return AsyncClient(args.broker, token=token_of(args), mesh=args.mesh, insecure=args.insecure or None)


def token_of(args: argparse.Namespace) -> str | None:
    """Raises ConfigError when the file cannot be read."""
    return None if args.token is None else token_argument(args.token, "--token")


def opening(system: str | None) -> list[dict[str, str]]:
    """The messages before the first of the user."""
    return [] if system is None else [{"role": "system", "content": system}]
