"""What somebody sees who listens on the cable between the hosts: none of the words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.netns import Host, network, running

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(shutil.which("tcpdump") is None, reason="needs tcpdump"),
    pytest.mark.timeout(90),
]
WORDS = "the-orange-submarine-sings"
SPOKEN = b"control-words-in-plain-text"
LISTEN = """
import socket, sys
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("listening", flush=True)
    server.accept()[0].recv(1000)
"""
SAY = f"import socket, sys; socket.create_connection((sys.argv[1], 7000)).sendall({SPOKEN!r})"


@contextmanager
def wiretap(host: Host, file: Path) -> Iterator[None]:
    """All that crosses the bridge that the hosts are joined by, from the first packet on."""
    switch = host.namespace.rpartition("h")[0] + "sw"
    tcpdump = ["tcpdump", "-i", "br0", "-U", "-s", "0", "--immediate-mode", "-w"]
    command = ["ip", "netns", "exec", switch, *tcpdump, str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tap:
        assert tap.stderr is not None
        assert "listening" in tap.stderr.readline()
        try:
            yield
        finally:
            tap.terminate()


def generate(host: Host, env: dict[str, str]) -> str:
    command = host.python("-m", "mesh.cli.main", "generate", "--json", "--max-tokens", "24", WORDS)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})
    return str(json.loads(done.stdout)["text"]) if done.returncode == 0 else ""


def test_a_listener_on_the_cable_learns_no_word(tmp_path: Path, home: Path) -> None:
    """With a control, or it would prove nothing: what somebody sends in plain text over the same cable is seen."""
    env = {"PHI3_MESH_HOME": str(home)}
    token = subprocess.run(
        [sys.executable, "-m", "broker.cli", "token", "--member"], capture_output=True, text=True, check=True
    ).stdout.strip()
    capture = tmp_path / "cable.pcap"
    with network(2, "10.79.0") as (first, second), wiretap(first, capture):
        commands = [
            ("b", first.python("-m", "broker.cli", "serve", "--name", "b")),
            ("n", second.python("-m", "node.cli", "--name", "n", "--engine", "synthetic", "--device", "instant")),
            ("control", second.python("-c", LISTEN)),
        ]
        with running(commands, tmp_path, env) as logs:
            text = eventually(lambda: generate(second, env), within_s=60)
            eventually(lambda: "listening" in logs["control"].read_text(), within_s=10)
            subprocess.run(first.python("-c", SAY, second.address), check=True, timeout=20)
            eventually(lambda: SPOKEN in capture.read_bytes(), within_s=10)
        told = "".join(log.read_text() for log in logs.values())
    seen = capture.read_bytes()
    assert len(seen) > 10_000
    assert SPOKEN in seen
    assert text.encode() not in seen
    assert WORDS.encode() not in seen
    assert token.encode() not in seen
    assert (home / "keys" / "mesh.key").read_bytes().strip() not in seen
    assert WORDS not in told
