"""A whole mesh on this machine for as long as a benchmark runs: nodes, a broker, and clients that fit its key."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mesh import AsyncClient, Client
from mesh.errors import MeshError
from mesh.security.member_key import find_or_make_member
from mesh.security.tokens import member_token
from scripts.benchmarks.processes import BIN, MESH, Member, Stage, has_address

_START_S = 120.0  # 64 nodes on two cores take a while
_CONNECT_S = 30.0


class LocalMesh(Stage):
    """A stage on which every process may run on every core. The key is there before the first process starts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, is_pinned=False)
        self.token = member_token(find_or_make_member(self.home).pair)

    def nodes(self, options: dict[str, Sequence[str]]) -> list[Member]:
        """A node for each name, with its options; they start side by side. Returns when all take work."""
        base = [str(BIN / "phi3-node"), "--bind", "127.0.0.1:0", "--no-mdns", "--mesh", MESH]
        return self.side_by_side({name: [*base, "--name", name, *more] for name, more in options.items()})

    def synthetic(self, names: Sequence[str], *options: str) -> list[Member]:
        """Synthetic nodes, all alike."""
        return self.nodes(dict.fromkeys(names, ("--engine", "synthetic", "--model", "synthetic", *options)))

    def side_by_side(self, commands: dict[str, Sequence[str]]) -> list[Member]:
        """Node processes by their commands; the slow part of a start is Python's own, and two cores share it."""
        members = [self.start(name, command, is_ready=lambda _: True) for name, command in commands.items()]
        for member in members:
            wait_for(lambda member=member: self._is_ready(member), f"{member.name} to be ready")
            has_address(member)
        return members

    def client(self, member: Member, name: str = "") -> Client:
        return Client(member.address, mesh=MESH, token=self.token, insecure=False, name=name or None,
                      connect_timeout_s=_CONNECT_S)  # fmt: skip

    def async_client(self, member: Member) -> AsyncClient:
        return AsyncClient(
            member.address, mesh=MESH, token=self.token, insecure=False, connect_timeout_s=_CONNECT_S
        )  # fmt: skip

    def broker_of(self, nodes: Sequence[Member], *options: str) -> Member:
        """A broker that has found these nodes already."""
        broker = self.broker(nodes, *options)
        with self.client(broker) as client:
            wait_for(lambda: _num_ready(client) == len(nodes), f"the broker to find {len(nodes)} nodes")
        return broker

    @staticmethod
    def _is_ready(member: Member) -> bool:
        text = member.log_text()
        if member.process.poll() is not None:
            raise RuntimeError(f"{member.name} ended with {member.process.returncode}:\n{text[-2000:]}")
        return " ready worker=" in text


@contextmanager
def local_mesh() -> Iterator[LocalMesh]:
    with tempfile.TemporaryDirectory(prefix="phi3-bench-", ignore_cleanup_errors=True) as folder:
        mesh = LocalMesh(Path(folder))
        try:
            yield mesh
        finally:
            mesh.close()


def wait_for(probe: Callable[[], bool], what: str, within_s: float = _START_S) -> None:
    """Until the probe is true. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within_s:g} s in vain for {what}")
        time.sleep(0.05)


def _num_ready(client: Client) -> int:
    try:
        return client.status().num_ready
    except MeshError:
        return 0


def peak_memory_bytes(pid: int) -> int:
    """The most resident memory that a process had since its peak was reset. Linux only."""
    return _status_bytes(pid, "VmHWM")


def memory_bytes(pid: int) -> int:
    """Its resident memory now. Linux only."""
    return _status_bytes(pid, "VmRSS")


def reset_peak_memory(pid: int) -> None:
    """Count the peak from now on. Linux only."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise LookupError(f"/proc/{pid}/status has no {field}")
