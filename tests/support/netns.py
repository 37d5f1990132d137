"""Real hosts on one machine: network namespaces joined by a bridge, with working multicast. Needs root and iproute2."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_numbers = itertools.count()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Host:
    """One namespace with one network card."""

    namespace: str
    address: str
    link: str  # its end of the cable, inside the namespace

    def command(self, *arguments: str) -> list[str]:
        """The command that runs `arguments` on this host."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def python(self, *arguments: str) -> list[str]:
        return self.command(sys.executable, *arguments)

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self.namespace, "link", "set", self.link, "down")

    def heal(self) -> None:
        _ip("-n", self.namespace, "link", "set", self.link, "up")


@contextmanager
def network(num_hosts: int, subnet: str = "10.77.0") -> Iterator[list[Host]]:
    """Hosts on one switch. The bridge lives in a namespace of its own, so nothing touches this machine's network."""
    tag = f"p3{os.getpid() % 100000}x{next(_numbers)}"
    switch = f"{tag}sw"
    namespaces = [switch]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        _ip("-n", switch, "link", "set", "br0", "up")
        hosts = []
        for number in range(1, num_hosts + 1):
            name = f"{tag}h{number}"
            _ip("netns", "add", name)
            namespaces.append(name)
            host = Host(name, f"{subnet}.{number}", "eth0")
            _ip("link", "add", f"p{number}", "netns", switch, "type", "veth", "peer", "name", host.link, "netns", name)
            _ip("-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{host.address}/24", "dev", host.link)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", host.link, "up")
            hosts.append(host)
        yield hosts
    finally:
        for name in namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def running(commands: Sequence[tuple[str, list[str]]], logs: Path, env: dict[str, str]) -> Iterator[dict[str, Path]]:
    """Processes by name, each with its log, ended at the end."""
    started: list[subprocess.Popen[bytes]] = []
    paths = {}
    try:
        for name, command in commands:
            paths[name] = logs / f"{name}.log"
            with paths[name].open("w") as log:
                started.append(
                    subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **env})
                )
        yield paths
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
