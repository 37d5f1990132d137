"""`phi3-broker token|clients|revoke`: the keys of this host's mesh. Files only; servers see a change by themselves."""

from __future__ import annotations

import argparse
import logging
import sys

from broker.cli import Exit
from mesh.errors import ConfigError
from mesh.security.loading import member_credentials
from mesh.security.registry import ClientRegistry
from mesh.security.tokens import member_token


def manage_keys(args: argparse.Namespace) -> int:
    """Run one of the commands. A token goes to stdout, and what a person should know about it to stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        return {"token": _token, "clients": _clients, "revoke": _revoke}[args.command](args)
    except ConfigError as error:
        sys.stderr.write(f"phi3-broker: {error}\n")
        return Exit.USAGE


def _token(args: argparse.Namespace) -> int:
    credentials = member_credentials()
    if args.member:
        sys.stderr.write(
            "This line makes whoever has it a member of the mesh: keep it like a password. On the other host:\n"
            "  phi3-node --join -        (and paste it; or --join @FILE)\n"
        )
        token = member_token(credentials.pair)
    else:
        token = ClientRegistry().add(args.client, credentials)
        sys.stderr.write(
            f"This line lets {args.client!r} call the mesh through brokers on this host. It is not shown again.\n"
            "  PHI3_MESH_TOKEN=…         or Client(token=…), or PHI3_MESH_TOKEN_FILE=/path/of/a/file\n"
        )
    sys.stdout.write(f"{token}\n")
    return Exit.OK


def _clients(args: argparse.Namespace) -> int:
    for client in ClientRegistry().clients():
        state = f"revoked {client.revoked}" if client.is_revoked else "active"
        sys.stdout.write(f"{client.name:<24} {state:<34} created {client.created}\n")
    return Exit.OK


def _revoke(args: argparse.Namespace) -> int:
    client = ClientRegistry().revoke(args.name)
    sys.stdout.write(f"{client.name} is revoked; brokers on this host end its connections within a heartbeat\n")
    return Exit.OK
