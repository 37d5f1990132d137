"""A gateway as a process beside the members of a test's mesh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.processes import Member


@contextmanager
def gateway_for(folder: Path, broker: str, *options: str, within_s: float = 30.0) -> Iterator[Member]:
    """Ends with the test. `address` is its URL; it may be used as soon as a node is ready."""
    log = folder / f"gateway-{len(list(folder.iterdir()))}.log"
    command = [sys.executable, "-m", "broker.gateway.cli", "--bind", "127.0.0.1:0", "--broker", broker, *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=dict(os.environ)
        )
    member = Member("gateway", process, log)

    def address() -> str:
        assert process.poll() is None, member.log_text()
        found = re.search(r"address=(https?://\S+)", member.log_text())
        return found[1] if found else ""

    try:
        member.address = eventually(address, within_s=within_s)
        yield member
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            member.kill()


def wait_until_ready(url: str, within_s: float = 30.0) -> None:
    """Until the gateway knows a node that is ready."""

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False

    eventually(is_ready, within_s=within_s)
