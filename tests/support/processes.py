"""Real nodes and brokers as processes on loopback, each on a port of its own, ended with the test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mesh import Client
from tests.support.eventually import eventually


@dataclass
class Member:
    """One process of the mesh."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


class Mesh:
    """Starts members; finds nothing by itself: who knows whom is said with addresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.members: list[Member] = []

    def node(self, name: str, *options: str, bind: str = "127.0.0.1:0", env: dict[str, str] | None = None) -> Member:
        """A synthetic node unless the options say otherwise."""
        if "--engine" not in options and "--model" not in options:
            options = ("--engine", "synthetic", "--device", "instant", *options)
        return self._start(name, ["node.cli", "--name", name, "--bind", bind, "--no-mdns", *options], env)

    def broker(self, name: str, *nodes: Member, options: tuple[str, ...] = (), bind: str = "127.0.0.1:0") -> Member:
        known = [word for node in nodes for word in ("--node", node.address)]
        return self._start(name, ["broker.cli", "serve", "--name", name, "--bind", bind, "--no-mdns", *known, *options])

    def _start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> Member:
        log = self._folder / f"{name}-{len(self.members)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})},
            )
        member = Member(name, process, log)
        self.members.append(member)

        def address() -> str:
            assert process.poll() is None, member.log_text()
            found = re.search(r"address=(tcp://\S+)", member.log_text())
            return found[1] if found else ""

        member.address = eventually(address, within_s=30)
        return member

    def stop(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGCONT)  # one that a test suspended could not obey
                member.process.terminate()
        for member in self.members:
            try:
                member.process.wait(10)
            except subprocess.TimeoutExpired:
                member.kill()


@contextmanager
def mesh_in(folder: Path) -> Iterator[Mesh]:
    mesh = Mesh(folder)
    try:
        yield mesh
    finally:
        mesh.stop()


def wait_for_nodes(client: Client, count: int, within_s: float = 30.0) -> None:
    """Until that many nodes are ready."""
    eventually(lambda: client.status().num_ready >= count, within_s=within_s)
