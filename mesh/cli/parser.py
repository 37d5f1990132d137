"""Every command and option of `phi3-mesh`, in one place. Imports nothing heavy: `--help` must be instant."""

from __future__ import annotations

import argparse

from mesh.version import __version__

DEFAULT_WINDOW = 512
CHAT_MAX_TOKENS = 512

_DESCRIPTION = """\
Ask the language models of a mesh. Without --broker, a broker or node is found on the local network by itself."""

_EXIT_CODES = "exit codes: 0 ok, 1 failed, 2 wrong usage, 3 no broker reached, 130 interrupted"

_GENERATE = """\
Answer one prompt. The prompt goes to the model as a user's message in the model's own chat format, which is what
instruct models are made for; --raw lets the model continue the bare text instead."""

_BATCH = """\
Answer a file of prompts. Each line of IN is a JSON object with "prompt" or "messages", and if wanted "id" and any
parameter of a request ("max_tokens", "temperature", ...), which wins over the options given here. Each answer is a line
of OUT, written when it is finished: "line" and "id" say what it belongs to; "text" is the answer, or "error" says why
there is none. Interrupt it at any time and run the same command again: it goes on where it was, and tries again what
failed for a reason that may have passed."""

_DOCTOR = """\
Find out why the mesh cannot be reached: tests interfaces, multicast, discovery, the port, the handshake, the nodes and
one short answer, and names the first step that fails and what to do about it."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "phi3-mesh", description=_DESCRIPTION, epilog=_EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"phi3-mesh {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str, description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=description, epilog=_EXIT_CODES)
        _add_connection(command)
        return command

    _add_generate(add("generate", "answer one prompt", _GENERATE))
    _add_chat(add("chat", "talk with a model in the terminal", "Talk with a model. /help lists the commands."))
    _add_batch(add("batch", "answer a file of prompts", _BATCH))
    _add_doctor(add("doctor", "find out why the mesh cannot be reached", _DOCTOR))
    return parser


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="read from standard input if absent or '-'")
    parser.add_argument("--raw", action="store_true", help="continue the bare text, without the chat format")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--no-stream", action="store_true", help="print the answer when it is complete")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object with all that is known of the answer"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="tell the node, the tokens and the times on standard error"
    )
    _add_sampling(parser)


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    _add_sampling(parser)
    parser.set_defaults(max_tokens=CHAT_MAX_TOKENS)


def _add_batch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", help="JSON lines to read")
    parser.add_argument("output", metavar="OUT", help="JSON lines to write, or to go on with")
    parser.add_argument(
        "--window",
        type=int,
        default=DEFAULT_WINDOW,
        metavar="N",
        help="requests under way at a time (default: %(default)s)",
    )
    parser.add_argument("--restart", action="store_true", help="begin anew: OUT is overwritten")
    parser.add_argument("--retry-failed", action="store_true", help="try every failed line again, whatever the reason")
    _add_sampling(parser)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="the model to ask (default: the first that is served)")
    parser.add_argument(
        "--interface",
        action="append",
        metavar="ADDRESS",
        help="test multicast on the interface with this address only (repeatable)",
    )


def _add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--broker",
        metavar="ADDR",
        help="host:port of a broker or node, several with commas between them "
        "(default: $PHI3_MESH_BROKER, else found by multicast DNS)",
    )
    group.add_argument("--mesh", default="default", metavar="NAME", help="name of the mesh (default: %(default)s)")
    group.add_argument(
        "--token",
        metavar="TOKEN",
        help="the line of `phi3-broker token --client NAME`, - or @FILE "
        "(default: $PHI3_MESH_TOKEN, else the key of the mesh on this host)",
    )
    group.add_argument("--insecure", action="store_true", help="plain text, to a mesh on this host that was started so")
    group.add_argument("--debug", action="store_true", help="log what the client does on standard error")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, metavar="N", help="at most so many tokens (default: 256; chat: 512)")
    group.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest token (default: 0)")
    group.add_argument("--top-p", type=float, metavar="P", help="sample from the likeliest tokens of this total weight")
    group.add_argument("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text (repeatable)")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer, on any node")
    group.add_argument("--model", metavar="NAME", help="the model to ask (default: the one that is served)")
    group.add_argument("--timeout", type=float, metavar="S", help="give a request up after so many seconds")
