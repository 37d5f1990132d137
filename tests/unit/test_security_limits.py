"""What is said about those who are turned away, and where plain text may go."""

from __future__ import annotations

import logging

import pytest

from mesh.errors import ConfigError
from mesh.security.refusals import Refusals
from mesh.security.sockets import require_loopback


def test_a_flood_of_refusals_is_counted_and_hardly_logged(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = Refusals(clock=lambda: now)
    for number in range(10_000):
        refusals.refuse(f"10.0.{number % 256}.1", "unknown_key")
    assert refusals.counters["unknown_key"] == 10_000
    assert len(caplog.records) == 20
    now = 60.0
    refusals.refuse("10.9.9.9", "revoked_key")
    assert [record.getMessage() for record in caplog.records[20:]] == [
        "refused_more count=9980 in_s=60",
        "refused address=10.9.9.9 reason=revoked_key",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5550", "127.0.0.2:1", "[::1]:5550", "localhost:5550"])
def test_insecure_stays_on_this_machine(endpoint: str) -> None:
    require_loopback(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://0.0.0.0:5550", "*:5550", "[::]:5550", "192.168.1.7:5550", "gpu-1:5550", "localhost.evil.com:1", "?"],
)
def test_insecure_anywhere_else_is_an_error(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        require_loopback(endpoint)
