"""The command `phi3-broker`: reads the command line and hands over. Heavy imports wait."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from enum import IntEnum

_DESCRIPTION = """The broker of a phi3 mesh: finds nodes, queues requests, and sends each to a node with room.
Any number may run side by side."""
_SERVE = "Run a broker until Ctrl-C or SIGTERM; then hand its work over. A second signal ends it at once."
_GATEWAY = "Run an HTTP gateway (OpenAI, Anthropic and Triton clients, Prometheus): any number, beside any broker."
_STATUS = "Show the nodes and what they do. The exit status is 0 if at least one is ready."
_DRAIN = "Give a node no new work and let it hand over what it has, as before maintenance."
_TOKEN = "Print the line that lets another host join as a member, or a named client call, from anywhere."
_CLIENTS = "List the clients that have a key of this host."
_REVOKE = "End a client's key at once, its open connections too."
_UNDRAIN = "Give a drained node work again."


class Exit(IntEnum):
    OK = 0
    NOT_READY = 1  # no node is ready, or the broker said no
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given[:1] == ["serve"]:  # its options come from a dataclass and have a parser of their own
            return _serve(given[1:])
        if given[:1] == ["gateway"]:  # likewise
            from broker.gateway.cli import main as gateway

            return gateway(given[1:])
        args = _parser().parse_args(given)
        if args.command in ("token", "clients", "revoke"):
            from broker.keys import manage_keys

            return manage_keys(args)
        from broker.operate import operate  # the client library costs a quarter of a second; --help should not

        return operate(args)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader has left, as `head` does. Python would complain when it flushes at exit: let it flush nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.NOT_READY


def _serve(argv: list[str]) -> int:
    from broker.config import BrokerConfig
    from mesh.errors import ConfigError
    from mesh.options import load_options

    try:
        config = load_options(BrokerConfig, argv, "phi3-broker serve", os.environ, _SERVE)
        from broker.serve import serve

        serve(config)
    except ConfigError as error:
        sys.stderr.write(f"phi3-broker: {error}\n")
        return Exit.USAGE
    return Exit.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="phi3-broker", description=_DESCRIPTION, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("serve", help=_SERVE, add_help=False)
    commands.add_parser("gateway", help=_GATEWAY, add_help=False)
    status = commands.add_parser("status", help=_STATUS, description=_STATUS, allow_abbrev=False)
    status.add_argument("--watch", action="store_true", help="refresh in place until Ctrl-C")
    status.add_argument("--json", action="store_true", help="for programs: the whole report, its keys are stable")
    drain = commands.add_parser("drain", help=_DRAIN, description=_DRAIN, allow_abbrev=False)
    undrain = commands.add_parser("undrain", help=_UNDRAIN, description=_UNDRAIN, allow_abbrev=False)
    for command in (drain, undrain):
        command.add_argument("node", metavar="NODE", help="name or id, as `phi3-broker status` shows it")
    for command in (status, drain, undrain):
        command.add_argument(
            "--broker",
            metavar="HOST[:PORT]",
            help="the broker to ask (env: PHI3_MESH_BROKER; default: look for one on the network)",
        )
        command.add_argument("--insecure", action="store_true", help="plain text, to a broker on this host started so")
        command.add_argument("--mesh", default="default", metavar="NAME", help="name of the mesh (default: default)")
    token = commands.add_parser("token", help=_TOKEN, description=_TOKEN, allow_abbrev=False)
    whose = token.add_mutually_exclusive_group(required=True)
    whose.add_argument("--member", action="store_true", help="for a GPU host or a broker: phi3-node --join TOKEN")
    whose.add_argument(
        "--client", metavar="NAME", help="a new key for a caller: Client(token=TOKEN), or PHI3_MESH_TOKEN"
    )
    commands.add_parser("clients", help=_CLIENTS, description=_CLIENTS, allow_abbrev=False)
    revoke = commands.add_parser("revoke", help=_REVOKE, description=_REVOKE, allow_abbrev=False)
    revoke.add_argument("name", metavar="NAME", help="as `phi3-broker clients` shows it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
