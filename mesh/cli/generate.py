"""`phi3-mesh generate`: one prompt, one answer."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from mesh import AsyncClient, Completion
from mesh.cli import terminal
from mesh.cli.record import full_record, summary
from mesh.cli.running import run_until_told
from mesh.cli.values import new_client, opening, sampling_values
from mesh.errors import ConfigError


def run(args: argparse.Namespace) -> int:
    question = _question(args)
    return run_until_told(_generate(args, question))


async def _generate(args: argparse.Namespace, question: dict[str, Any]) -> int:
    async with new_client(args) as client:
        if args.json or args.no_stream:
            completion = await _ask(client, question)
            if args.json:
                sys.stdout.write(json.dumps(full_record(completion), ensure_ascii=False) + "\n")
            else:
                terminal.write_answer(_line(completion.text))
        else:
            completion = await _stream(client, question)
    _tell(args, completion)
    return 0


async def _ask(client: AsyncClient, question: dict[str, Any]) -> Completion:
    if "messages" in question:
        return await client.chat(**question)
    return await client.generate(**question)


async def _stream(client: AsyncClient, question: dict[str, Any]) -> Completion:
    stream = client.stream(**question)
    async with stream:
        async for chunk in stream:
            terminal.write_answer(chunk.text)
    completion = stream.result
    terminal.write_answer("" if completion.text.endswith("\n") else "\n")
    return completion


def _tell(args: argparse.Namespace, completion: Completion) -> None:
    """Whoever sees an answer end in the middle of a sentence should learn why, unless it goes into a file."""
    if args.verbose:
        terminal.write_note(summary(completion))
    elif completion.finish_reason == "length" and not args.json and sys.stdout.isatty() and sys.stderr.isatty():
        terminal.write_note(f"cut off after {completion.usage.completion_tokens} tokens: --max-tokens allows more")


def _question(args: argparse.Namespace) -> dict[str, Any]:
    """Raises ConfigError."""
    prompt = _prompt(args.prompt)
    if args.raw:
        if args.system is not None:
            raise ConfigError("--system needs the chat format, which --raw switches off: give one of them")
        return {"prompt": prompt, **sampling_values(args)}
    return {"messages": [*opening(args.system), {"role": "user", "content": prompt}], **sampling_values(args)}


def _prompt(words: list[str]) -> str:
    """From the command line, or all of standard input. Raises ConfigError."""
    if words and words != ["-"]:
        prompt = " ".join(words)
        try:
            prompt.encode()
        except UnicodeEncodeError:  # how Python shows bytes of the command line that are no text
            raise ConfigError("the prompt is not UTF-8 text") from None
    else:
        if sys.stdin.isatty():
            terminal.write_note("type the prompt, then Ctrl-D on a line of its own")
        try:
            prompt = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"standard input is not UTF-8 text (byte {error.start:,})") from None
    if not prompt.strip():
        raise ConfigError("the prompt is empty")
    return prompt


def _line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
