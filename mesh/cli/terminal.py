"""What may be written where: colours only to a terminal that wants them, control characters to none."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

# A model may be talked into writing escape sequences, which could retitle the window or rewrite what is on the screen.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def never_fail_on_characters() -> None:
    """A character that the terminal's encoding lacks is shown as '?', instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's stream may be any object
        if reconfigure is not None:
            reconfigure(errors="replace")


def has_colour(stream: TextIO) -> bool:
    """https://no-color.org: any value but the empty one switches colours off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def dim(text: str, stream: TextIO) -> str:
    return f"\x1b[2m{text}\x1b[0m" if has_colour(stream) else text


def can_show(text: str, stream: TextIO) -> bool:
    """Whether the stream's encoding has these characters."""
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def harmless(text: str) -> str:
    """Model output without control characters, but for newline and tab."""
    return _CONTROL.sub("", text)


def write_answer(text: str) -> None:
    """To standard output, at once: whoever reads along sees each token. A file or pipe gets it unchanged."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_note(text: str) -> None:
    """A line for the person at the terminal, dim, on standard error."""
    sys.stderr.write(dim(text, sys.stderr) + "\n")
    sys.stderr.flush()


def write_error(text: str) -> None:
    sys.stderr.write(f"phi3-mesh: {harmless(text)}\n")
    sys.stderr.flush()
