"""The doctor's verdict, and its test of multicast on this host's loopback."""

from __future__ import annotations

import asyncio
import errno

import pytest

from mesh.cli.doctor.echo import echoes
from mesh.cli.doctor.network import explained
from mesh.cli.doctor.steps import failed, passed, skipped, verdict, warned


def test_the_first_fatal_failure_is_named_first_then_what_may_be_behind_it() -> None:
    findings = [warned("multicast", "no", "open the firewall"), failed("discovery", "nobody", "start one")]

    assert verdict([*findings, skipped("port", "not tested")]) == (
        False,
        ["discovery: start one", "multicast: open the firewall"],
    )


def test_what_does_not_stop_the_mesh_is_no_failure() -> None:
    findings = [warned("port", "refused", "is it running?"), passed("port", "accepts")]

    assert verdict(findings) == (
        True,
        ["the mesh works from here, in spite of what is marked above", "port: is it running?"],
    )
    assert verdict([passed("port", "accepts")]) == (True, ["the mesh works from here"])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TimeoutError(), "timed out"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "timed out"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "refused"),
        (OSError(errno.EHOSTUNREACH, "x"), "no route"),
        (OSError(errno.ENETUNREACH, "x"), "no route"),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
        (OSError("Multiple exceptions"), "Multiple exceptions"),
    ],
)
def test_why_a_port_cannot_be_reached_is_said_in_words(error: OSError, told: str) -> None:
    what, remedy = explained(error)

    assert what == told
    assert remedy


def test_multicast_is_heard_back_on_loopback_and_a_missing_interface_is_told() -> None:
    problems = asyncio.run(echoes(["127.0.0.1", "192.0.2.77", "fe80::77"], within_s=3.0))

    assert problems["127.0.0.1"] is None
    assert problems["192.0.2.77"]
    assert problems["fe80::77"] == "no interface has the address fe80::77"
