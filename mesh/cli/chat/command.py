"""The conversation's loop: read a line, carry out a command or have the line answered, until the user leaves."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from mesh import AsyncClient
from mesh.cli import terminal
from mesh.cli.chat.answer import Answer, Answering
from mesh.cli.chat.conversation import Conversation
from mesh.cli.chat.lines import EditedLines, Key, Lines, PipedLines
from mesh.cli.record import summary
from mesh.cli.running import run_until_told
from mesh.cli.values import new_client, sampling_values
from mesh.client.params import asks_of
from mesh.errors import MeshError

_HELP = """\
/clear         forget what was said (the system message stays)
/system TEXT   set the system message; without TEXT remove it
/model NAME    ask this model from now on; without NAME list those that are served
/retry         ask the last question again
/save FILE     write the conversation: FILE.json for programs, else Markdown
/quit          leave (as Ctrl-D does, or Ctrl-C twice)
Ctrl-C stops an answer. Alt-Enter begins a new line. A message that starts with / is written with //."""


def run(args: argparse.Namespace) -> int:
    return run_until_told(_chat(args))


async def _chat(args: argparse.Namespace) -> int:
    values = sampling_values(args)
    asks_of({"prompt": "", **values})  # a wrong option is told before the first question, not after it
    async with new_client(args) as client:
        return await _Chat(client, Conversation(args.system), values).run()


class _Chat:
    def __init__(self, client: AsyncClient, conversation: Conversation, values: dict[str, object]) -> None:
        self._client = client
        self._conversation = conversation
        self._values = values
        self._answering = Answering(client)
        self._has_failed = False
        self._is_over = False
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._on_help,
            "/clear": self._on_clear,
            "/system": self._on_system,
            "/model": self._on_model,
            "/retry": self._on_retry,
            "/save": self._on_save,
            "/quit": self._on_quit,
            "/exit": self._on_quit,
        }

    async def run(self) -> int:
        """Until the user leaves. A person saw what failed; a script learns it from the exit code."""
        is_at_terminal = sys.stdin.isatty()
        task = asyncio.current_task()
        assert task is not None  # there is one inside a coroutine
        interrupted = self._answering.stop if is_at_terminal else task.cancel
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)
        lines: Lines = EditedLines(list(self._commands)) if is_at_terminal else PipedLines()
        if is_at_terminal:
            terminal.write_note("/help lists the commands, Ctrl-D leaves")
        await self._converse(lines)
        return 1 if self._has_failed and not is_at_terminal else 0

    async def _converse(self, lines: Lines) -> None:
        was_interrupted = False
        while not self._is_over:
            line = await lines.next()
            if line is Key.END or (line is Key.INTERRUPT and was_interrupted):
                return
            was_interrupted = line is Key.INTERRUPT
            if line is Key.INTERRUPT:
                terminal.write_note("Ctrl-C again or Ctrl-D leaves")
            elif isinstance(line, str) and line.strip():
                await self._take(line)

    async def _take(self, line: str) -> None:
        if not line.startswith("/") or line.startswith("//"):
            await self._ask(line.removeprefix("/") if line.startswith("//") else line)
            return
        name, _, argument = line.partition(" ")
        command = self._commands.get(name.strip())
        if command is None:
            terminal.write_error(f"{name.strip()}: no such command; /help lists them, // begins a message with /")
            self._has_failed = True
        else:
            await command(argument.strip())

    async def _ask(self, question: str) -> None:
        answer = await self._answering.ask(self._conversation.messages(question), self._values)
        if answer.text and not answer.text.endswith("\n"):
            terminal.write_answer("\n")
        # What an error left is half an answer that nobody wanted to end there: do not build on it.
        self._conversation.answered(question, "" if answer.error is not None else answer.text)
        self._tell(answer)

    def _tell(self, answer: Answer) -> None:
        if answer.error is not None:
            self._has_failed = True
            terminal.write_error(str(answer.error))
            if sys.stdin.isatty():
                terminal.write_note("the conversation is unchanged; /retry asks again")
        elif answer.completion is None:
            terminal.write_note("stopped" if answer.text else "stopped before it began; /retry asks again")
        elif sys.stdin.isatty():
            terminal.write_note(summary(answer.completion))

    # --- commands -----------------------------------------------------------------------------------------------------

    async def _on_help(self, argument: str) -> None:
        terminal.write_note(_HELP)

    async def _on_clear(self, argument: str) -> None:
        self._conversation.clear()
        terminal.write_note("forgotten")

    async def _on_system(self, argument: str) -> None:
        self._conversation.system = argument or None
        terminal.write_note("system message set" if argument else "no system message")

    async def _on_model(self, argument: str) -> None:
        if argument:
            self._values["model"] = argument
            terminal.write_note(f"asking {argument} from now on")
            return
        try:
            served = await self._client.models()
        except MeshError as error:
            terminal.write_error(str(error))
            self._has_failed = True
            return
        for model in served:
            terminal.write_note(f"{'*' if model.name == self._values.get('model') else ' '} {model.name}")

    async def _on_retry(self, argument: str) -> None:
        question = self._conversation.take_back()
        if question is None:
            terminal.write_error("nothing was asked yet")
        else:
            await self._ask(question)

    async def _on_save(self, argument: str) -> None:
        if not argument:
            terminal.write_error("/save needs the name of a file")
            return
        try:
            path = _save(self._conversation, argument)
        except OSError as error:
            terminal.write_error(f"{argument}: {error.strerror}")
            self._has_failed = True
        else:
            terminal.write_note(f"saved to {path}")

    async def _on_quit(self, argument: str) -> None:
        self._is_over = True


def _save(conversation: Conversation, name: str) -> Path:
    path = Path(name).expanduser()
    text = conversation.to_json() if path.suffix == ".json" else conversation.to_markdown()
    path.write_text(text, encoding="utf-8")
    return path
