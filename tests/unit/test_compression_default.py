"""When bodies are compressed: never on this machine; elsewhere long ones, if the receiver can read them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from mesh import bodies
from mesh.client.outbox import Outbox
from mesh.client.params import asks_of
from mesh.client.retry import RetryPolicy
from mesh.client.tracker import Tracker
from mesh.messages import Message, Submit, Welcome

LONG = "All that is said here has been said before, only not so often. " * 2000
HERE, ELSEWHERE = "tcp://127.0.0.1:5550", "tcp://10.0.0.1:5550"


@pytest.mark.parametrize(
    ("address", "server_takes", "packing", "accepted"),
    [
        (HERE, ("zstd",), bodies.PLAIN, ()),
        (ELSEWHERE, ("zstd",), bodies.ZSTD, ("zstd",)),
        (ELSEWHERE, (), bodies.PLAIN, ("zstd",)),
        (ELSEWHERE, ("a later one",), bodies.PLAIN, ("zstd",)),
    ],
)
def test_it_is_off_on_loopback_and_negotiated_elsewhere(
    address: str, server_takes: tuple[str, ...], packing: int, accepted: tuple[str, ...]
) -> None:
    submit, body = _sent(address, server_takes, LONG)
    assert body[0] == packing
    assert submit.codecs == accepted  # what the node may use for the answers
    assert bodies.unpack(body)["prompt"] == LONG


def test_each_frame_says_for_itself_how_it_is_packed() -> None:
    assert _sent(ELSEWHERE, ("zstd",), "short")[1][0] == bodies.PLAIN


def _sent(address: str, server_takes: tuple[str, ...], prompt: str) -> tuple[Submit, bytes]:
    """What a client sends to a server there that announced these codecs."""
    sent: list[tuple[Message, tuple[bytes, ...]]] = []

    async def story() -> None:
        welcome = Welcome("broker", "b", "id", 1, "default", 0.5, 3, 256, 16 << 20, server_takes)
        outbox = Outbox(lambda message, *body: sent.append((message, body)), _never, welcome, address)
        (ask,) = asks_of({"prompt": prompt})
        outbox.submit(Tracker(1, ask, 0.0, policy=RetryPolicy(), rng=random.Random(1), wants_chunks=False))
        await asyncio.sleep(0)

    asyncio.run(story())
    ((submit, (body,)),) = sent
    assert isinstance(submit, Submit)
    return submit, body


def _never(rejected: Any) -> None:
    raise AssertionError(f"rejected: {rejected}")
