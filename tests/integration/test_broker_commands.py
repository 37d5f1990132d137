"""`phi3-broker` as a person runs it: real processes, exit codes and what is printed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from tests.support.broker_world import World, in_world
from tests.support.environment import clean_environment

pytestmark = pytest.mark.usefixtures("plain_text")


@contextlib.asynccontextmanager
async def command(*argv: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "broker.cli", *argv, stdout=PIPE, stderr=PIPE, env=clean_environment()
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(*argv: str) -> tuple[int, str, str]:
    async with command(*argv) as process:
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()


async def serving(process: Process) -> str:
    """The address in its first line."""
    assert process.stderr is not None
    async with asyncio.timeout(10):
        while line := (await process.stderr.readline()).decode():
            if " serving address=" in line:
                return line.partition(" serving address=tcp://")[2].split()[0]
    raise AssertionError("it did not start")


def test_serve_status_drain_and_stop() -> None:
    async def story(world: World) -> None:
        node = world.node("a", slots=4)
        options = ("--insecure", "--bind", "127.0.0.1:0", "--no-mdns", "--mesh", world.mesh, "--node", node.address[6:])
        async with command("serve", *options) as broker:
            address = await serving(broker)
            ask = ("--broker", address, "--mesh", world.mesh)
            assert broker.stderr is not None
            while b"to=ready" not in await broker.stderr.readline():
                pass

            code, out, _ = await run("status", *ask)
            assert (code, "ready" in out, "0/4" in out) == (0, True, True)
            code, out, _ = await run("status", "--json", *ask)
            report = json.loads(out)
            assert (code, report["nodes"][0]["name"], report["nodes"][0]["state"]) == (0, "a", "ready")

            code, out, _ = await run("drain", "a", *ask)
            assert (code, out) == (0, "a takes no new work and hands over what it has\n")
            code, out, _ = await run("status", *ask)
            assert (code, "draining" in out) == (1, True)
            code, _, err = await run("drain", "nobody", *ask)
            assert (code, "known: a" in err) == (1, True)
            code, _, _ = await run("undrain", "a", *ask)
            assert code == 0

            broker.send_signal(signal.SIGTERM)
            async with asyncio.timeout(3):
                assert await broker.wait() == 0

    in_world(story)


def test_a_second_signal_does_not_wait() -> None:
    async def story(world: World) -> None:
        async with command("serve", "--insecure", "--bind", "127.0.0.1:0", "--no-mdns", "--mesh", world.mesh) as broker:
            await serving(broker)
            broker.send_signal(signal.SIGINT)
            broker.send_signal(signal.SIGTERM)
            async with asyncio.timeout(3):
                assert await broker.wait() in (0, 128 + signal.SIGTERM, 128 + signal.SIGINT)

    in_world(story)


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    async def story(world: World) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            code, _, err = await run("serve", "--no-mdns", "--bind", f"127.0.0.1:{port}")
        assert code == 2
        assert f"phi3-broker: --bind: cannot bind tcp://127.0.0.1:{port}" in err
        assert "Traceback" not in err

    in_world(story)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("serve", "--policy", "least-conections"), "did you mean 'least-connections'"),
        (("serve", "--polcy", "hash"), "did you mean '--policy'"),
        (("serve", "--heartbeat", "0"), "--heartbeat"),
        (("status", "--broker", "a:b"), "--broker"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_status_2(argv: tuple[str, ...], words: str) -> None:
    code, _, err = asyncio.run(run(*argv))

    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_no_broker_is_said_within_three_seconds_with_what_was_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    start = time.monotonic()
    code, _, err = asyncio.run(run("status", "--broker", f"127.0.0.1:{port}"))

    assert code == 3
    assert f"127.0.0.1:{port}" in err
    assert time.monotonic() - start < 5  # three on a machine that does nothing else


def test_help_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, out, _ = asyncio.run(run("status", "--help"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert (code, "--watch" in out) == (0, True)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def test_watching_repeats_itself() -> None:
    async def story(world: World) -> None:
        broker = await world.broker()
        address = broker.address.removeprefix("tcp://")
        async with command("status", "--watch", "--json", "--broker", address, "--mesh", world.mesh) as process:
            assert process.stdout is not None
            async with asyncio.timeout(10):
                lines = [await process.stdout.readline() for _ in range(2)]
            assert all(json.loads(line)["name"] == "broker-0" for line in lines)

    in_world(story)
