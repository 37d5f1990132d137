"""The operator's commands, spoken to a running broker as any client would."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys

from broker.cli import Exit
from broker.config import DEFAULT_PORT
from mesh import AsyncClient
from mesh.discovery.addresses import BadAddress, parse_endpoint
from mesh.errors import ConfigError, MeshError, Rejected, TransportError
from mesh.report import StatusReport

_CONNECT_TIMEOUT_S = 2.5  # so that "nobody is there" is said within three seconds, start of Python included
_REFRESH_S = 1.0


def operate(args: argparse.Namespace) -> int:
    """Run `status`, `drain` or `undrain`. Errors are told on stderr; returns the exit status."""
    logging.basicConfig(level=logging.CRITICAL)
    try:
        return asyncio.run(_operate(args))
    except ConfigError as error:
        return _told(error, Exit.USAGE)
    except TransportError as error:
        return _told(error, Exit.UNREACHABLE)
    except Rejected as error:
        return _told(error.message, Exit.NOT_READY)
    except MeshError as error:
        return _told(error, Exit.NOT_READY)


def _told(error: object, status: Exit) -> Exit:
    sys.stderr.write(f"phi3-broker: {error}\n")
    return status


async def _operate(args: argparse.Namespace) -> Exit:
    async with AsyncClient(
        _address(args.broker),
        mesh=args.mesh,
        insecure=args.insecure or None,
        name="phi3-broker",
        connect_timeout_s=_CONNECT_TIMEOUT_S,
    ) as client:
        if args.command == "drain":
            text = await client.drain(args.node)
            sys.stdout.write(f"{text or f'{args.node} takes no new work and hands over what it has'}\n")
            return Exit.OK
        if args.command == "undrain":
            text = await client.undrain(args.node)
            sys.stdout.write(f"{text or f'{args.node} takes work again'}\n")
            return Exit.OK
        return await _status(client, watch=args.watch, as_json=args.json)


async def _status(client: AsyncClient, *, watch: bool, as_json: bool) -> Exit:
    report = await client.status()
    if as_json:
        _print_json(report)
        while watch:  # one report per line and second, for programs that follow
            await asyncio.sleep(_REFRESH_S)
            report = await client.status()
            _print_json(report)
    else:
        from broker.status import show, watching

        if watch:
            with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is the way to end it
                await watching(client, report, _REFRESH_S)
        else:
            show(report)
    return Exit.OK if report.num_ready else Exit.NOT_READY


def _print_json(report: StatusReport) -> None:
    sys.stdout.write(json.dumps(report.model_dump(mode="json"), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _address(text: str | None) -> str | None:
    """With the usual port if there is none. Raises ConfigError."""
    if text is None:
        return None
    try:
        return str(parse_endpoint(text, DEFAULT_PORT))
    except BadAddress as error:
        raise ConfigError(f"--broker: {error}") from None
