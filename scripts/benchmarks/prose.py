"""English text for benchmarks that need some: Python's own reference manual, which every Python has."""

from __future__ import annotations

from functools import cache
from pydoc_data.topics import topics


@cache
def manual() -> str:
    """All of it, some 700 KB."""
    return "\n".join(topics[name] for name in sorted(topics))


def prose(num_characters: int, start: int = 0) -> str:
    """So much text, from this character of the manual on; it begins again at its end."""
    text = manual()
    start %= len(text)
    times = (start + num_characters) // len(text) + 1
    return (text * times)[start : start + num_characters]
