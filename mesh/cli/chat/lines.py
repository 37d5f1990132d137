"""Where the user's lines come from: an editor at a terminal, or plain lines from a pipe or file."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


class Key(Enum):
    """What can come instead of a line."""

    INTERRUPT = auto()  # Ctrl-C while the line is empty
    END = auto()  # Ctrl-D, or the end of the file


class Lines(Protocol):
    async def next(self) -> str | Key: ...


class EditedLines:
    """A prompt with editing and this session's history. A paste of several lines stays one message, whatever Python
    was built with: the reason for prompt_toolkit, because readline's stand-in libedit sends each line on its own."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory(),
            key_bindings=_keys(),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            enable_suspend=True,
        )

    async def next(self) -> str | Key:
        try:
            # SIGINT belongs to the chat: at the prompt Ctrl-C is a key, not a signal.
            return await self._session.prompt_async("> ", handle_sigint=False)
        except KeyboardInterrupt:
            return Key.INTERRUPT
        except EOFError:
            return Key.END


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        """As in a shell: drop the line that was begun; on an empty one, ask to leave."""
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        """Alt-Enter: a new line in the message."""
        event.current_buffer.insert_text("\n")

    return keys


class PipedLines:
    """Standard input, line by line, read in a thread: a regular file cannot be waited for on an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | Key] = asyncio.Queue()
        # A daemon: it hangs in a read that nothing can interrupt, and must not hold up the end of the program.
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def next(self) -> str | Key:
        return await self._lines.get()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._put(line.decode(errors="replace").rstrip("\r\n"))
        self._put(Key.END)

    def _put(self, line: str | Key) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
