"""Waiting for a fact of the real world: never by sleeping a fixed time, and never silently in vain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(probe: Callable[[], T], within_s: float = 5.0) -> T:
    """The first truthy value of `probe`. Fails with the last value if none comes."""
    give_up_at = time.monotonic() + within_s
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > give_up_at:
            raise AssertionError(f"not within {within_s} s; the last value was {value!r}")
        time.sleep(0.002)
